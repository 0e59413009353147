"""JSON as the standard has it, with the reasons that an agent is told when it is not; and calls in JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_DEEPEST = 100  # far below what makes Python's JSON functions run out of stack, here or later
_TOO_DEEP = f"the JSON is nested too deeply: at most {_DEEPEST} levels"
_TRAILING_COMMA = re.compile(r",\s*[}\]]")
_CONTROL = tuple(map(chr, range(32)))  # not allowed in a JSON string, so the mistake came before a cut
_PYTHON = re.compile(r"True\b|False\b|None\b")
_INK = re.compile(r"\S")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:(?P<closed>")|\\?\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A value that ends at ``end``. ``fault`` says what the standard forbids and Python lets pass."""

    value: Any
    end: int
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What stops making sense at ``position``.

    From ``outside`` on, text is text again: the string in which the JSON broke begins there. ``ran_out``: it
    broke because the text ended inside a string.
    """

    reason: str
    position: int
    outside: int
    ran_out: bool


def decode(text: str, at: int, *, close: str = "") -> Decoded | Broken:
    """The JSON that begins at ``at``; ``close`` is what the format writes behind it."""
    faults: list[str] = []
    try:
        value, end = _decoder(faults.append).raw_decode(text, at)
    except json.JSONDecodeError as error:
        return _broken(text, at, error, close)
    except RecursionError:
        return Broken(reason=_TOO_DEEP, position=at, outside=at, ran_out=False)
    if _depth(text[at:end]) > _DEEPEST:
        faults.append(_TOO_DEEP)
    if not faults:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            faults.append(
                "a string holds half of a surrogate pair (\\ud800 to \\udfff): write the character itself"
            )
    return Decoded(value=value, end=end, fault=faults[0] if faults else "")


def objection(value: Any, key: str) -> str:
    """Why decoded JSON is not a call with its arguments under ``key``; empty when it is one."""
    if not isinstance(value, dict):
        return f"a call must be one JSON object with the keys name and {key}"
    unknown = sorted(value.keys() - {"name", key})
    if "name" not in value:
        return "the key 'name' is missing"
    if not isinstance(value["name"], str) or not value["name"]:
        return f"'name' must be the name of a tool, got {json.dumps(value['name'])[:80]}"
    if key not in value:
        instead = f" (found {', '.join(map(repr, unknown))})" if unknown else ""
        return f"the key '{key}' is missing{instead}; without arguments write {{}}"
    arguments = value[key]
    if isinstance(arguments, str):
        return f"'{key}' must be a JSON object, not a string that holds one"
    if not isinstance(arguments, dict):
        got = json.dumps(arguments)[:80]
        return f"'{key}' must be a JSON object, got {got}; without arguments write {{}}"
    if unknown:
        return f"unknown key {unknown[0]!r}: a call has only name and {key}"
    return ""


def _depth(written: str) -> int:
    """How deeply valid JSON nests."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[{}\]]", _STRING.sub("", written)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _decoder(fault: Callable[[str], None]) -> json.JSONDecoder:
    """Reads JSON and reports what Python's decoder lets pass."""

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


def _broken(text: str, body: int, error: json.JSONDecodeError, close: str) -> Broken:
    """JSON that begins at ``body`` and stops making sense at ``error.pos``."""
    outside, ran_out = error.pos, False
    scanned = body
    # quotes are looked for up to the mistake only: what follows is scanned by the calls in there
    while (quote := text.find('"', scanned, error.pos + 1)) >= 0:
        string = _STRING.match(text, quote)
        assert string is not None  # a quote always opens one
        scanned = string.end()
        if error.pos < string.end():
            outside = string.start()
            ran_out = string["closed"] is None and not text.startswith(_CONTROL, error.pos)
    reason = _explain(text, body, error, close)
    return Broken(reason=reason, position=error.pos, outside=outside, ran_out=ran_out)


def _explain(text: str, body: int, error: json.JSONDecodeError, close: str) -> str:
    at, message = error.pos, error.msg
    if _INK.search(text, at) is None:
        return "the JSON ends too early"
    if close and text.startswith(close, at):
        return f"the JSON is not finished before {close}: a brace or bracket is missing"
    comma = _TRAILING_COMMA.match(text, max(text.rfind(",", body, at + 1), body))
    if comma is not None and comma.end() > at:
        return "the JSON has a trailing comma: no comma before a closing brace or bracket"
    if text[at] == "'" or _PYTHON.match(text, at):
        return "this is a Python literal, not JSON: use double quotes, true, false, null"
    if message.startswith("Invalid control character"):
        return "a string holds a raw line break or control character: write \\n"
    return f"the JSON is not valid ({message.removesuffix(' at')} at {text[at : at + 20]!r})"
