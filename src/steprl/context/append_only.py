"""Append-only context: everything that was said, in order.

Each prompt extends the one before it, so the steps of an episode can be merged into one training row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steprl.types import Actor, History, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOnly:
    """The opening messages, then of every round the action with its exact ids, and its feedback."""

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt. The policy is not asked for anything."""
        messages = list(history.opening)
        for past in history.rounds:
            messages += [past.action.message(), *past.feedback]
        return messages
