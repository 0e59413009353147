"""The Hermes format: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, as Hermes and Qwen write it.

The JSON is read by a JSON decoder from the opening tag on, so tags and braces inside its strings are
text. Nothing is repaired: what is not exactly well-formed is a MalformedCall that says what to change.
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
    opening,
    well_formed,
)
from steprl.renderers._writing import checked_json, read_back
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_EXAMPLE = OPEN + '{"name": "tool_name", "arguments": {"key": "value"}}' + CLOSE
_ADVICE = f"A text must not hold {OPEN} or an open {THINK}, nor close a thought behind a call."
_OPENS = opening(OPEN)

# Where a malformed call ends. Text after broken JSON may stand in a string whose quotes went wrong, so a
# further opening tag is part of the call and nothing in there is run; after whole JSON it is a new call.
_ENDS_BROKEN = re.compile(f"(?P<close>{CLOSE})|{THINK}|{END_THINK}")
_ENDS_WHOLE = re.compile(f"(?P<close>{CLOSE})|{OPEN}|{THINK}|{END_THINK}")


class HermesFormat:
    """Reads and writes ``<tool_call>`` blocks. See ToolCallFormat for the contract."""

    tags: tuple[str, ...] = (OPEN, CLOSE)

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every call outside of thinking, in order. Takes any text."""

        def read(met: re.Match[str]) -> Found:
            call = _read(text, met.start(), finish)
            return (call,), call.end

        return calls_outside_thinking(text, _OPENS, read)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text, then every call between its tags, each on lines of its own.

        Raises:
            ConfigError: arguments that JSON or the format does not allow, or a text with tags in it that
                would be read as a call or hide one.
        """
        blocks = [f"{OPEN}\n{body}\n{CLOSE}" for body in checked_json(calls)]
        return read_back(self, "\n".join([*([text] if text else []), *blocks]), calls, _ADVICE)


def _read(text: str, start: int, finish: Finish) -> ParsedCall:
    """The call whose opening tag stands at ``start``."""
    body = after_blanks(text, start + len(OPEN))
    found = decode(text, body, close=CLOSE)
    if isinstance(found, Broken):
        return _broken(text, start, body, found, finish)
    close = after_blanks(text, found.end)
    if not text.startswith(CLOSE, close):
        ends = _ENDS_WHOLE if isinstance(found.value, dict) else _ENDS_BROKEN
        reason = f"the JSON must be followed by {CLOSE} and nothing else. Write {_EXAMPLE}"
        return malformed_until(text, start, found.end, ends, reason, finish)
    end = close + len(CLOSE)
    reason = found.fault or objection(found.value, "arguments")
    if reason:
        return malformed(text, start, end, f"{reason}. Write {_EXAMPLE}")
    return well_formed(found.value["name"], found.value["arguments"], start, end)


def _broken(text: str, start: int, body: int, broken: Broken, finish: Finish) -> ParsedCall:
    """A call whose JSON, which begins at ``body``, is broken."""
    if finish != "stop" and broken.ran_out:
        return malformed(text, start, len(text), CUT[finish])
    prose = broken.position == body and text[body : body + 1] not in tuple("{['\"")
    ends = _ENDS_WHOLE if prose else _ENDS_BROKEN
    reason = f"{broken.reason}. Write {_EXAMPLE}"
    return malformed_until(text, start, broken.outside, ends, reason, finish)
