"""Tools and their results in plain text, for formats that no chat template knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steprl.errors import ConfigError
from steprl.renderers._values import types_of
from steprl.renderers.formats import DescribedFormat
from steprl.types import Message, ToolSpec


def in_words(
    format: DescribedFormat, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> tuple[Message, ...]:
    """The messages with the tools described at the end of the system message, which is made if there is none,
    and results of tools as user messages: those that follow each other as one.

    Raises:
        ConfigError: the format cannot call one of the tools.
    """
    written: list[Message] = []
    results = False
    for message in messages:
        if message.role != "tool":
            written.append(message)
        elif results:
            content = f"{written[-1].content}\n{format.feedback(message.content)}"
            written[-1] = replace(written[-1], content=content)
        else:
            written.append(Message(role="user", content=format.feedback(message.content)))
        results = message.role == "tool"
    if not tools:
        return tuple(written)
    described = format.describe(tools)
    if written and written[0].role == "system":
        return (replace(written[0], content=f"{written[0].content}\n\n{described}"), *written[1:])
    return (Message(role="system", content=described), *written)


def listing(tools: Sequence[ToolSpec]) -> str:
    """A line for each tool: its name, its arguments with their types, and what it does."""
    return "\n".join(f"- {tool.name}({_arguments(tool)}): {tool.description}" for tool in tools)


def check_argument(format: str, tool: ToolSpec, argument: str) -> None:
    """Make sure that a tool can be called with this argument alone, as text.

    Raises:
        ConfigError: there is none of this name, others are needed as well, or it is no text.
    """
    known = _properties(tool)
    needed = sorted({*tool.parameters.get("required", ())} - {argument})
    if argument not in known:
        problem = f"it has no argument '{argument}'; it has {', '.join(known) or 'none'}"
    elif needed:
        problem = f"it needs {', '.join(needed)} as well, and the format writes one argument"
    elif "string" not in (types_of(known[argument], tool.parameters.get("$defs", {})) or ["string"]):
        problem = f"its argument '{argument}' is no text, and the format writes text"
    else:
        return
    raise ConfigError(
        f"the format '{format}' cannot call the tool '{tool.name}' with '{argument}': {problem}. Set "
        f"model.format_args, or use a format with named arguments, such as hermes."
    )


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    return properties


def _arguments(tool: ToolSpec) -> str:
    required, defined = tool.parameters.get("required", ()), tool.parameters.get("$defs", {})
    return ", ".join(
        f"{name}: {_kind(types_of(schema, defined))}{optional}{_about(schema)}"
        for name, schema in _properties(tool).items()
        for optional in ("" if name in required else ", optional",)
    )


def _kind(types: frozenset[str] | None) -> str:
    return "any" if types is None else " or ".join(sorted(types))


def _about(schema: Mapping[str, Any]) -> str:
    return f" ({schema['description']})" if "description" in schema else ""
