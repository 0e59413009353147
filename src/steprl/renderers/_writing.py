"""What every format does alike when it writes: arguments as JSON has them, and the proof that they are read
back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.errors import ConfigError
from steprl.renderers.formats import ToolCallFormat
from steprl.types import MalformedCall, ToolCall

Calls = Sequence[tuple[str, Mapping[str, Any]]]


def as_json(value: Any) -> str:
    """One line of JSON, letters of any language as they are."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def checked_json(calls: Calls) -> list[str]:
    """Each call as one line ``{"name": …, "arguments": …}``.

    Raises:
        ConfigError: JSON does not allow the arguments.
    """
    try:
        return [as_json({"name": name, "arguments": dict(arguments)}) for name, arguments in calls]
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the calls {calls!r:.200} cannot be written as JSON: {error}. Arguments are text, finite "
            f"numbers, true, false, null, lists, and objects with text keys."
        ) from error


def read_back(format: ToolCallFormat, written: str, calls: Calls, advice: str) -> str:
    """``written``, once it is known that ``format`` reads exactly these calls in it.

    Raises:
        ConfigError: it does not; ``advice`` says what may be the cause.
    """
    wanted = checked_json(calls)
    found = [parsed.call for parsed in format.parse(written, "stop")]
    for call in found:
        if isinstance(call, MalformedCall):
            raise ConfigError(f"{written!r:.200} cannot be read as a call: {call.reason}")
    read = checked_json([(call.name, call.arguments) for call in found if isinstance(call, ToolCall)])
    if len(read) != len(wanted):
        raise ConfigError(
            f"{written!r:.200} would be read as {len(read)} tool calls, and {len(wanted)} are meant. {advice}"
        )
    for meant, understood in zip(wanted, read, strict=True):
        if meant != understood:
            raise ConfigError(f"the call {meant:.200} would be read as {understood:.200}. {advice}")
    return written
