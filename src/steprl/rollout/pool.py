"""Many episodes at once: groups of one task instance, bounded concurrency, results in dispatch order."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from steprl.errors import ConfigError, EngineError, EnvError, StepRLError
from steprl.rewards.compose import RewardComposer
from steprl.rollout.config import Deadlines, FailurePolicy
from steprl.rollout.episode import Episode, EpisodePlayer, Played
from steprl.rollout.pending import Pending
from steprl.rollout.seeds import derive_seed
from steprl.rollout.turns import Turns
from steprl.tasks import task_hash
from steprl.types import (
    Completion,
    Engine,
    Prompt,
    Renderer,
    Sampling,
    Step,
    Task,
    Trajectory,
    TrajectoryGroup,
    WeightSource,
    Workflow,
)

Progress = Callable[[Trajectory], None]
"""Called with every finished trajectory, in order of completion."""


class Pool:
    """Plays groups of episodes.

    Args:
        workflow: makes no state of its own; every episode gets its own environment through it.
        concurrency: most episodes at once.
        failures: what becomes of an episode that breaks.
        deadlines: when an episode is given up.
        deterministic: answer requests in rounds, so that delays decide nothing; slower, for everyone waits
            for the slowest environment.
    """

    def __init__(
        self,
        *,
        workflow: Workflow,
        engine: Engine,
        renderer: Renderer,
        rewards: RewardComposer,
        concurrency: int,
        failures: FailurePolicy | None = None,
        deadlines: Deadlines | None = None,
        deterministic: bool = False,
    ) -> None:
        failures, deadlines = failures or FailurePolicy(), deadlines or Deadlines()
        self._engine = engine
        self._concurrency = concurrency
        self._fail_fast = failures.fail_fast
        self._report = deadlines.report
        self._deterministic = deterministic
        self._player = EpisodePlayer(
            workflow=workflow,
            renderer=renderer,
            rewards=rewards,
            failures=failures,
            deadlines=deadlines,
        )

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        label: str,
        seed: int,
        group_size: int,
        sampling: Sampling,
        max_steps: int,
        first: int = 0,
        progress: Progress | None = None,
    ) -> list[TrajectoryGroup]:
        """Play ``group_size`` episodes of each task; groups and members come back in dispatch order.

        ``label`` names the batch ("train-12"): uids derive from it, so it must be unique in the run.
        ``seed`` and the place in the batch decide everything that is drawn. A batch that is played in parts
        has one label and one seed, and ``first`` is the place of a part's first task. A broken episode is a
        trajectory with an `EpisodeError`. Every episode has a copy of its task, so what an environment
        writes into it is nobody else's.

        Raises:
            EnvError, EngineError: every episode of a batch failed, or of its first part, or one did and
                ``fail_fast`` is set; the error that was first in dispatch order is shown last.
            TaskError: a task cannot be hashed.
            ConfigError: from anywhere inside, at once.
        """
        episodes = [
            episode
            for place, task in enumerate(tasks, first)
            for episode in episodes_of(
                task,
                place,
                range(group_size),
                label=label,
                seed=seed,
                sampling=sampling,
                max_steps=max_steps,
            )
        ]
        played = await self._all(episodes, progress)
        if first == 0:  # where the first part was sound, a few more tasks may all be broken
            _refuse_total_failure(played)
        return [
            TrajectoryGroup(
                group_uid=f"{label}-{first + index}",
                task_id=task.id,
                trajectories=tuple(
                    member.trajectory for member in played[index * group_size : (index + 1) * group_size]
                ),
            )
            for index, task in enumerate(tasks)
        ]

    async def replay(self, task: Task, recorded: Trajectory, *, max_steps: int) -> Trajectory:
        """Take a recorded trajectory's actions again in a fresh environment; no engine is asked.

        Where the environment answers otherwise, the error is of the kind ``Diverged``; where it asks for
        more actions than there are, of the kind ``EngineError``.
        """
        episode = Episode(
            task=task,
            task_hash=task_hash(task),
            uid=recorded.uid,
            group_uid=recorded.group_uid,
            seed=recorded.seed,
            sampling_seed=0,
            sampling=Sampling(),
            max_steps=max_steps,
        )
        engine = _Recording(self._engine.max_context)
        return (await self._player.play(episode, engine, Pending(0), recorded.steps)).trajectory

    async def play_on(
        self,
        episodes: Sequence[Episode],
        recorded: Sequence[Sequence[Step]],
        *,
        progress: Progress | None = None,
    ) -> list[Trajectory]:
        """Play episodes that have begun: recorded actions are taken again, the engine is asked from there.

        Where the environment answers a recorded action otherwise than it did, the error of the trajectory is
        of the kind ``Diverged``.

        Raises:
            EnvError, EngineError, ConfigError: as `collect` does.
        """
        begun = {episode.uid: steps for episode, steps in zip(episodes, recorded, strict=True)}
        played = await self._all(episodes, progress, begun)
        _refuse_total_failure(played)
        return [episode.trajectory for episode in played]

    async def play(
        self, episodes: Sequence[Episode], *, progress: Progress | None = None
    ) -> list[Trajectory]:
        """Play these episodes, in this order of dispatch. That all of them failed is for the caller to judge.

        Raises:
            EnvError, EngineError: an episode failed, and ``fail_fast`` is set.
            ConfigError: from anywhere inside, at once.
        """
        return [episode.trajectory for episode in await self._all(episodes, progress)]

    async def _all(
        self,
        episodes: Sequence[Episode],
        progress: Progress | None,
        begun: Mapping[str, Sequence[Step]] = MappingProxyType({}),
    ) -> list[Played]:
        pending = Pending(self._report)
        free = asyncio.Semaphore(self._concurrency)
        turns = None
        if self._deterministic:
            turns = Turns(self._engine, [episode.uid for episode in episodes], self._concurrency)

        async def play(episode: Episode) -> Played:
            async with free if turns is None else turns.seat(episode.uid):
                played = await self._player.play(
                    episode, turns or self._engine, pending, begun.get(episode.uid, ())
                )
            if self._fail_fast and played.raised is not None:
                raise _told("an episode failed, and rollout.failures.fail_fast is set", played)
            if progress is not None:
                progress(played.trajectory)
            return played

        try:
            with pending.watched():
                async with asyncio.TaskGroup() as scope:
                    running = [scope.create_task(play(episode)) for episode in episodes]
        except* (ConfigError, EnvError, EngineError) as errors:
            raise errors.exceptions[0] from None
        return [episode.result() for episode in running]


def episodes_of(
    task: Task,
    place: int,
    members: Iterable[int],
    *,
    label: str,
    seed: int,
    sampling: Sampling,
    max_steps: int,
) -> list[Episode]:
    """The episodes of one task in a batch: ``place`` is the task's, ``members`` are those of its group.

    What a member draws follows from the batch's seed, the place and its own number, and not from who else is
    played.

    Raises:
        TaskError: the task cannot be hashed.
    """
    content_hash = task_hash(task)
    return [
        Episode(
            task=task,
            task_hash=content_hash,
            uid=f"{label}-{place}.{member}",
            group_uid=f"{label}-{place}",
            seed=derive_seed(seed, place),
            sampling_seed=derive_seed(seed, place, member),
            sampling=sampling,
            max_steps=max_steps,
        )
        for member in members
    ]


class _Recording:
    """The engine of a replay: all actions are recorded, so nobody should ask."""

    version = 0

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        raise EngineError(f"the recording of {session_id} has no further action, but one is asked for")

    async def abort(self, session_id: str) -> None:
        """Nothing runs."""

    def release(self, session_id: str) -> None:
        """Nothing is kept."""

    async def sync(self, source: WeightSource, version: int) -> None:
        raise EngineError("a recording has no weights to take")


def _refuse_total_failure(played: Sequence[Played]) -> None:
    failed = [episode for episode in played if episode.raised is not None]
    if failed and len(failed) == len(played):
        raise _told(f"all {len(failed)} episodes failed; nothing to train on", failed[0])


def _told(what: str, failed: Played) -> StepRLError:
    """An error that ends the run; what raised on purpose explains itself, anything else by its traceback."""
    raised, uid = failed.raised, failed.trajectory.uid
    assert raised is not None
    kind = EngineError if isinstance(raised, EngineError) else EnvError
    if isinstance(raised, StepRLError):
        return kind(f"{what}. {uid}: {raised}")
    root = "".join(traceback.format_exception(raised)).rstrip()
    return kind(f"{what}. {uid}: {type(raised).__name__}: {raised}\n{root}")
