"""The ReAct format (arXiv:2210.03629): lines of ``Thought:``, ``Action:`` and ``Action Input:``.

    Thought: I need the number of inhabitants.
    Action: population
    Action Input: {"city": "Oslo"}

The input is a JSON object; for a tool that has one argument it may be this one's text. It runs to the next
line that opens with such a word, or to the end. ``Observation:`` is the environment's: a turn may end in it,
which is where a stop string cuts it, but a model that goes on makes its results up. That is malformed, like
anything else that is, up to the end of the turn: nothing in there is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.errors import ConfigError
from steprl.renderers._describing import check_argument, listing
from steprl.renderers._json import Broken, decode
from steprl.renderers._reading import (
    CUT,
    END_THINK,
    THINK,
    Found,
    after_blanks,
    calls_outside_thinking,
    malformed,
    next_thinking,
    opening,
    well_formed,
)
from steprl.renderers._writing import as_json, checked_json, read_back
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish, ToolSpec

ACTION, INPUT, OBSERVATION = "Action:", "Action Input:", "Observation:"

_EXAMPLE = f"two lines, {ACTION} tool_name and {INPUT} " + '{"key": "value"}'
_ADVICE = f"No line of the text may open with {ACTION}, {INPUT}, {OBSERVATION} or Final Answer:."
_LINE = (
    rf"(?:^|(?<={END_THINK}))[ \t]*(?P<word>[*#]*[ \t]*"
    r"(?P<kind>Thought|Action Input|Action|Observation|Final Answer)(?:[ \t]\d+)?[ \t]*:\**)"
)
_OPENS = opening(_LINE, re.MULTILINE)
_SECTION = re.compile(f"{_LINE}|{THINK}|{END_THINK}", re.MULTILINE)
_NAME = re.compile(r"[ \t]*(?P<name>[^\s\[\](){}<>\"'`*:,]+)[ \t]*(?=\r?\n|\Z)")
_INPUT = re.compile(rf"\s*^[ \t]*{INPUT}", re.MULTILINE)


class ReactFormat:
    """Reads and writes actions in lines. See DescribedFormat for the contract.

    Args:
        bare: tools whose input may be bare text, each with the argument that the text is, such as
            ``{"search": "query"}``.

    Raises:
        ConfigError: ``bare`` is something else.
    """

    tags: tuple[str, ...] = (ACTION, INPUT)

    def __init__(self, bare: Mapping[str, str] | None = None) -> None:
        self._bare = dict(bare or {})
        if not all(isinstance(argument, str) and argument for argument in self._bare.values()):
            raise ConfigError(
                f'format react: bare maps tools to arguments {{"tool": "argument"}}, got {bare!r}'
            )

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every call outside of thinking, in order. Takes any text."""

        def read(met: re.Match[str]) -> Found:
            if met["kind"] == "Thought":
                return (), met.end()
            if met["kind"] == "Final Answer":
                return (), next_thinking(text, met.end())
            call = _observed(text, met) if met["kind"] == "Observation" else self._read(text, met, finish)
            return ((), met.end()) if call is None else ((call,), call.end)

        return calls_outside_thinking(text, _OPENS, read)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text, then two lines for every call; the input is bare where it may be and JSON elsewhere.

        Raises:
            ConfigError: arguments that JSON does not allow, or a text that would be read as a call.
        """
        checked_json(calls)
        blocks = (f"{ACTION} {name}\n{INPUT} {self._input(name, arguments)}" for name, arguments in calls)
        return read_back(self, "\n".join([*([text] if text else []), *blocks]), calls, _ADVICE)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """See DescribedFormat.

        Raises:
            ConfigError: a tool of ``bare`` does not have the argument, or not this one alone.
        """
        bare = [tool for tool in tools if tool.name in self._bare]
        for tool in bare:
            check_argument("react", tool, self._bare[tool.name])
        alone = f" (of {', '.join(tool.name for tool in bare)}: its text alone)" if bare else ""
        return (
            f"You have these tools:\n{listing(tools)}\n\nTo use one, write\nThought: what you think\n"
            f"{ACTION} the tool's name\n{INPUT} its arguments as a JSON object on one line{alone}\n"
            f"and stop. Its result comes back on a line that begins with '{OBSERVATION}'. A turn without "
            f"'{ACTION}' is your answer."
        )

    def feedback(self, content: str) -> str:
        """``Observation: …``"""
        return f"{OBSERVATION} {content}"

    def _input(self, name: str, arguments: Mapping[str, Any]) -> str:
        value = arguments.get(self._bare[name]) if name in self._bare and len(arguments) == 1 else None
        if isinstance(value, str) and value and value == value.strip() and not value.startswith("{"):
            if _SECTION.search(f" {value}", 1) is None:
                return value
        return as_json(dict(arguments))

    def _read(self, text: str, met: re.Match[str], finish: Finish) -> ParsedCall:
        """The call whose first word is ``met``."""
        start, at = met.start("word"), met.end()
        if met["word"] != ACTION:
            met_first = f"{INPUT} stands without {ACTION} before it"
            reason = met_first if met["word"] == INPUT else f"{met['word']!r} is not {ACTION}"
            return _unlike(text, start, reason)
        named = _NAME.match(text, at)
        if named is None:
            reason = f"{ACTION} must be followed by the name of a tool and nothing else"
            return _unlike(text, start, reason, cut=finish if "\n" not in text[at:] else "stop")
        given = _INPUT.match(text, named.end())
        if given is None:
            begun = INPUT.startswith(text[named.end() :].strip())
            reason = f"the line after {ACTION} must be {INPUT}"
            return _unlike(text, start, reason, cut=finish if begun else "stop")
        name, body = named["name"], after_blanks(text, given.end())
        if text.startswith("{", body):
            return _json_input(text, start, name, body, finish)
        following = _SECTION.search(text, given.end())
        value = text[body : len(text) if following is None else following.start()].rstrip()
        if following is None and finish != "stop":
            return _unlike(text, start, CUT[finish], cut=finish)
        if name not in self._bare:
            return _unlike(text, start, f"{INPUT} must be one JSON object, got {value[:40]!r}")
        if not value:
            return _unlike(text, start, f"{INPUT} is empty")
        return well_formed(name, {self._bare[name]: value}, start, body + len(value))


def _observed(text: str, met: re.Match[str]) -> ParsedCall | None:
    """What a model made up; nothing when it only left off where the environment writes on."""
    end = next_thinking(text, met.end())
    if not text[met.end() : end].strip():
        return None
    reason = f"{OBSERVATION} is written by the environment, never by you: stop after {INPUT}"
    return malformed(text, met.start("word"), end, reason)


def _json_input(text: str, start: int, name: str, body: int, finish: Finish) -> ParsedCall:
    """A call whose input is JSON that begins at ``body``."""
    found = decode(text, body)
    if isinstance(found, Broken):
        ended = found.ran_out or after_blanks(text, found.position) == len(text)
        return _unlike(text, start, found.reason, cut=finish if ended else "stop")
    following = _SECTION.search(text, found.end)
    if text[found.end : len(text) if following is None else following.start()].strip():
        return _unlike(text, start, "nothing may follow the JSON object")
    if found.fault:
        return _unlike(text, start, found.fault)
    return well_formed(name, found.value, start, found.end)


def _unlike(text: str, start: int, reason: str, *, cut: Finish = "stop") -> ParsedCall:
    """A malformed call: it takes the rest of the turn, since broken JSON does not tell where it ends."""
    return malformed(text, start, next_thinking(text, start), CUT.get(cut, f"{reason}. Write {_EXAMPLE}"))
