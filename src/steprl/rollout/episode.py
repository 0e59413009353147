"""One episode from its task to its trajectory, whatever happens on the way: errors, retries, deadlines.

A retry plays the recorded actions again in a fresh environment. If the error comes back at the same place it
is the agent's doing; if it does not, it was a passing one and the episode goes on. Nothing is sampled twice,
so a retry cannot select by outcome.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from steprl.envs.scoring import in_time
from steprl.errors import ConfigError, DeadlineError, ScorerError, ScorerTimeout, StepRLError
from steprl.rewards import RewardComposer
from steprl.rollout.config import Deadlines, FailurePolicy
from steprl.rollout.pending import Pending
from steprl.rollout.session import Diverged, EpisodeSession, EpisodeStopped
from steprl.types import (
    Engine,
    EpisodeError,
    Renderer,
    Sampling,
    Step,
    StopReason,
    Task,
    Trajectory,
    Workflow,
)

logger = logging.getLogger("steprl.rollout")

_NOBODYS = (StepRLError, OSError, MemoryError, asyncio.CancelledError, SystemExit)
"""Errors that no agent is blamed for: raised on purpose, or by the machine (TimeoutError is an OSError)."""

GRACE = 5.0
"""Seconds that a cancelled episode has to clean up before it is abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What is to be played: names, seeds and limits. ``seed`` is the environment's."""

    task: Task
    task_hash: str
    uid: str
    group_uid: str
    seed: int
    sampling_seed: int
    sampling: Sampling
    max_steps: int


class Played(NamedTuple):
    """A trajectory, and the exception behind its error, which the record keeps as text only."""

    trajectory: Trajectory
    raised: BaseException | None


class EpisodePlayer:
    """Plays episodes, each by itself.

    An error is the agent's doing when the same action raises it again and nothing but the environment's
    answer to that action was under way. What is raised on purpose (`EnvError`), and what the operating
    system or the engine raises, is nobody's.
    """

    def __init__(
        self,
        *,
        workflow: Workflow,
        renderer: Renderer,
        rewards: RewardComposer,
        failures: FailurePolicy,
        deadlines: Deadlines,
    ) -> None:
        self._workflow = workflow
        self._renderer = renderer
        self._rewards = rewards
        self._retries = 0 if failures.fail_fast else failures.retries
        self._backoff = failures.backoff
        self._deadlines = deadlines

    async def play(
        self, episode: Episode, engine: Engine, pending: Pending, recorded: Sequence[Step] = ()
    ) -> Played:
        """Play an episode to its end; ``recorded`` are steps of it that exist already.

        Raises:
            ConfigError: from anywhere inside, at once.
        """
        end = perf_counter() + (self._deadlines.episode or float("inf"))
        failed_at: tuple[int, type[BaseException]] | None = None
        first: BaseException | None = None
        try:
            for attempt in range(self._retries + 1):
                if attempt:  # what was away for a moment may be back
                    await asyncio.sleep(self._backoff * 2 ** (attempt - 1))
                session = self._session(episode, engine, recorded)
                if attempt:
                    session.metric(attempt, "retries")
                with pending.playing(session):
                    raised = await self._attempt(deepcopy(episode.task), session, engine, end)
                if raised is None:
                    return await self._ended(episode, session, None)
                if isinstance(raised, (DeadlineError, ScorerTimeout)):
                    session.give_up()
                    return await self._ended(episode, session, raised)
                if isinstance(raised, Diverged) and first is not None:
                    first.add_note(f"Whose doing it was could not be told: {raised}")
                    break
                first = first or raised
                place = (session.acted, type(_root(raised)))
                if place == failed_at and _is_blamed(session, raised):
                    session.blame()
                    return await self._ended(episode, session, raised)
                failed_at = place
                if session.acted > len(recorded):
                    recorded = session.steps(scored=False)
            assert raised is not None
            return _broken(episode, session, first or raised)
        finally:
            engine.release(episode.uid)

    async def _ended(self, episode: Episode, session: EpisodeSession, raised: BaseException | None) -> Played:
        """The trajectory of an episode that has a stop reason of its own."""
        assert session.stop_reason is not None
        try:
            steps = await self._steps(session)
            if raised is None:
                session.check_range()
        except (ConfigError, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as broken:  # a reward component failed: nobody can say what the steps are worth
            return _broken(episode, session, broken)
        return Played(_trajectory(episode, session, steps, session.stop_reason, raised), raised)

    async def _steps(self, session: EpisodeSession) -> tuple[Step, ...]:
        if session.stop_reason is StopReason.DEADLINE:
            return session.steps(scored=False)
        if not self._rewards.computed:
            return session.steps()
        return await in_time(session.steps, self._deadlines.score)

    def _session(self, episode: Episode, engine: Engine, recorded: Sequence[Step]) -> EpisodeSession:
        return EpisodeSession(
            task=episode.task,
            uid=episode.uid,
            seed=episode.seed,
            sampling_seed=episode.sampling_seed,
            engine=engine,
            renderer=self._renderer,
            sampling=episode.sampling,
            rewards=self._rewards,
            max_steps=episode.max_steps,
            recorded=recorded,
        )

    async def _attempt(
        self, task: Task, session: EpisodeSession, engine: Engine, end: float
    ) -> BaseException | None:
        """Run the workflow once; what it raised, a `DeadlineError` of ours, or None."""
        playing = asyncio.create_task(self._guarded(task, session))
        try:
            while not playing.done():
                left, limit = self._time_left(session, end)
                if left <= 0:
                    return await _give_up(playing, session, engine, limit)
                await asyncio.wait({playing}, timeout=None if left == float("inf") else left)
        except asyncio.CancelledError:
            playing.cancel()
            await _ended_or_abandoned(playing, session)
            raise
        if playing.cancelled():  # by nobody here: it leaked out of the episode
            return asyncio.CancelledError("a cancellation that nobody asked for leaked out of the episode")
        raised = playing.result()
        if isinstance(raised, ConfigError):
            raise raised
        return raised

    async def _guarded(self, task: Task, session: EpisodeSession) -> BaseException | None:
        """The boundary between an episode and the run: whatever breaks becomes a value."""
        try:
            with suppress(EpisodeStopped):
                await self._workflow.run(task, session)
                session.end()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as raised:
            return raised
        return None

    def _time_left(self, session: EpisodeSession, end: float) -> tuple[float, str]:
        """Seconds until a deadline could pass, and which."""
        now = perf_counter()
        limits = [(end - now, f"the episode took longer than {self._deadlines.episode:g} s")]
        if self._deadlines.step:
            since = session.waiting_since if session.waits_for == "environment" else now
            told = f"the environment did not answer within {self._deadlines.step:g} s"
            limits.append((since + self._deadlines.step - now, told))
        return min(limits)


def _is_blamed(session: EpisodeSession, raised: BaseException) -> bool:
    """Whether an error that came back is the agent's: its action is what was being answered, and the error is
    none of machine, engine or contract. A scorer's error is judged by what it raised."""
    declared = session.reward_range is not None
    return declared and not session.is_answered and not isinstance(_root(raised), _NOBODYS)


def _root(raised: BaseException) -> BaseException:
    """What a scorer raised, in place of the error that says so."""
    return raised.__cause__ or raised if isinstance(raised, ScorerError) else raised


async def _give_up(
    playing: asyncio.Task[BaseException | None], session: EpisodeSession, engine: Engine, limit: str
) -> BaseException | None:
    """Cancel an episode whose deadline has passed; its error says what it waited for."""
    if session.stop_reason is not None:  # it had ended and only cleaning up took so long
        session.metric(1.0, "close_failed")
        logger.warning("%s: closing the environment took too long; it was abandoned", session.uid)
        error = None
    else:
        error = DeadlineError(
            f"{limit}; after {session.acted} actions it was waiting for the {session.waits_for}"
        )
        session.give_up()
        await engine.abort(session.uid)
    playing.cancel()
    await _ended_or_abandoned(playing, session)
    return error


async def _ended_or_abandoned(playing: asyncio.Task[BaseException | None], session: EpisodeSession) -> None:
    """Wait a little for a cancelled episode; then end its coroutine from outside, so that nothing that runs
    after it, the end of the event loop least of all, has to wait for it."""
    await asyncio.wait({playing}, timeout=GRACE)
    if playing.done():
        return
    logger.warning("%s did not end %g s after it was cancelled; it is abandoned", session.uid, GRACE)
    close_from_outside(playing)
    playing.add_done_callback(lambda task: task.cancelled() or task.exception())


def close_from_outside(task: asyncio.Task[Any]) -> None:
    """End the coroutine of a task that no cancellation ends, and report no such task as forgotten."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if coroutine is not None:
        with suppress(RuntimeError):  # it awaits again even while it is being closed
            coroutine.close()


def _broken(episode: Episode, session: EpisodeSession, raised: BaseException) -> Played:
    """The trajectory of an episode that an error ended, unscored."""
    steps = session.steps(scored=False)
    return Played(_trajectory(episode, session, steps, StopReason.ERROR, raised), raised)


def _trajectory(
    episode: Episode,
    session: EpisodeSession,
    steps: tuple[Step, ...],
    reason: StopReason,
    raised: BaseException | None,
) -> Trajectory:
    error, final = None, session.final_prompt_ids
    if raised is not None:
        # where a replay went another way, the prompt that it met is what there is to look at
        final = np.asarray(raised.found, dtype=np.int32) if isinstance(raised, Diverged) else None
        shown = "".join(traceback.format_exception(raised))
        error = EpisodeError(kind=type(raised).__name__, message=str(raised), traceback=shown)
    return Trajectory(
        uid=episode.uid,
        group_uid=episode.group_uid,
        task_id=episode.task.id,
        task_hash=episode.task_hash,
        seed=episode.seed,
        steps=steps,
        stop_reason=reason,
        final_prompt_ids=final,
        metrics=session.metrics,
        error=error,
    )
