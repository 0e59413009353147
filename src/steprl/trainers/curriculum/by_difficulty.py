"""Tasks from easy to hard, by a difficulty that the task set itself names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from steprl.errors import ConfigError, TaskError, unknown
from steprl.rollout import derive_seed
from steprl.trainers.cursor import Cursor, Epochs
from steprl.types import Task, finite


class ByDifficulty(Cursor):
    """Draws from the easiest tasks alike, a share of the set that grows from ``start`` to all of it; from
    then on every task comes once per epoch. Equally difficult tasks keep the order of the set.

    Args:
        key: the number in ``Task.data`` that says how difficult a task is; every task has it.
        until: so many tasks are dealt until all are in.
        start: the share of the easiest tasks that it begins with.
        easy: whether ``low`` or ``high`` numbers are easy.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        key: str,
        until: int,
        start: float = 0.2,
        easy: Literal["low", "high"] = "low",
    ) -> None:
        super().__init__(tasks, seed=seed)
        if isinstance(until, bool) or not isinstance(until, int) or until < 1:
            raise ConfigError(f"curriculum.args.until is {until!r}; it must be a number of tasks, 1 or more")
        if isinstance(start, bool) or not isinstance(start, int | float) or not 0 < start <= 1:
            raise ConfigError(f"curriculum.args.start is {start!r}; it must be a share above 0, at most 1")
        if easy not in ("low", "high"):
            raise ConfigError(unknown("easy of the curriculum:", str(easy), ("low", "high")))
        self.until = until
        self.start = start
        sign = 1 if easy == "low" else -1
        self._easiest = sorted(range(len(tasks)), key=lambda index: sign * _difficulty(tasks[index], key))
        self._epochs = Epochs(len(tasks), seed)
        self._size = self.size(0)

    def size(self, position: int) -> int:
        """How many of the easiest tasks are in when so many have been dealt."""
        share = self.start + (1 - self.start) * min(1.0, position / self.until)
        return max(1, math.floor(share * len(self.tasks)))

    def pick(self, position: int, dealt: Sequence[int]) -> int:
        self._size = self.size(position)
        if position >= self.until:
            return self._epochs.at(position - self.until)
        pool = self._easiest[: self._size]
        out = {*dealt[len(dealt) - len(dealt) % len(pool) :]}  # of this iteration; fewer than are in
        fresh = [index for index in pool if index not in out]
        rng = np.random.default_rng(derive_seed(self.seed, "draw", position))
        return fresh[int(rng.integers(len(fresh)))]

    def metrics(self) -> dict[str, float]:
        """The share of the tasks that is in."""
        return {"curriculum/tasks_share": self._size / len(self.tasks)}


def _difficulty(task: Task, key: str) -> float:
    if key not in task.data:
        raise TaskError(
            f"task '{task.id}' has no data '{key}', which curriculum.args.key names as its difficulty. "
            f"It has: {', '.join(sorted(task.data)) or 'none'}."
        )
    try:
        return finite(task.data[key], f"data '{key}', its difficulty,")
    except ValueError as error:
        raise TaskError(f"task '{task.id}': {error}") from None
