"""The format of Qwen3-Coder: a call as nested tags, with every argument as bare text between its own.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

One line break after ``<parameter=key>`` and one before ``</parameter>`` are not part of the value. Nothing
in a value is escaped, so one that holds a tag of the format is ambiguous: it is malformed, and never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.renderers._reading import (
    END_THINK,
    THINK,
    Found,
    after_blanks,
    calls_outside_thinking,
    malformed_until,
    opening,
    well_formed,
)
from steprl.renderers._values import read_value, write_value
from steprl.renderers._writing import checked_json, read_back
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"

_EXAMPLE = f"{OPEN} {FUNCTION}tool_name> {PARAMETER}key> value {END_PARAMETER} {END_FUNCTION} {CLOSE}"
_ADVICE = (
    f"Values stand bare between tags: they hold no tag of the format, text that looks like JSON needs the "
    f"tool's schema to be read as text, and the text around holds no {OPEN} or {THINK}."
)
_OPENS = opening(f"(?P<call>{OPEN})|{FUNCTION}")
_NAME = r"[^\s<>=\"'/]+"
_FUNCTION = re.compile(f"{FUNCTION}({_NAME})>")
_PARAMETER = re.compile(f"{PARAMETER}({_NAME})>")
_TAG = re.compile("|".join((OPEN, CLOSE, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)))

# Where a malformed call ends. A further opening tag may stand in a value, unless no function was begun or
# the function is whole; so nothing inside of a broken call is run.
_ENDS_BROKEN = re.compile(f"(?P<close>{CLOSE})|{THINK}|{END_THINK}")
_ENDS_WHOLE = re.compile(f"(?P<close>{CLOSE})|{OPEN}|{THINK}|{END_THINK}")


class Qwen3CoderFormat:
    """Reads and writes calls in nested tags. See TypedFormat for the contract.

    Values are text; those of ``tools`` are read by the schemas of these (a number where the schema has one).
    Without a schema, what is JSON and no JSON text is that value, and anything else is text.
    """

    tags: tuple[str, ...] = (OPEN, CLOSE, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def typed(self, tools: Sequence[ToolSpec]) -> Qwen3CoderFormat:
        """This format, reading by the schemas of these tools."""
        return Qwen3CoderFormat(tools)

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every call outside of thinking, in order. Takes any text."""

        def read(met: re.Match[str]) -> Found:
            if met["call"]:
                call = self._read(text, met.start(), finish)
            else:
                reason = f"a call must be opened by {OPEN}"
                call = _unlike(text, met.start(), met.end(), reason, finish, ends=_ENDS_WHOLE)
            return (call,), call.end

        return calls_outside_thinking(text, _OPENS, read)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text, then every call with its tags on lines of their own.

        Raises:
            ConfigError: arguments that JSON does not allow or the tags cannot hold, or a text with tags in
                it that would be read as a call or hide one.
        """
        checked_json(calls)
        parts = [text] if text else []
        for name, arguments in calls:
            values = (
                f"{PARAMETER}{key}>\n{write_value(value)}\n{END_PARAMETER}\n"
                for key, value in arguments.items()
            )
            parts.append(f"{OPEN}\n{FUNCTION}{name}>\n{''.join(values)}{END_FUNCTION}\n{CLOSE}")
        return read_back(self, "\n".join(parts), calls, _ADVICE)

    def _read(self, text: str, start: int, finish: Finish) -> ParsedCall:
        """The call whose opening tag stands at ``start``."""
        at = after_blanks(text, start + len(OPEN))
        function = _FUNCTION.match(text, at)
        if function is None:
            reason = f"{OPEN} must be followed by {FUNCTION}tool_name>"
            ends = _ENDS_BROKEN if text.startswith(FUNCTION, at) else _ENDS_WHOLE
            return _unlike(text, start, at, reason, finish, ends=ends)
        arguments: dict[str, Any] = {}
        at = after_blanks(text, function.end())
        while (parameter := _PARAMETER.match(text, at)) is not None:
            key, value = parameter[1], parameter.end()
            tag = _TAG.search(text, value)
            if tag is None or tag.group() != END_PARAMETER:
                before = f" before {tag.group()}: no value may hold a tag of a call" if tag else ""
                reason = f"the value of '{key}' is not closed by {END_PARAMETER}{before}"
                return _unlike(text, start, value, reason, finish)
            if key in arguments:
                return _unlike(text, start, tag.end(), f"the parameter '{key}' stands twice", finish)
            arguments[key] = self._value(function[1], key, _bare(text[value : tag.start()]))
            at = after_blanks(text, tag.end())
        if not text.startswith(END_FUNCTION, at):
            here = f"{text[at : at + 20]!r} stands" if at < len(text) else "nothing stands"
            reason = f"{here} where {PARAMETER}key> or {END_FUNCTION} must stand"
            return _unlike(text, start, at, reason, finish)
        at = after_blanks(text, at + len(END_FUNCTION))
        if not text.startswith(CLOSE, at):
            reason = f"{END_FUNCTION} must be followed by {CLOSE}"
            return _unlike(text, start, at, reason, finish, ends=_ENDS_WHOLE)
        return well_formed(function[1], arguments, start, at + len(CLOSE))

    def _value(self, tool: str, key: str, written: str) -> Any:
        if tool not in self._tools:
            return read_value(written, None, {})
        schema = self._tools[tool].parameters
        return read_value(written, schema.get("properties", {}).get(key), schema.get("$defs", {}))


def _bare(value: str) -> str:
    """A value without the line break that its tags have on the inside."""
    value = value.removeprefix("\r\n") if value.startswith("\r\n") else value.removeprefix("\n")
    return value.removesuffix("\r\n") if value.endswith("\r\n") else value.removesuffix("\n")


def _unlike(
    text: str, start: int, at: int, reason: str, finish: Finish, *, ends: re.Pattern[str] = _ENDS_BROKEN
) -> ParsedCall:
    """A call whose tags go wrong at ``at``."""
    return malformed_until(text, start, at, ends, f"{reason}. Write {_EXAMPLE}", finish)
