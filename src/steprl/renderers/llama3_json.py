"""The JSON format of Llama 3.1: ``{"name": …, "parameters": {…}}``, where the whole text is the call.

``<|python_tag|>`` may stand before a call, ``<|eom_id|>`` behind the last one, and ``;`` between several. A
text is meant as calls when it begins with ``<|python_tag|>``, or with an object whose first key is one of a
call's, at its very beginning or right behind a thought. Any other text is prose, JSON in it included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.renderers._json import Broken, decode, objection
from steprl.renderers._reading import (
    CUT,
    END_THINK,
    THINK,
    Found,
    after_blanks,
    calls_outside_thinking,
    malformed,
    malformed_until,
    next_thinking,
    opening,
    well_formed,
)
from steprl.renderers._writing import as_json, checked_json, read_back
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish

PYTHON_TAG, END_OF_MESSAGE = "<|python_tag|>", "<|eom_id|>"

_EXAMPLE = '{"name": "tool_name", "parameters": {"key": "value"}}'
_ADVICE = "Calls are the whole text: nothing but a thought stands before them, and a text alone is no call."
_TAG = re.escape(PYTHON_TAG)
_BLANK = r"[ \t\r\n]*"
_OPENS = opening(rf"(?:\A|(?<={END_THINK})){_BLANK}(?P<call>(?P<tag>{_TAG})|[\[{{])")
_MEANT = re.compile(
    r"\[?\s*\{\s*(?:[\"']?(?:name|parameters|arguments|function)\b|[\"']?type[\"']?\s*:\s*[\"']function\b)"
)
_BARELY_BEGUN = re.compile(r"\[?\s*(?:\{\s*(?:[\"']\w*)?)?\Z")
_NEXT = re.compile(rf"{_BLANK};{_BLANK}(?P<call>(?:{_TAG}{_BLANK})?(?=\{{))")
_LAST = re.compile(rf"{_BLANK}(?:{re.escape(END_OF_MESSAGE)}{_BLANK})?(?:\Z|{THINK}|{END_THINK})")
_NEXT_CUT = re.compile(rf"{_BLANK};{_BLANK}(?:{_TAG}{_BLANK})?\Z")
_THINKING = re.compile(f"{THINK}|{END_THINK}")


class Llama3JsonFormat:
    """Reads and writes texts that are one call or several. See ToolCallFormat for the contract."""

    tags: tuple[str, ...] = ('{"name": ', ', "parameters": ')

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """The calls that the text is, outside of thinking; none when it is prose. Takes any text."""

        def read(met: re.Match[str]) -> Found:
            start = met.start("call")
            if not met["tag"] and not _is_meant(text, start, finish):
                return (), met.end()
            calls = [_read(text, start, after_blanks(text, met.end("tag") if met["tag"] else start), finish)]
            while (following := _NEXT.match(text, calls[-1].end)) is not None:
                calls.append(_read(text, following.start("call"), following.end(), finish))
            return calls, calls[-1].end

        return calls_outside_thinking(text, _OPENS, read)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text alone, or the calls alone; text before calls can only be a thought.

        Raises:
            ConfigError: arguments that JSON does not allow, or a text that is more than a thought.
        """
        checked_json(calls)
        bodies = (as_json({"name": name, "parameters": dict(arguments)}) for name, arguments in calls)
        written = "; ".join(bodies)
        return read_back(self, "\n".join(part for part in (text, written) if part), calls, _ADVICE)


def _is_meant(text: str, start: int, finish: Finish) -> bool:
    """Whether the JSON at ``start`` is meant as a call; one cut before its first key may have been."""
    if _MEANT.match(text, start) is not None:
        return True
    return finish != "stop" and _BARELY_BEGUN.match(text, start) is not None


def _read(text: str, start: int, body: int, finish: Finish) -> ParsedCall:
    """The call that begins at ``start``, its JSON at ``body``."""
    found = decode(text, body)
    if isinstance(found, Broken):
        if finish != "stop" and found.ran_out:
            return malformed(text, start, len(text), CUT[finish])
        reason = f"{found.reason}. Write {_EXAMPLE}"
        return malformed_until(text, start, found.outside, _THINKING, reason, finish)
    followed = (_LAST, _NEXT) if finish == "stop" else (_LAST, _NEXT, _NEXT_CUT)
    if not any(pattern.match(text, found.end) for pattern in followed):
        reason = "a call is the whole text, so nothing may follow it but ; and a further one"
        return malformed(text, start, next_thinking(text, found.end), f"{reason}. Write {_EXAMPLE}")
    reason = found.fault or objection(found.value, "parameters")
    if reason:
        return malformed(text, start, found.end, f"{reason}. Write {_EXAMPLE}")
    return well_formed(found.value["name"], found.value["parameters"], start, found.end)
