"""Two critics of a small world: one that is exact, and one that is wrong everywhere.

A place is what can be seen before a token: the prompt and the action so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from steprl.credit import returns_to_go, unit_rewards
from steprl.trainers.atlas.play import Episode
from steprl.trainers.atlas.policy import arbitrary
from steprl.types import Doubles, Scores, Step

Kind = Literal["exact", "wrong"]


class Critic:
    """What a place is worth: the mean of what comes after it, over all episodes that pass it (``exact``), or
    an arbitrary number (``wrong``)."""

    def __init__(self, kind: Kind, episodes: Sequence[Episode], probabilities_N: Doubles) -> None:
        self._kind = kind
        passed: dict[str, float] = defaultdict(float)
        earned: dict[str, float] = defaultdict(float)
        for probability, episode in zip(probabilities_N.tolist(), episodes, strict=True):
            trajectory = episode.trajectory("group", "episode")
            rewards = unit_rewards(trajectory, "step", Scores(), 0.0)
            returns = returns_to_go(trajectory, rewards, gamma=1.0)
            for step, returns_U in zip(trajectory.steps, returns, strict=True):
                for place in places(step) if len(returns_U) else ():
                    passed[place] += probability
                    earned[place] += probability * (float(returns_U[0]) + episode.worth)
        self._means = {place: earned[place] / passed[place] for place in passed}

    def values(self, step: Step) -> list[float]:
        """Before each token of its action. A step that nobody sampled has no exact ones: 0."""
        if self._kind == "wrong":
            return [arbitrary(f"value of {place}") for place in places(step)]
        return [self._means.get(place, 0.0) for place in places(step)]

    def after(self, episode: Episode) -> float:
        """What comes after the limit that cut an episode; 0 if none did."""
        if not episode.stop_reason.bootstraps:
            return 0.0
        return episode.worth if self._kind == "exact" else arbitrary(f"after {places(episode.steps[-1])}")


def places(step: Step) -> list[str]:
    """What can be seen before each token of an action."""
    prompt, action = ("".join(map(chr, ids.tolist())) for ids in (step.prompt_ids, step.action_ids))
    return [f"{prompt} > {action[:j]}" for j in range(len(action))]
