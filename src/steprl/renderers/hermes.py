"""The Hermes format: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, as Hermes and Qwen write it.

The JSON is read by a JSON decoder from the opening tag on, so tags and braces inside its strings are
text. Nothing is repaired: what is not exactly well-formed is a MalformedCall that says what to change.

Thinking is never a call. ``<think>`` opens a thought up to the next ``</think>`` or the end of the text;
a ``</think>`` without its ``<think>`` closes one that the prompt opened, so all before it was thinking.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steprl.errors import ConfigError
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish, MalformedCall, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"

_EXAMPLE = OPEN + '{"name": "tool_name", "arguments": {"key": "value"}}' + CLOSE
_CUT = {
    "length": "cut at max tokens: the call was not finished, so it was not run. Write less before the call.",
    "abort": "cut by an abort: the call was not finished, so it was not run.",
}
_DEEPEST = 100  # far below what makes Python's JSON functions run out of stack, here or later
_TOO_DEEP = f"the JSON is nested too deeply: at most {_DEEPEST} levels"
_TAG = re.compile(f"{OPEN}|{THINK}|{END_THINK}")
_TRAILING_COMMA = re.compile(r",\s*[}\]]")
_CONTROL = tuple(map(chr, range(32)))  # not allowed in a JSON string, so the mistake came before a cut
_PYTHON = re.compile(r"True\b|False\b|None\b")
_INK = re.compile(r"\S")
_BLANK = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:(?P<closed>")|\\?\Z)', re.DOTALL)

# Where a malformed call ends. Text after broken JSON may stand in a string whose quotes went wrong, so a
# further opening tag is part of the call and nothing in there is run; after whole JSON it is a new call.
_ENDS_BROKEN = re.compile(f"(?P<close>{CLOSE})|{THINK}|{END_THINK}")
_ENDS_WHOLE = re.compile(f"(?P<close>{CLOSE})|{OPEN}|{THINK}|{END_THINK}")


class HermesFormat:
    """Reads and writes ``<tool_call>`` blocks. See ToolCallFormat for the contract."""

    tags = (OPEN, CLOSE)

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every call outside of thinking, in order. Takes any text."""
        found: list[ParsedCall] = []
        at = number = 0
        while (tag := _TAG.search(text, at)) is not None:
            at = tag.end()
            if tag.group() == THINK:
                end = text.find(END_THINK, at)
                if end < 0:
                    break
                at = end + len(END_THINK)
            elif tag.group() == END_THINK:
                found.clear()
                number = 0
            else:
                found.append(_read(text, tag.start(), finish, f"call_{number}"))
                number += isinstance(found[-1].call, ToolCall)
                at = found[-1].end
        return tuple(found)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text, then every call between its tags, each on lines of its own.

        Raises:
            ConfigError: arguments that JSON or the format does not allow, or a text with tags in it that
                would be read as a call or hide one.
        """
        try:
            wanted = [{"name": name, "arguments": dict(arguments)} for name, arguments in calls]
            bodies = [json.dumps(call, ensure_ascii=False, allow_nan=False) for call in wanted]
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the calls {calls!r:.200} cannot be written as JSON: {error}. Arguments are text, finite "
                f"numbers, true, false, null, lists, and objects with text keys."
            ) from error
        written = "\n".join([*([text] if text else []), *(f"{OPEN}\n{body}\n{CLOSE}" for body in bodies)])
        found = [parsed.call for parsed in self.parse(written, "stop")]
        for call in found:
            if isinstance(call, MalformedCall):
                raise ConfigError(f"{written!r:.200} cannot be read as a call: {call.reason}")
        read = [
            {"name": call.name, "arguments": call.arguments} for call in found if isinstance(call, ToolCall)
        ]
        if read != [json.loads(body) for body in bodies]:
            raise ConfigError(
                f"{written!r:.200} would be read as {len(read)} tool calls, and {len(bodies)} are meant. A "
                f"text must not hold {OPEN} or an open {THINK}, nor close a thought behind a call."
            )
        return written


def _read(text: str, start: int, finish: Finish, call_id: str) -> ParsedCall:
    """The call whose opening tag stands at ``start``."""
    body = _after_blanks(text, start + len(OPEN))
    faults: list[str] = []
    try:
        value, end = _decoder(faults.append).raw_decode(text, body)
    except json.JSONDecodeError as error:
        return _broken(text, start, body, error, finish)
    except RecursionError:
        return _malformed(text, start, body, _ENDS_BROKEN, _TOO_DEEP, finish)
    if _depth(text[body:end]) > _DEEPEST:
        faults.append(_TOO_DEEP)
    close = _after_blanks(text, end)
    if not text.startswith(CLOSE, close):
        ends = _ENDS_WHOLE if isinstance(value, dict) else _ENDS_BROKEN
        reason = f"the JSON must be followed by {CLOSE} and nothing else"
        return _malformed(text, start, end, ends, f"{reason}. Write {_EXAMPLE}", finish)
    end = close + len(CLOSE)
    reason = faults[0] if faults else _objection(value)
    if reason:
        call = MalformedCall(raw=text[start:end], reason=f"{reason}. Write {_EXAMPLE}")
        return ParsedCall(call, start, end)
    return ParsedCall(ToolCall(name=value["name"], arguments=value["arguments"], id=call_id), start, end)


def _after_blanks(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None  # it matches nothing, too
    return blank.end()


def _depth(written: str) -> int:
    """How deeply valid JSON nests."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[{}\]]", _STRING.sub("", written)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _decoder(fault: Callable[[str], None]) -> json.JSONDecoder:
    """Reads JSON as the standard has it, and reports what Python's decoder lets pass."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) < len(items):
            counts = Counter(key for key, _ in items)
            twice = next(key for key, count in counts.items() if count > 1)
            fault(f"the key {twice!r} stands twice in one object")
        return value

    def constant(word: str) -> None:
        fault(f"{word} is not JSON")

    def real(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            fault(f"the number {digits[:40]} is out of range")
        return number

    def whole(digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python refuses to convert thousands of digits
            fault(f"a number of {len(digits)} digits is out of range")
            return 0

    return json.JSONDecoder(
        object_pairs_hook=pairs, parse_constant=constant, parse_float=real, parse_int=whole
    )


def _objection(value: Any) -> str:
    """Why decoded JSON is not a call; empty when it is one."""
    if not isinstance(value, dict):
        return "a call must be one JSON object with the keys name and arguments"
    unknown = sorted(value.keys() - {"name", "arguments"})
    if "name" not in value:
        return "the key 'name' is missing"
    if not isinstance(value["name"], str) or not value["name"]:
        return f"'name' must be the name of a tool, got {json.dumps(value['name'])[:80]}"
    if "arguments" not in value:
        instead = f" (found {', '.join(map(repr, unknown))})" if unknown else ""
        return f"the key 'arguments' is missing{instead}; without arguments write {{}}"
    arguments = value["arguments"]
    if isinstance(arguments, str):
        return "'arguments' must be a JSON object, not a string that holds one"
    if not isinstance(arguments, dict):
        got = json.dumps(arguments)[:80]
        return f"'arguments' must be a JSON object, got {got}; without arguments write {{}}"
    if unknown:
        return f"unknown key {unknown[0]!r}: a call has only name and arguments"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a string holds half of a surrogate pair (\\ud800 to \\udfff): write the character itself"
    return ""


def _broken(text: str, start: int, body: int, error: json.JSONDecodeError, finish: Finish) -> ParsedCall:
    """A call whose JSON stops making sense at ``error.pos``."""
    at, ran_out = error.pos, False
    scanned = body
    # quotes are looked for up to the mistake only: what follows is scanned by the calls in there
    while (quote := text.find('"', scanned, error.pos + 1)) >= 0:
        string = _STRING.match(text, quote)
        assert string is not None  # a quote always opens one
        scanned = string.end()
        if error.pos < string.end():  # tags count again from the string in which the JSON broke
            at = string.start()
            ran_out = string["closed"] is None and not text.startswith(_CONTROL, error.pos)
    if finish != "stop" and ran_out:
        return ParsedCall(MalformedCall(raw=text[start:], reason=_CUT[finish]), start, len(text))
    prose = error.pos == body and text[body : body + 1] not in tuple("{['\"")
    reason = f"{_explain(text, body, error)}. Write {_EXAMPLE}"
    return _malformed(text, start, at, _ENDS_WHOLE if prose else _ENDS_BROKEN, reason, finish)


def _explain(text: str, body: int, error: json.JSONDecodeError) -> str:
    at, message = error.pos, error.msg
    if _INK.search(text, at) is None:
        return "the JSON ends too early"
    if text.startswith(CLOSE, at):
        return f"the JSON is not finished before {CLOSE}: a brace or bracket is missing"
    comma = _TRAILING_COMMA.match(text, max(text.rfind(",", body, at + 1), body))
    if comma is not None and comma.end() > at:
        return "the JSON has a trailing comma: no comma before a closing brace or bracket"
    if text[at] == "'" or _PYTHON.match(text, at):
        return "this is a Python literal, not JSON: use double quotes, true, false, null"
    if message.startswith("Invalid control character"):
        return "a string holds a raw line break or control character: write \\n"
    return f"the JSON is not valid ({message.removesuffix(' at')} at {text[at : at + 20]!r})"


def _malformed(
    text: str, start: int, at: int, ends: re.Pattern[str], reason: str, finish: Finish
) -> ParsedCall:
    """A malformed call: it runs from ``start`` to the first of ``ends`` after ``at``, or to the end."""
    found = ends.search(text, at)
    if found is None:
        end, reason = len(text), _CUT.get(finish, reason)
    else:
        end = found.end() if found["close"] else found.start()
    return ParsedCall(MalformedCall(raw=text[start:end], reason=reason), start, end)
