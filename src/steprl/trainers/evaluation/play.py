"""Playing an evaluation: every task as often as it is asked for, whatever was played before, and kept as it
comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from steprl.errors import ConfigError, EngineError, EnvError
from steprl.rollout import Episode, derive_seed, episodes_of
from steprl.tasks import task_hash
from steprl.trainers.evaluation.attempts import Attempt, attempt_of
from steprl.trainers.evaluation.folder import EvaluationFolder
from steprl.trainers.given import Given
from steprl.trainers.interrupt import Interrupted, Stop, run_async
from steprl.trainers.parts import build_player, tasks_of
from steprl.trainers.progress import Display, Phase
from steprl.trainers.recipe import Recipe
from steprl.types import Sampling, Task, Trajectory, TrajectoryGroup

LABEL = "eval"

_EXPLAINED = frozenset({"EngineError", "EnvError", "DeadlineError", "ScorerTimeout"})
"""Errors that say themselves what is wrong; of any other the traceback is shown."""

_KEPT_AT_ONCE = 64
_KEPT_EVERY = 30.0
"""Seconds after which what is done is written, however little it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Every attempt at every task, in order of tasks and attempts, and their episodes in groups of a task."""

    tasks: Sequence[Task]
    attempts: tuple[Attempt, ...]
    groups: tuple[TrajectoryGroup, ...]


def play_attempts(
    recipe: Recipe,
    *,
    greedy: bool,
    samples: int,
    out: Path | None,
    retry: bool,
    given: Given,
    display: Display,
) -> Played:
    """Play every evaluation task ``samples`` times, or what is left of that in ``out``.

    Args:
        recipe: its evaluation tasks, its model, its seed. What an attempt meets follows from the seed, the
            place of the task and the number of the attempt, so fewer tasks or attempts are the first of more.
        greedy: at temperature 0.
        out: a folder that keeps what is played; None: nothing is kept.
        retry: play attempts again that a fault of environment or scorer has spoiled.

    Raises:
        ConfigError: something cannot work, or ``out`` holds something else.
        EnvError, EngineError: every episode failed.
        Interrupted: Ctrl-C; what was done is in ``out``.
    """
    if samples < 1:
        raise ConfigError(f"an evaluation needs at least 1 attempt per task, got {samples}")
    tasks = tasks_of(recipe, "eval", given)
    if not tasks:
        raise ConfigError("there are no evaluation tasks; set env.eval and evaluation.tasks")
    folder = None if out is None else EvaluationFolder.begin(out, recipe, greedy=greedy)
    with nullcontext() if folder is None else folder.locked():
        keeper = _Keeper(folder, tasks, samples, derive_seed(recipe.seed, "evaluation"), retry)
        if keeper.left:
            _play(recipe, greedy, keeper, given, display)
        elif folder is not None:
            display.say(f"nothing left to play: {folder.path} is complete")
        return keeper.result()


def _play(recipe: Recipe, greedy: bool, keeper: _Keeper, given: Given, display: Display) -> None:
    player = build_player(recipe, given)
    temperature = 0.0 if greedy else recipe.evaluation.temperature
    sampling = replace(recipe.rollout.sampling(player.renderer.stop_ids), temperature=temperature)
    stop = Stop()

    async def collect() -> None:
        episodes = keeper.episodes(sampling, recipe.rollout.max_steps)
        with display.phase("evaluation", keeper.total, keeper.total - len(episodes)) as bar:
            try:
                with stop.listening() if keeper.keeps else nullcontext():
                    await player.pool.play(episodes, progress=lambda t: keeper.take(t, bar))
            except asyncio.CancelledError:
                if not stop.asked:
                    raise  # a cancellation that leaked from a tool or an engine is a defect, not a wish
                raise Interrupted(keeper.told()) from None
            finally:
                keeper.keep()

    run_async(collect, stop)


class _Keeper:
    """Which attempts there are, which are left, and those that have come."""

    def __init__(
        self, folder: EvaluationFolder | None, tasks: Sequence[Task], samples: int, seed: int, retry: bool
    ) -> None:
        self._folder = folder
        self._tasks = tasks
        self._samples = samples
        self._seed = seed
        self._new: list[tuple[Attempt, Trajectory]] = []
        self._trajectories: dict[str, Trajectory] = {}
        self._written = perf_counter()
        self._done = {} if folder is None else folder.attempts()
        self._faults = sum(attempt.fault is not None for attempt in self._done.values())
        self._check()
        keys = [(place, attempt) for place in range(len(tasks)) for attempt in range(samples)]
        self.total = len(keys)
        self.left = [
            key for key in keys if key not in self._done or (retry and self._done[key].fault is not None)
        ]

    def episodes(self, sampling: Sampling, max_steps: int) -> list[Episode]:
        """What is left to play."""
        return [
            episode
            for place, attempt in self.left
            for episode in episodes_of(
                self._tasks[place],
                place,
                [attempt],
                label=LABEL,
                seed=self._seed,
                sampling=sampling,
                max_steps=max_steps,
            )
        ]

    def take(self, trajectory: Trajectory, bar: Phase) -> None:
        """One more episode has ended."""
        place, attempt = map(int, trajectory.uid.removeprefix(f"{LABEL}-").split("."))
        found = attempt_of(
            trajectory,
            place=place,
            attempt=attempt,
            sampling_seed=derive_seed(self._seed, place, attempt),
        )
        before = self._done.get(found.key)
        self._faults += (found.fault is not None) - (before is not None and before.fault is not None)
        self._done[found.key] = found
        self._trajectories[trajectory.uid] = trajectory
        self._new.append((found, trajectory))
        if len(self._new) >= _KEPT_AT_ONCE or perf_counter() - self._written > _KEPT_EVERY:
            self.keep()
        bar.advance(f"errors {self._faults}" if self._faults else "")

    @property
    def keeps(self) -> bool:
        """Whether what is done survives a stop."""
        return self._folder is not None

    def keep(self) -> None:
        """Write what has come since the last time."""
        if self._folder is not None and self._new:
            self._folder.add(self._new)
        self._new, self._written = [], perf_counter()

    def told(self) -> str:
        """What an interrupted evaluation has kept, and how it goes on."""
        keys = [key for key in self._done if key[0] < len(self._tasks) and key[1] < self._samples]
        return (
            f"stopped after {len(keys)} of {self.total} attempts; they are saved. The same command goes on "
            f"from there."
        )

    def result(self) -> Played:
        """All attempts and all episodes.

        Raises:
            EnvError, EngineError: every one of them failed.
        """
        if self._folder is not None and len(self._trajectories) < self.total:
            self._trajectories = {**self._folder.trajectories(), **self._trajectories}
        keys = [(place, attempt) for place in range(len(self._tasks)) for attempt in range(self._samples)]
        attempts = tuple(self._done[key] for key in keys)
        self._refuse_total_failure(attempts)
        return Played(
            tasks=self._tasks,
            attempts=attempts,
            groups=tuple(self._group(place) for place in range(len(self._tasks))),
        )

    def _group(self, place: int) -> TrajectoryGroup:
        uids = [f"{LABEL}-{place}.{attempt}" for attempt in range(self._samples)]
        return TrajectoryGroup(
            group_uid=f"{LABEL}-{place}",
            task_id=self._tasks[place].id,
            trajectories=tuple(self._trajectories[uid] for uid in uids),
        )

    def _check(self) -> None:
        """Refuse a folder in which a task was another one."""
        for attempt in self._done.values():
            if attempt.place < len(self._tasks):
                task = self._tasks[attempt.place]
                if task_hash(task) != attempt.task_hash:
                    assert self._folder is not None
                    raise ConfigError(
                        f"'{self._folder.path}' was begun with other tasks: evaluation task {attempt.place} "
                        f"was '{attempt.task_id}' ({attempt.task_hash}) and is '{task.id}' "
                        f"({task_hash(task)}). Choose another --out."
                    )

    def _refuse_total_failure(self, attempts: Sequence[Attempt]) -> None:
        if not all(attempt.fault for attempt in attempts):
            return
        first = self._trajectories[attempts[0].uid]
        kind = EngineError if first.error is not None and first.error.kind == "EngineError" else EnvError
        told = first.error is None or first.error.kind in _EXPLAINED
        root = "" if told or first.error is None else f"\n{first.error.traceback.rstrip()}"
        again = "" if self._folder is None else " They are kept; --retry plays them again."
        raise kind(
            f"all {len(attempts)} episodes failed; nothing to report.{again} {first.uid}: "
            f"{attempts[0].error or attempts[0].stop_reason}{root}"
        )
