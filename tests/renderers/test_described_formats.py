"""Formats that no chat template knows: how tools and their results stand in the prompt; and formats that need
the tools' schemas to read a call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tiny import HEADERS, tiny_tokenizer

from steprl.envs import ToolEnv
from steprl.errors import ConfigError
from steprl.renderers import (
    ChatRenderer,
    DescribedFormat,
    FencedCodeFormat,
    HermesFormat,
    Llama3JsonFormat,
    Qwen3CoderFormat,
    ReactFormat,
    TagsFormat,
)
from steprl.tools import tool
from steprl.types import Message, Task, ToolSpec

SEARCH = ToolSpec(
    name="search",
    description="Search the web.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "in a few words"},
            "n": {"type": "integer"},
        },
        "required": ["query"],
    },
)
PYTHON = ToolSpec(
    name="python",
    description="Run Python.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
SYSTEM = Message(role="system", content="Be brief.")
USER = Message(role="user", content="Who?")
ASSISTANT = Message(role="assistant", content="Hm.")
BARE = "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
"""A template that has never heard of tools."""

CASES: list[tuple[DescribedFormat, ToolSpec]] = [
    (ReactFormat({"search": "query"}), SEARCH),
    (TagsFormat(), SEARCH),
    (FencedCodeFormat(), PYTHON),
]
every_described = pytest.mark.parametrize(("format", "spec"), CASES, ids=["react", "tags", "fenced_code"])


def prompt(format: Any, messages: Any, tools: Any = (), template: str = BARE) -> str:
    renderer = ChatRenderer(tiny_tokenizer(template), format)
    return renderer.decode(renderer.render(messages, tools))


def test_the_formats_that_templates_know_are_left_to_them() -> None:
    for format in (HermesFormat(), Qwen3CoderFormat(), Llama3JsonFormat()):
        assert not isinstance(format, DescribedFormat)
        with pytest.raises(ConfigError, match="ignores tools"):
            prompt(format, (USER,), (SEARCH,))


@every_described
def test_tools_are_described_behind_the_system_message(format: DescribedFormat, spec: ToolSpec) -> None:
    described = format.describe([spec])
    assert f"- {spec.name}(" in described and spec.description in described
    assert prompt(format, (SYSTEM, USER), (spec,)) == (
        f"system: Be brief.\n\n{described}<|endoftext|>user: Who?<|endoftext|>"
    )
    assert prompt(format, (USER,), (spec,)).startswith(f"system: {described}<|endoftext|>user: Who?")
    assert prompt(format, (USER,)) == "user: Who?<|endoftext|>"


@every_described
def test_a_template_with_tools_is_given_none(format: DescribedFormat, spec: ToolSpec) -> None:
    text = prompt(format, (SYSTEM, USER), (spec,), HEADERS)
    assert "Environment: ipython" not in text and format.describe([spec]) in text


@every_described
def test_results_are_user_messages_and_those_of_one_turn_are_one(
    format: DescribedFormat, spec: ToolSpec
) -> None:
    results = [Message(role="tool", content=c, name=spec.name, tool_call_id="call_0") for c in ("a", "b")]
    text = prompt(format, (USER, ASSISTANT, *results, ASSISTANT, results[0], USER))
    together = f"{format.feedback('a')}\n{format.feedback('b')}"
    assert text == (
        f"user: Who?<|endoftext|>assistant: Hm.<|endoftext|>user: {together}<|endoftext|>"
        f"assistant: Hm.<|endoftext|>user: {format.feedback('a')}<|endoftext|>user: Who?<|endoftext|>"
    )


def test_what_results_look_like() -> None:
    assert ReactFormat().feedback("42") == "Observation: 42"
    assert TagsFormat().feedback("42") == "<information>42</information>"
    assert FencedCodeFormat().feedback("42") == "```output\n42\n```"


def test_arguments_are_listed_with_their_types() -> None:
    listed = "- search(query: string (in a few words), n: integer, optional): Search the web."
    assert listed in ReactFormat().describe([SEARCH])
    anything = ToolSpec(name="f", description="F.", parameters={"properties": {"x": {}}, "required": ["x"]})
    assert "- f(x: any): F." in ReactFormat().describe([anything])
    assert "- f(): F." in ReactFormat().describe([ToolSpec(name="f", description="F.", parameters={})])


def test_the_description_says_how_to_call() -> None:
    assert "(of search: its text alone)" in ReactFormat({"search": "query"}).describe([SEARCH])
    assert "text alone" not in ReactFormat().describe([SEARCH])
    assert "write <search>query</search> and stop" in TagsFormat().describe([SEARCH])
    assert "<answer>answer</answer>" in TagsFormat().describe([SEARCH])
    assert "```python\nyour code\n```" in FencedCodeFormat().describe([PYTHON])


TWO = ToolSpec(
    name="search",
    description="",
    parameters={"properties": {"query": {"type": "string"}, "site": {}}, "required": ["query", "site"]},
)
COUNT = ToolSpec(name="search", description="", parameters={"properties": {"query": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("format", "spec", "message"),
    [
        (TagsFormat(), PYTHON, "has no tag for the tool 'python'. Set model.format_args.tools"),
        (TagsFormat({"search": "q"}), SEARCH, "it has no argument 'q'; it has query, n"),
        (TagsFormat(), TWO, "it needs site as well, and the format writes one argument"),
        (TagsFormat(), COUNT, "its argument 'query' is no text"),
        (ReactFormat({"search": "q"}), SEARCH, "the format 'react' cannot call the tool 'search' with 'q'"),
        (FencedCodeFormat(), SEARCH, "calls the tool 'python' alone, and the environment has 'search'"),
        (FencedCodeFormat(argument="source"), PYTHON, "it has no argument 'source'; it has code"),
    ],
)
def test_a_tool_that_cannot_be_called_is_refused(format: Any, spec: ToolSpec, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prompt(format, (USER,), (spec,))
    assert message in str(caught.value)


# --- schemas --------------------------------------------------------------------------------------------


class Inhabitants(ToolEnv):
    """One tool that takes a text which may look like a number, and a number."""

    @tool
    def rank(self, city: str, year: int) -> str:
        """Rank of a city in a year."""
        return f"{city!r} {year + 1}"

    tools = (rank,)

    def reward(self, task: Task, answer: str) -> float:
        return 1.0


@pytest.mark.parametrize("city", ["Oslo", "1984", "null"])
def test_what_is_written_bare_reaches_the_tool_in_its_types(city: str) -> None:
    renderer = ChatRenderer(tiny_tokenizer(), Qwen3CoderFormat())
    specs = [Inhabitants.rank.spec]
    written = renderer.write("", [("rank", {"city": city, "year": 2024})], specs)
    action = renderer.parse(renderer.encode(written), "stop", specs)

    async def step() -> str:
        env = Inhabitants()
        await env.reset(Task(id="t", prompt="?"), seed=0)
        (feedback,) = (await env.step(action)).feedback
        return feedback.content

    assert asyncio.run(step()) == f"{city!r} 2025"


def test_a_value_of_another_type_stays_text_and_the_tool_says_so() -> None:
    renderer = ChatRenderer(tiny_tokenizer(), Qwen3CoderFormat())
    specs = [Inhabitants.rank.spec]
    written = renderer.write("", [("rank", {"city": "Oslo", "year": "soon"})], specs)
    (call,) = renderer.parse(renderer.encode(written), "stop", specs).tool_calls
    assert call.arguments == {"city": "Oslo", "year": "soon"}  # type: ignore[union-attr]
