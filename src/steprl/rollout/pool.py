"""Many episodes at once: groups of one task instance, bounded concurrency, results in dispatch order."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

from steprl.errors import ConfigError, EnvError
from steprl.rewards.compose import RewardComposer
from steprl.rollout.seeds import derive_seed
from steprl.rollout.session import EpisodeSession, EpisodeStopped
from steprl.tasks import task_hash
from steprl.types import (
    Engine,
    EpisodeError,
    Renderer,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
    Workflow,
)

Progress = Callable[[Trajectory], None]
"""Called with every finished trajectory, in order of completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How episodes are played.

    ``groups`` tasks per iteration, ``group_size`` episodes each; at most ``concurrency`` episodes at
    once. ``max_steps`` actions per episode. ``rewards`` are weights of named components.
    """

    groups: int = 8
    group_size: int = 8
    concurrency: int = 64
    max_steps: int = 16
    rewards: dict[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "concurrency", "max_steps", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name} must be at least 1, got {getattr(self, name)}")
        try:
            self.sampling(())
        except ValueError as error:
            raise ConfigError(f"rollout: {error}") from None

    def sampling(self, stop_ids: tuple[int, ...]) -> Sampling:
        """The sampling settings, with the token ids that end an action."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=self.stop,
            stop_ids=stop_ids,
        )


class Pool:
    """Plays groups of episodes.

    Args:
        workflow: makes no state of its own; every episode gets its own environment through it.
        concurrency: most episodes at once.
    """

    def __init__(
        self,
        *,
        workflow: Workflow,
        engine: Engine,
        renderer: Renderer,
        rewards: RewardComposer,
        concurrency: int,
    ) -> None:
        self._workflow = workflow
        self._engine = engine
        self._renderer = renderer
        self._rewards = rewards
        self._slots = asyncio.Semaphore(concurrency)

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        label: str,
        seed: int,
        group_size: int,
        sampling: Sampling,
        max_steps: int,
        progress: Progress | None = None,
    ) -> list[TrajectoryGroup]:
        """Play ``group_size`` episodes of each task; groups and members come back in dispatch order.

        ``label`` names the batch ("train-12"): uids derive from it, so it must be unique in the run.
        ``seed`` and the place in the batch decide everything that is drawn. A broken episode is a
        trajectory with an `EpisodeError`. Every episode has a copy of its task, so what an environment
        writes into it is nobody else's.

        Raises:
            EnvError: every episode broke; the first error is shown last.
            TaskError: a task cannot be hashed.
            ConfigError: from anywhere inside, at once.
        """
        hashes = [task_hash(task) for task in tasks]

        async def play(task: Task, place: int, member: int) -> Trajectory:
            task = deepcopy(task)
            session = EpisodeSession(
                task=task,
                uid=f"{label}-{place}.{member}",
                seed=derive_seed(seed, place),
                sampling_seed=derive_seed(seed, place, member),
                engine=self._engine,
                renderer=self._renderer,
                sampling=sampling,
                rewards=self._rewards,
                max_steps=max_steps,
            )
            async with self._slots:
                trajectory = await self._episode(task, hashes[place], f"{label}-{place}", session)
            if progress is not None:
                progress(trajectory)
            return trajectory

        try:
            async with asyncio.TaskGroup() as scope:
                running = [
                    [scope.create_task(play(task, place, member)) for member in range(group_size)]
                    for place, task in enumerate(tasks)
                ]
        except* ConfigError as errors:
            raise errors.exceptions[0] from None
        played = [tuple(member.result() for member in members) for members in running]
        _refuse_total_failure([trajectory for members in played for trajectory in members])
        return [
            TrajectoryGroup(group_uid=f"{label}-{place}", task_id=task.id, trajectories=members)
            for place, (task, members) in enumerate(zip(tasks, played, strict=True))
        ]

    async def _episode(
        self, task: Task, content_hash: str, group_uid: str, session: EpisodeSession
    ) -> Trajectory:
        error: EpisodeError | None = None
        try:
            with suppress(EpisodeStopped):
                await self._workflow.run(task, session)
                session.end()
            steps = session.steps()
        except ConfigError:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as broken:
            # The boundary between an episode and the run: whatever broke becomes a value. A cancellation
            # that nobody asked this task for leaked out of the episode; any other is the run's own.
            playing = asyncio.current_task()
            assert playing is not None
            if isinstance(broken, asyncio.CancelledError) and playing.cancelling():
                raise
            error = EpisodeError(
                kind=type(broken).__name__, message=str(broken), traceback=traceback.format_exc()
            )
            steps = session.steps(scored=False)
        finally:
            self._engine.release(session.uid)
        reason = StopReason.ERROR if error is not None else session.stop_reason
        assert reason is not None
        return Trajectory(
            uid=session.uid,
            group_uid=group_uid,
            task_id=task.id,
            task_hash=content_hash,
            seed=session.seed,
            steps=steps,
            stop_reason=reason,
            final_prompt_ids=None if error is not None else session.final_prompt_ids,
            error=error,
        )


def _refuse_total_failure(trajectories: Sequence[Trajectory]) -> None:
    errors = [t.error for t in trajectories if t.error is not None]
    if errors and len(errors) == len(trajectories):
        first = errors[0]
        raise EnvError(
            f"all {len(errors)} episodes failed; nothing to train on. The first one: "
            f"{first.kind}: {first.message}\n{first.traceback}"
        )
