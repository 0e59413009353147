"""Tasks drawn by how often the policy has solved them so far: those solved now and then come most often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steprl.credit import scored
from steprl.errors import CheckpointError, ConfigError
from steprl.rollout import derive_seed
from steprl.trainers.cursor import Cursor
from steprl.trajectory import success
from steprl.types import Doubles, Task, TrajectoryGroup

_LEAST = 1e-6
"""The least of what must be above 0."""


class BySuccess(Cursor):
    """Draws task i with probability ``floor / N + (1 − floor) · w_i / Σ w``, N tasks in all.

    After s successes in n episodes ``w = 4 · E[p (1 − p)]`` with p from the posterior Beta(1 + s, 1 + n − s):
    four times the variance of a success, as far as it is known. It is near 1 for tasks that are solved half
    of the time, and goes to 0 for those that are always solved, or never, the more of them is known.
    No task comes twice in an iteration before all have come once.

    Args:
        floor: this share of the draws goes to all tasks alike, so that each keeps being seen.
        unseen: w of a task that has not been played yet; by default no other is likelier.
        decay: what is left of a task's s and n each time it is played again; 1 forgets nothing.
        remember: so many tasks have a record; those played longest ago lose theirs, and are unseen again.
    """

    needs_outcome = True

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        floor: float = 0.1,
        unseen: float = 1.0,
        decay: float = 1.0,
        remember: int = 100_000,
    ) -> None:
        super().__init__(tasks, seed=seed)
        self.floor = _number("floor", floor, _LEAST, 1, "above 0 and at most 1: every task is seen again")
        self.unseen = _number("unseen", unseen, _LEAST, 1 / _LEAST, "above 0")
        self.decay = _number(
            "decay", decay, 0, 1, "from 0 (only the last time counts) to 1 (all count alike)"
        )
        if isinstance(remember, bool) or not isinstance(remember, int) or remember < 1:
            raise ConfigError(
                f"curriculum.args.remember is {remember!r}; it must be a number of tasks, 1 or more"
            )
        self.remember = remember
        self._record: dict[int, tuple[float, float]] = {}
        """Successes and episodes by task; the one played longest ago first."""
        self._weights_N = np.full(len(tasks), self.unseen)

    def pick(self, position: int, dealt: Sequence[int]) -> int:
        chances_N = self.chances()
        chances_N[list(dealt[len(dealt) - len(dealt) % len(self.tasks) :])] = 0.0
        rng = np.random.default_rng(derive_seed(self.seed, "draw", position))
        return int(rng.choice(len(chances_N), p=chances_N / chances_N.sum()))

    def chances(self) -> Doubles:
        """The probability of each task, f64[N]."""
        chances_N: Doubles = self._weights_N * ((1 - self.floor) / self._weights_N.sum())
        return chances_N + self.floor / len(self.tasks)

    def learn(self, index: int, group: TrajectoryGroup) -> None:
        played = [t for t in group.trajectories if scored(t)]
        if played:
            # a limit that ended an episode before any outcome: not solved
            solved = sum(bool(success(t)) for t in played)
            before = self._record.pop(index, (0.0, 0.0))  # and back in at the end
            self._put(index, self.decay * before[0] + solved, self.decay * before[1] + len(played))

    def state(self) -> dict[str, Any]:
        return {"successes": [[index, *record] for index, record in self._record.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._record = {}
        self._weights_N = np.full(len(self.tasks), self.unseen)
        try:
            for index, solved, played in state.get("successes", ()):
                if type(index) is not int or not (0 <= index < len(self.tasks) and 0 <= solved <= played):
                    raise ValueError(f"{[index, solved, played]}")
                self._put(index, float(solved), float(played))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"what the checkpoint says of successes is not of these {len(self.tasks)} tasks: {error}. "
                f"Resume with the tasks that the run was started with."
            ) from error

    def metrics(self) -> dict[str, float]:
        """How much is known of the tasks, and how difficult those are that were played."""
        found = {"curriculum/seen_share": len(self._record) / len(self.tasks)}
        if self._record:
            rates = [solved / played for solved, played in self._record.values()]
            never, always = (sum(rate == end for rate in rates) / len(rates) for end in (0.0, 1.0))
            found |= {
                "curriculum/success": math.fsum(rates) / len(rates),
                "curriculum/never_solved_share": never,
                "curriculum/sometimes_solved_share": 1.0 - never - always,
                "curriculum/always_solved_share": always,
            }
        return found

    def _put(self, index: int, solved: float, played: float) -> None:
        self._record[index] = (solved, played)
        a, b = 1 + solved, 1 + played - solved
        self._weights_N[index] = 4 * a * b / ((a + b) * (a + b + 1))
        if len(self._record) > self.remember:
            forgotten = next(iter(self._record))
            del self._record[forgotten]
            self._weights_N[forgotten] = self.unseen


def _number(name: str, value: Any, least: float, most: float, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"curriculum.args.{name} is {value!r}; it must be a number {allowed}")
    return float(value)
