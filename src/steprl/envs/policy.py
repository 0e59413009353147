"""Scripted policies: they read what a model reads, say what a model would say, and need no model.

They show what an environment is worth (its checker plays them) and what a small policy is warmed up on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from steprl.errors import ConfigError
from steprl.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One turn of a scripted policy: text, then tool calls as (name, arguments). Without calls, ``text`` is
    the answer. How a model writes a call is the renderer's business, so a move fits any tool-call format."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def check_probabilities(policy: object, *names: str) -> None:
    """Refuse a slip of a scripted policy that is not as likely as something between never and always.

    Raises:
        ConfigError: a value of these names is not in [0, 1].
    """
    for name in names:
        value = getattr(policy, name)
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"{type(policy).__name__}: {name} is a probability, from 0 to 1, got {value}")


class ScriptedPolicy(Protocol):
    """A function of the messages alone, so that episodes may be played in any order."""

    def act(self, messages: Sequence[Message]) -> Move:
        """The next turn, given everything the agent has read and said so far."""
        ...


@runtime_checkable
class Summarising(Protocol):
    """What a scripted policy has besides, where a context rule asks the policy for summaries."""

    def summarise(self, messages: Sequence[Message]) -> str:
        """The summary, given what the agent is shown; the last message asks for it."""
        ...
