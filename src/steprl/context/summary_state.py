"""State in place of history: the environment says what there is to know, and the newest says it all.

An environment marks such a message, ``Message(..., mark="state")``; a later one replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steprl.context._options import whole
from steprl.errors import ConfigError
from steprl.types import Actor, History, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryState:
    """The opening, the newest state, and the last ``rounds`` rounds, in the order in which they came.

    Older states are left out, also from the opening. Rounds since the newest state, which it cannot tell of,
    are shown however many they are; with ``rounds = 0`` there are no others.

    Raises:
        ConfigError: ``rounds`` is not a whole number of at least 0; or the environment has marked no message
            as state by the end of the first round.
    """

    rounds: int = 1

    def __post_init__(self) -> None:
        whole("summary_state", "rounds", self.rounds, least=0, meaning="last rounds that are seen as well")

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt. The policy is not asked for anything."""
        said: list[tuple[int, Message]] = [(-1, message) for message in history.opening]
        for number, past in enumerate(history.rounds):
            said += [(number, past.action.message()), *((number, message) for message in past.feedback)]
        newest = max((i for i, (_, message) in enumerate(said) if message.mark == "state"), default=None)
        if newest is None:
            if history.rounds:
                raise ConfigError(
                    "summary_state shows the newest message that the environment marked as state, and there "
                    "is none in the opening and the first round. Return one from reset or step, "
                    'Message(..., mark="state"), or use another context rule.'
                )
            return history.opening
        since = said[newest][0] + 1
        first = min(since, max(0, len(history.rounds) - self.rounds))
        return [
            message
            for i, (number, message) in enumerate(said)
            if i == newest or (message.mark != "state" and (number == -1 or number >= first))
        ]
