"""Sliding window: the opening, and the newest rounds as they are.

Prompts stay as short as ``rounds`` rounds are. What fell out of the window is not seen again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steprl.context._options import whole
from steprl.types import Actor, History, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """The opening messages, and the last ``rounds`` rounds: each action with its exact ids, and its feedback.

    Raises:
        ConfigError: ``rounds`` is not a whole number of at least 1.
    """

    rounds: int

    def __post_init__(self) -> None:
        whole(
            "sliding_window", "rounds", self.rounds, least=1, meaning="how many of the last rounds are seen"
        )

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt. The policy is not asked for anything."""
        messages = list(history.opening)
        for past in history.rounds[-self.rounds :]:
            messages += [past.action.message(), *past.feedback]
        return messages
