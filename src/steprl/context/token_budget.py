"""Token budget: when the prompt grows too long, the oldest outputs go first.

Actions stay as they were sampled, so the model always sees what it did, if not all that came of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steprl.context._options import below_context, text, whole
from steprl.types import Actor, History, Message

_Place = tuple[int, int]
"""A round, and a message in its feedback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """Everything, but from the oldest on as many outputs replaced as it takes to fit into the budget.

    Outputs are the messages of the feedback. Where all that may be replaced is and the prompt is still too
    long it is shown as it is: the context's own end, not this rule, ends the episode then.

    Args:
        tokens: the budget of a prompt, descriptions of tools included. An answer needs room beside it.
        left_out: what stands in an output's place.
        head: characters of a replaced output that stay, before ``left_out``.
        keep_last: the newest rounds, of which nothing is replaced.

    Raises:
        ConfigError: an option has a value that it cannot have, or the budget is more than the context holds.
    """

    tokens: int
    left_out: str = "[output left out]"
    head: int = 0
    keep_last: int = 1

    def __post_init__(self) -> None:
        whole("token_budget", "tokens", self.tokens, least=1, meaning="the most tokens of a prompt")
        text("token_budget", "left_out", self.left_out, meaning="what stands for an output", empty=True)
        whole("token_budget", "head", self.head, least=0, meaning="characters that stay of an output")
        whole("token_budget", "keep_last", self.keep_last, least=1, meaning="last rounds that stay whole")

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt. The policy is not asked for anything."""
        below_context("token_budget", "tokens", self.tokens, actor)
        places = self._replaceable(history)

        def fits(replaced: int) -> bool:
            return actor.count(self._shown(history, places[:replaced])) <= self.tokens

        # every output replaced makes the prompt shorter, so the fewest that do are found by halving
        return self._shown(history, places[: bisect_left(range(len(places)), True, key=fits)])

    def _replaceable(self, history: History) -> list[_Place]:
        """Outputs that become shorter by it, the oldest first."""
        return [
            (number, place)
            for number, past in enumerate(history.rounds[: -self.keep_last])
            for place, message in enumerate(past.feedback)
            if len(message.content) > self.head + len(self.left_out)
        ]

    def _shown(self, history: History, replaced: Sequence[_Place]) -> list[Message]:
        gone = set(replaced)
        messages = list(history.opening)
        for number, past in enumerate(history.rounds):
            messages.append(past.action.message())
            messages += [
                replace(message, content=message.content[: self.head] + self.left_out)
                if (number, place) in gone
                else message
                for place, message in enumerate(past.feedback)
            ]
        return messages
