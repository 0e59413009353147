"""Chat messages and tool calls: what a context rule arranges and a renderer turns into tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
Span = tuple[int, int]
"""Half-open range ``[start, end)`` in the action's tokens."""
Mark = Literal["evidence", "state"]
"""What an environment tells context rules about a message: worth keeping, or the state as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What the model is told about a tool: name, description, JSON schema of the arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The OpenAI-style function schema that chat templates expect."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A well-formed request to run a tool. ``span`` are the action tokens that wrote it."""

    name: str
    arguments: Mapping[str, Any]
    id: str
    span: Span = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """A tool call that could not be read. It is never executed; ``reason`` is told to the agent."""

    raw: str
    reason: str
    span: Span = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message.

    ``token_ids`` are the exact ids of an assistant message that was sampled: a renderer puts them
    into the next prompt as they are, so that the text is never tokenised a second time.

    ``mark`` is for context rules: no renderer shows it. "evidence" is worth keeping; "state" says all there
    is to know at that moment, so that a later one replaces it.
    """

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    token_ids: tuple[int, ...] | None = None
    mark: Mark | None = None

    def __post_init__(self) -> None:
        if self.mark is not None and self.mark not in get_args(Mark):
            raise ValueError(f"mark must be one of {', '.join(get_args(Mark))}, or None; got {self.mark!r}")
        if self.token_ids is not None and self.role != "assistant":
            raise ValueError(f"only assistant messages carry sampled token ids, got role '{self.role}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem: data only, no behaviour. Environments read it, checkers compare with ``answer``.

    ``prompt`` is what the agent is asked; ``answer`` and ``data`` are for the environment alone.
    """

    id: str
    prompt: str = ""
    answer: Any = None
    data: Mapping[str, Any] = field(default_factory=dict)


def finite(value: object, name: str) -> float:
    """``value`` as a float, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        # numpy scalars register as numbers through float(); anything else is refused
        if not hasattr(value, "dtype") or getattr(value, "shape", None) != ():
            raise ValueError(f"{name} must be a finite number, got {value!r}")
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number
