"""Nested parts of a record as JSON text, and back: named numbers, messages, tool calls.

Every cell is strict JSON, so that pandas, DuckDB and others can look inside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.types import MalformedCall, Message, ToolCall


def _dumps(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # a model can write the escape of half a character, which UTF-8 cannot hold but an escape can
        return json.dumps(value, allow_nan=False)
    return text


def write_numbers(numbers: Mapping[str, float]) -> str:
    """Named numbers as an object. JSON has no NaN and no infinity: those become strings."""
    values = {name: float(value) for name, value in numbers.items()}
    return _dumps({name: value if math.isfinite(value) else str(value) for name, value in values.items()})


def read_numbers(cell: str) -> dict[str, float]:
    """Inverse of :func:`write_numbers`."""
    return {name: float(value) for name, value in json.loads(cell).items()}


def write_messages(messages: Sequence[Message]) -> str:
    """Messages as a list of objects; fields that are None are left out."""
    return _dumps([_message(message) for message in messages])


def _message(message: Message) -> dict[str, Any]:
    fields = {
        "role": message.role,
        "content": message.content,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "mark": message.mark,
        "token_ids": None if message.token_ids is None else [int(token) for token in message.token_ids],
    }
    return {name: value for name, value in fields.items() if value is not None}


def read_messages(cell: str) -> tuple[Message, ...]:
    """Inverse of :func:`write_messages`."""
    return tuple(
        Message(**{**fields, "token_ids": tuple(fields["token_ids"])} if "token_ids" in fields else fields)
        for fields in json.loads(cell)
    )


def write_calls(calls: Sequence[ToolCall | MalformedCall]) -> str:
    """Calls as a list of objects; a malformed one has ``raw`` and ``reason`` instead of a name.

    Arguments, which have to be JSON values, are an object. When a model wrote NaN or Infinity into
    them, which JSON has not, they are that text as one string.
    """
    return _dumps([_call(call) for call in calls])


def _call(call: ToolCall | MalformedCall) -> dict[str, Any]:
    span = [int(call.span[0]), int(call.span[1])]
    if isinstance(call, MalformedCall):
        return {"raw": call.raw, "reason": call.reason, "span": span}
    arguments: dict[str, Any] | str = dict(call.arguments)
    text = json.dumps(arguments)
    if _has_constants(text):
        arguments = text
    return {"name": call.name, "arguments": arguments, "id": call.id, "span": span}


def _has_constants(text: str) -> bool:
    """True when JSON text uses NaN, Infinity or -Infinity as a value."""
    found: list[str] = []
    json.loads(text, parse_constant=found.append)
    return bool(found)


def read_calls(cell: str) -> tuple[ToolCall | MalformedCall, ...]:
    """Inverse of :func:`write_calls`."""
    return tuple(_read_call(fields) for fields in json.loads(cell))


def _read_call(fields: dict[str, Any]) -> ToolCall | MalformedCall:
    span = (fields["span"][0], fields["span"][1])
    if "reason" in fields:
        return MalformedCall(raw=fields["raw"], reason=fields["reason"], span=span)
    arguments = fields["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return ToolCall(name=fields["name"], arguments=arguments, id=fields["id"], span=span)
