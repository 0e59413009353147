"""What every format does alike when it reads: thinking is never a call, and a malformed call has an end.

``<think>`` opens a thought up to the next ``</think>`` or the end of the text; a ``</think>`` without its
``<think>`` closes one that the prompt opened, so all before it was thinking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from steprl.renderers.formats import ParsedCall
from steprl.types import Finish, MalformedCall, ToolCall

THINK, END_THINK = "<think>", "</think>"
CUT = {
    "length": "cut at max tokens: the call was not finished, so it was not run. Write less before the call.",
    "abort": "cut by an abort: the call was not finished, so it was not run.",
}

Found = tuple[Sequence[ParsedCall], int]
"""The calls that were read, and where in the text to go on."""

_THINKING = re.compile(f"{THINK}|{END_THINK}")
_BLANK = re.compile(r"[ \t\n\r]*")


def opening(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern of ``calls_outside_thinking``: where thinking begins or ends, or ``pattern`` matches."""
    return re.compile(f"(?P<think>{THINK})|(?P<end_think>{END_THINK})|{pattern}", flags)


def calls_outside_thinking(
    text: str, opens: re.Pattern[str], read: Callable[[re.Match[str]], Found]
) -> tuple[ParsedCall, ...]:
    """Every call outside of thinking, in order, the well-formed ones numbered.

    ``read`` is asked at each match of ``opens``, which ``opening`` made, and may find no call there.
    """
    found: list[ParsedCall] = []
    at = 0
    while (met := opens.search(text, at)) is not None:
        if met["think"]:
            end = text.find(END_THINK, met.end())
            if end < 0:
                break
            at = end + len(END_THINK)
        elif met["end_think"]:
            found.clear()
            at = met.end()
        else:
            calls, at = read(met)
            found.extend(calls)
    return tuple(_numbered(found))


def _numbered(found: Sequence[ParsedCall]) -> Sequence[ParsedCall]:
    numbered: list[ParsedCall] = []
    number = 0
    for parsed in found:
        if isinstance(parsed.call, ToolCall):
            parsed = parsed._replace(call=replace(parsed.call, id=f"call_{number}"))
            number += 1
        numbered.append(parsed)
    return numbered


def well_formed(name: str, arguments: dict[str, object], start: int, end: int) -> ParsedCall:
    """A call at ``text[start:end]``, not numbered yet."""
    return ParsedCall(ToolCall(name=name, arguments=arguments, id=""), start, end)


def malformed(text: str, start: int, end: int, reason: str) -> ParsedCall:
    """``text[start:end]`` cannot be read as a call."""
    return ParsedCall(MalformedCall(raw=text[start:end], reason=reason), start, end)


def malformed_until(
    text: str, start: int, at: int, ends: re.Pattern[str], reason: str, finish: Finish
) -> ParsedCall:
    """A malformed call from ``start`` to the first of ``ends`` after ``at``; what ``ends`` calls ``close``
    belongs to it. One that runs to the end of a text that was cut was cut itself."""
    found = ends.search(text, at)
    if found is None:
        return malformed(text, start, len(text), CUT.get(finish, reason))
    return malformed(text, start, found.end() if found.groupdict().get("close") else found.start(), reason)


def next_thinking(text: str, at: int) -> int:
    """Where thinking begins or ends next, or the end of the text."""
    found = _THINKING.search(text, at)
    return len(text) if found is None else found.start()


def after_blanks(text: str, at: int) -> int:
    """The first position from ``at`` on that is no white space, or the end of the text."""
    blank = _BLANK.match(text, at)
    assert blank is not None  # it matches nothing, too
    return blank.end()
