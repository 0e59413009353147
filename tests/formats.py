"""Every tool-call format that comes along, with what a test of all of them needs to know about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from steprl.renderers import (
    FencedCodeFormat,
    HermesFormat,
    Llama3JsonFormat,
    ParsedCall,
    Qwen3CoderFormat,
    ReactFormat,
    TagsFormat,
    ToolCallFormat,
)
from steprl.types import MalformedCall, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A format: its ``name`` and ``args`` in a recipe, and its ``address``. ``call`` calls ``tool`` with a
    text as ``argument``, ``broken`` are malformed calls, ``fragments`` are parts of texts close to a call."""

    name: str
    address: str
    make: Callable[..., ToolCallFormat]
    args: Mapping[str, Any]
    tool: str
    argument: str
    broken: tuple[str, ...]
    fragments: tuple[str, ...]

    @property
    def format(self) -> ToolCallFormat:
        return self.make(**self.args)

    def call(self, text: str = "x") -> str:
        return self.format.write("", [(self.tool, {self.argument: text})])


_ROOM = "steprl.renderers"
KNOWN = (
    Known(
        name="hermes",
        address=f"{_ROOM}.hermes:HermesFormat",
        make=HermesFormat,
        args={},
        tool="search",
        argument="query",
        broken=("<tool_call>{]</tool_call>",),
        fragments=("<tool_call>", "</tool_call>", '{"name": "search", "arguments": {', "}", '"'),
    ),
    Known(
        name="qwen3_coder",
        address=f"{_ROOM}.qwen3_coder:Qwen3CoderFormat",
        make=Qwen3CoderFormat,
        args={},
        tool="search",
        argument="query",
        broken=("<tool_call>\n<function=search>\n</tool_call>",),
        fragments=(
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<parameter=x>",
            "<function=",
            "</parameter>",
        ),
    ),
    Known(
        name="llama3_json",
        address=f"{_ROOM}.llama3_json:Llama3JsonFormat",
        make=Llama3JsonFormat,
        args={},
        tool="search",
        argument="query",
        broken=('{"name": "search"}',),
        fragments=('{"name": "f", "parameters": {', "}", "}}", ";", "<|python_tag|>", "<|eom_id|>", "["),
    ),
    Known(
        name="react",
        address=f"{_ROOM}.react:ReactFormat",
        make=ReactFormat,
        args={"bare": {"search": "query"}},
        tool="search",
        argument="query",
        broken=("Action: search[x]",),
        fragments=(
            "\nAction:",
            " search",
            "\nAction Input:",
            "{}",
            '{"a": "',
            "\nObservation:",
            "\nFinal Answer:",
            "\nThought:",
            "**",
        ),
    ),
    Known(
        name="tags",
        address=f"{_ROOM}.tags:TagsFormat",
        make=TagsFormat,
        args={"tools": {"search": "query"}},
        tool="search",
        argument="query",
        broken=("<search></search>",),
        fragments=(
            "<search>",
            "</search>",
            "<answer>",
            "</answer>",
            "<information>",
            "<search/>",
            "<search ",
        ),
    ),
    Known(
        name="fenced_code",
        address=f"{_ROOM}.fenced_code:FencedCodeFormat",
        make=FencedCodeFormat,
        args={},
        tool="python",
        argument="code",
        broken=("```Python\nx\n```",),
        fragments=("\n```python\n", "\n```\n", "```", "````", "\n```js\n", "\n```output\n", "\r\n", "  "),
    ),
)


def executed(format: ToolCallFormat, text: str, finish: Any = "stop") -> list[tuple[str, Any]]:
    """The well-formed calls in a text."""
    found = format.parse(text, finish)
    return [(p.call.name, p.call.arguments) for p in found if isinstance(p.call, ToolCall)]


def malformed(format: ToolCallFormat, text: str, finish: Any = "stop") -> MalformedCall:
    """The one malformed call in a text, and no other."""
    (parsed,) = format.parse(text, finish)
    assert isinstance(parsed.call, MalformedCall), parsed
    assert parsed.call.raw == text[parsed.start : parsed.end]
    return parsed.call


def reasons(format: ToolCallFormat, text: str, finish: Any = "stop") -> list[str]:
    """Of a text's calls: the reason of a malformed one, the name of a well-formed one."""
    return [_told(parsed) for parsed in format.parse(text, finish)]


def _told(parsed: ParsedCall) -> str:
    return parsed.call.reason if isinstance(parsed.call, MalformedCall) else parsed.call.name
