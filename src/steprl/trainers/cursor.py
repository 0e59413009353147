"""Which task comes next: a seeded permutation per epoch, and a position that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steprl.errors import TaskError
from steprl.rollout import derive_seed
from steprl.types import Task


class TaskCursor:
    """Deals tasks out, every task once per epoch, each epoch in its own order.

    ``position`` counts tasks dealt since the start; setting it continues from there exactly.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        if not tasks:
            raise TaskError("there are no tasks to deal out")
        self._tasks = tasks
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []
        self.position = 0

    def take(self, count: int) -> list[Task]:
        """The next ``count`` tasks; an epoch may end within them."""
        taken = []
        for position in range(self.position, self.position + count):
            epoch, place = divmod(position, len(self._tasks))
            taken.append(self._tasks[self._permutation(epoch)[place]])
        self.position += count
        return taken

    def _permutation(self, epoch: int) -> list[int]:
        if epoch != self._epoch:
            rng = np.random.default_rng(derive_seed(self._seed, "epoch", epoch))
            self._order = rng.permutation(len(self._tasks)).tolist()
            self._epoch = epoch
        return self._order
