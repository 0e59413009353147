"""What a critic can know of a small world: everything, what prompts show, or nothing right.

A place is where a value is read: before a token, with all that one can see there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from steprl.credit import returns_to_go, unit_rewards
from steprl.trainers.atlas.play import Episode
from steprl.trainers.atlas.policy import arbitrary
from steprl.types import Doubles, Scores

Kind = Literal["exact", "wrong", "continuations"]
"""``exact``: the mean of what comes after, given what the prompt and the action so far show. ``wrong``: any
number at all. ``continuations``: the mean given where in the world the step acts, as episodes find it that
play on from there; these have the limits of the run, so that nothing comes after one."""


class Critic:
    """The values of a kind, by place."""

    def __init__(self, kind: Kind, episodes: Sequence[Episode], probabilities_N: Doubles) -> None:
        self._kind = kind
        passed: dict[str, float] = defaultdict(float)
        earned: dict[str, float] = defaultdict(float)
        for probability, episode in zip(probabilities_N.tolist(), episodes, strict=True):
            trajectory = episode.trajectory("group", "episode")
            rewards = unit_rewards(trajectory, "step", Scores(), 0.0)
            returns = returns_to_go(trajectory, rewards, gamma=1.0)
            for index, returns_U in enumerate(returns):
                for place in set(self._places(episode, index)) if len(returns_U) else ():
                    passed[place] += probability
                    earned[place] += probability * (float(returns_U[0]) + self.after(episode))
        self._means = {place: earned[place] / passed[place] for place in passed}

    def values(self, episode: Episode, step: int) -> list[float]:
        """Before each token of a step's action. A step that nobody sampled has no exact ones: 0."""
        if self._kind == "wrong":
            return [arbitrary(f"value of {place}") for place in self._places(episode, step)]
        return [self._means.get(place, 0.0) for place in self._places(episode, step)]

    def after(self, episode: Episode) -> float:
        """What comes after the limit that cut an episode; 0 if none did."""
        if not episode.stop_reason.bootstraps or self._kind == "continuations":
            return 0.0
        if self._kind == "exact":
            return episode.worth
        return arbitrary(f"after {self._places(episode, len(episode.steps) - 1)}")

    def _places(self, episode: Episode, step: int) -> list[str]:
        """Each with the action so far; a continuation knows only where the step begins."""
        acted = episode.steps[step]
        prompt, action = ("".join(map(chr, ids.tolist())) for ids in (acted.prompt_ids, acted.action_ids))
        if self._kind == "continuations":
            return [f"task {episode.task}, {episode.states[step]}"] * len(action)
        return [f"{prompt} > {action[:j]}" for j in range(len(action))]
