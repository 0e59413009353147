"""Thinking left out: the model sees what it said and did before, not what it thought.

The record keeps every thought, and trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from steprl.context._options import text, whole
from steprl.context._thinking import without_thinking
from steprl.types import Action, Actor, History, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkStrip:
    """Everything, but no thinking in actions before the last ``keep_last``.

    An action that loses its thinking also loses its token ids, which would say something else than its text;
    one without any keeps them. Tool calls that stand inside a thought go with it.

    Args:
        opening, closing: the tags around a thought.
        keep_last: the newest actions, whose thinking is still seen.

    Raises:
        ConfigError: an option has a value that it cannot have.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    keep_last: int = 0

    def __post_init__(self) -> None:
        text("think_strip", "opening", self.opening, meaning="the tag that begins a thought")
        text("think_strip", "closing", self.closing, meaning="the tag that ends a thought")
        whole("think_strip", "keep_last", self.keep_last, least=0, meaning="last actions that keep theirs")

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt. The policy is not asked for anything."""
        messages = list(history.opening)
        stripped = len(history.rounds) - self.keep_last
        for number, past in enumerate(history.rounds):
            said = self._said(past.action) if number < stripped else past.action.message()
            messages += [said, *past.feedback]
        return messages

    def _said(self, action: Action) -> Message:
        said = without_thinking(action.text, self.opening, self.closing)
        if said == action.text:
            return action.message()
        return replace(action.message(), content=said, token_ids=None)
