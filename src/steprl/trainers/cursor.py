"""Which task comes next: a place in the task set that a checkpoint can hold. As a rule, a seeded permutation
per epoch; a curriculum is another rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steprl.errors import TaskError
from steprl.rollout import derive_seed
from steprl.types import Task, TrajectoryGroup


class Cursor(ABC):
    """Deals tasks out, one after the other. A subclass says which: `pick`, and if it learns from what was
    played, `learn`, `state` and `restore`.

    ``position`` counts tasks dealt since the start; setting it continues from there exactly.
    ``needs_outcome`` says that `learn` asks which episodes were solved.
    """

    needs_outcome: bool = False

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        if not tasks:
            raise TaskError("there are no tasks to deal out")
        self.tasks = tasks
        self.seed = seed
        self._position = 0
        self._dealt: list[int] = []

    @property
    def position(self) -> int:
        """Tasks dealt since the start. Set it between iterations only."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._position = position
        self._dealt = []

    def take(self, count: int) -> list[Task]:
        """The next ``count`` tasks, however many are taken at a time."""
        for _ in range(count):
            self._dealt.append(self.pick(self._position, self._dealt))
            self._position += 1
        return [self.tasks[index] for index in self._dealt[len(self._dealt) - count :]]

    def note(self, groups: Sequence[TrajectoryGroup]) -> None:
        """What became of the tasks dealt since the last time, in their order: an iteration is done."""
        for index, group in zip(self._dealt, groups, strict=True):
            self.learn(index, group)
        self._dealt = []

    @abstractmethod
    def pick(self, position: int, dealt: Sequence[int]) -> int:
        """The index of the task at ``position``; ``dealt`` are those of the iteration so far. It follows from
        these two, the seed, and what was learned."""

    def learn(self, index: int, group: TrajectoryGroup) -> None:
        """Take in what was played of the task ``index``, whether it was trained on or not."""

    def state(self) -> dict[str, Any]:
        """What was learned, for a checkpoint: text, numbers, lists and mappings of them."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state` gave; empty: with nothing.

        Raises:
            CheckpointError: it is not of this curriculum.
        """

    def metrics(self) -> dict[str, float]:
        """Figures for ``metrics.jsonl``, of names that begin with ``curriculum/``."""
        return {}


class TaskCursor(Cursor):
    """Every task once per epoch, each epoch in its own order."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        super().__init__(tasks, seed=seed)
        self._epochs = Epochs(len(tasks), seed)

    def pick(self, position: int, dealt: Sequence[int]) -> int:
        return self._epochs.at(position)


class Epochs:
    """Permutations of ``count`` things, a new one for each epoch."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def at(self, position: int) -> int:
        """Which of them comes at ``position``."""
        epoch, place = divmod(position, self._count)
        if epoch != self._epoch:
            rng = np.random.default_rng(derive_seed(self._seed, "epoch", epoch))
            self._order = rng.permutation(self._count).tolist()
            self._epoch = epoch
        return self._order[place]
