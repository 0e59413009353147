"""The session of one episode: every action passes through it and becomes a step, exactly as sampled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from time import perf_counter
from typing import Literal

import numpy as np

from steprl.errors import ConfigError, EngineError, EnvError
from steprl.renderers import prompt_ids
from steprl.rewards.compose import RewardComposer
from steprl.rollout.draft import Draft, Sampled, charged
from steprl.rollout.seeds import derive_seed
from steprl.types import (
    Action,
    Engine,
    Ints,
    Observation,
    Prompt,
    Renderer,
    Sampling,
    Step,
    StopReason,
    Task,
    ToolSpec,
    Transition,
    Writer,
    finite,
)


class Diverged(EnvError):
    """Recorded actions were played again, and the environment answered otherwise than it did.

    ``step`` is the action that would have come next, ``expected`` and ``found`` are the ids of its prompt, as
    recorded and as they are now.
    """

    def __init__(self, step: int, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
        differing = (at for at, ids in enumerate(zip(expected, found, strict=False)) if ids[0] != ids[1])
        at = next(differing, min(len(expected), len(found)))
        super().__init__(
            f"the same seed and actions led to another prompt at step {step}, from token {at} on "
            f"({len(expected)} tokens then, {len(found)} now): the environment is not deterministic"
        )
        self.step = step
        self.expected = expected
        self.found = found


class EpisodeStopped(Exception):
    """The session has ended the episode: a limit was reached. Workflows let it pass."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class EpisodeSession:
    """Implements `Session` and `Actor` for one episode.

    Args:
        task: what is played; reward components see it.
        uid: the trajectory's name.
        seed: what the environment is reset with; the same for all members of a group.
        sampling_seed: with the number of the step it decides the stream each action is sampled from.
        max_steps: actions (summaries not counted) before the episode is truncated.
        recorded: steps of the same episode, played before: their actions are taken again, and the engine is
            asked from the first one on that is not among them.
    """

    def __init__(
        self,
        *,
        task: Task,
        uid: str,
        seed: int,
        sampling_seed: int,
        engine: Engine,
        renderer: Renderer,
        sampling: Sampling,
        rewards: RewardComposer,
        max_steps: int,
        recorded: Sequence[Step] = (),
    ) -> None:
        self.seed = seed
        self.stop_reason: StopReason | None = None
        self.final_prompt_ids: Ints | None = None
        self.reward_range: tuple[float, float] | None = None
        self.metrics: dict[str, float] = {}
        self.waits_for: Literal["environment", "policy"] = "environment"
        self.waiting_since = perf_counter()
        self._task = task
        self._recorded = recorded
        self._given_up = False
        self._blamed = False
        self.uid = uid
        self._sampling_seed = sampling_seed
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._rewards = rewards
        self._max_steps = max_steps
        self._drafts: list[Draft] = []
        self._last_of: dict[str, int] = {}
        self._asking = False

    async def act(
        self,
        observation: Observation,
        *,
        tools: Sequence[ToolSpec] = (),
        agent: str = "policy",
        kind: Literal["act", "summary"] = "act",
        writer: Writer | None = None,
    ) -> Action:
        """Ask the policy, or ``writer``. The prompt's ids and the sampled ids are recorded as they are.

        Raises:
            EpisodeStopped: the step limit or the context is reached, or the request was aborted.
            EngineError: the very first prompt does not fit the context.
            Diverged: this is not the prompt that the recorded action answered.
            EnvError: the episode has ended, or the last question is not answered yet.
        """
        if self._given_up:
            raise EpisodeStopped(StopReason.DEADLINE)
        if self.stop_reason is not None:
            raise EnvError(f"the episode has ended ({self.stop_reason}); a workflow must not act after that")
        if self._asking:
            raise EnvError("session.act is asked one action at a time: await it before the next one")
        asked = prompt_ids(self._renderer, observation, tools)
        acts = sum(draft.kind == "act" for draft in self._drafts)
        if kind == "act" and acts >= self._max_steps:
            self._stop(StopReason.MAX_STEPS, asked)
        if len(asked) >= self._engine.max_context:
            if not self._drafts:
                raise EngineError(
                    f"the first prompt of task '{self._task.id}' has {len(asked)} tokens, tool "
                    f"descriptions included; the context holds {self._engine.max_context}. "
                    f"Raise engine.max_context or shorten the prompt."
                )
            self._stop(StopReason.CONTEXT_FULL, asked)
        started = perf_counter()
        if self._drafts:
            last = self._drafts[-1]
            last.env_seconds = started - last.started - last.engine_seconds
        sampled = await self._next_action(asked, writer)
        action = self._renderer.parse(sampled.ids.tolist(), sampled.finish, tools)
        self._drafts.append(
            Draft(
                prompt_ids=asked,
                sampled=sampled,
                action=action,
                kind=kind,
                agent=agent,
                parent=self._last_of.get(agent),
                started=started,
                engine_seconds=perf_counter() - started,
            )
        )
        self._last_of[agent] = len(self._drafts) - 1
        if sampled.finish == "abort":
            self._stop(StopReason.ABORTED, None)
        return action

    def observe(self, transition: Transition) -> None:
        """Record what the environment answered to the last action."""
        draft = self._last("observe")
        if not isinstance(transition, Transition):
            raise EnvError(
                f"the environment answered with {transition!r}: its step must return a steprl.Transition"
            )
        draft.transition, draft.answered = transition, True
        draft.env_seconds = perf_counter() - draft.started - draft.engine_seconds

    def reward(self, value: float, name: str) -> None:
        """Add a named component to the last step; several of one name add up."""
        draft = self._last("reward")
        draft.extra[name] = draft.extra.get(name, 0.0) + finite(value, f"reward '{name}'")

    def metric(self, value: float, name: str) -> None:
        """Record a figure of the episode; a later one of the same name replaces it."""
        self.metrics[name] = finite(value, f"metric '{name}'")

    def end(self, *, truncated: bool = False) -> None:
        """The episode is over: by the task's own end, or by a limit that is not the task's."""
        if self.stop_reason is None:
            self.stop_reason = StopReason.MAX_STEPS if truncated else StopReason.TERMINATED

    def steps(self, *, scored: bool = True) -> tuple[Step, ...]:
        """The record. Rewards are composed here, once; a broken episode is recorded unscored."""
        steps = [draft.step(self._task, self._rewards if scored else None) for draft in self._drafts]
        if scored and self._blamed:
            assert self.reward_range is not None
            least = self._rewards.least(self.reward_range[0])
            steps[-1] = charged(steps[-1], least - math.fsum(step.reward or 0.0 for step in steps))
        return tuple(steps)

    def check_range(self) -> None:
        """Refuse a total outside of what was declared: the least reward would not be the least.

        Raises:
            ConfigError: the total before weights lies outside ``reward_range``.
        """
        if self.reward_range is None:
            return
        low, high = self.reward_range
        total = sum(value for draft in self._drafts for value in draft.rewards().values())
        if not low - 1e-9 <= total <= high + 1e-9:
            raise ConfigError(
                f"{self.uid}: the total reward {total:g} lies outside reward_range {self.reward_range}. "
                f"Declare the range in which an episode's reward can lie: reward_range = (least, greatest)"
            )

    @property
    def max_context(self) -> int:
        """The engine's."""
        return self._engine.max_context

    def count(self, observation: Observation, *, tools: Sequence[ToolSpec] = ()) -> int:
        """Tokens of the prompt that this observation would make."""
        return len(prompt_ids(self._renderer, observation, tools))

    @property
    def task_id(self) -> str:
        """Which task is played."""
        return self._task.id

    @property
    def acted(self) -> int:
        """Actions so far, summaries included."""
        return len(self._drafts)

    def blame(self) -> None:
        """The agent broke the environment: the episode is over, and worth the least there is."""
        self._blamed = True
        self.stop_reason = StopReason.TERMINATED

    @property
    def is_answered(self) -> bool:
        """Whether the environment has answered the last action, or none is to be answered."""
        return not self._drafts or self._drafts[-1].answered or self._drafts[-1].kind == "summary"

    def give_up(self) -> None:
        """A deadline has passed: whoever plays on is told so at the next action."""
        self._given_up = True
        self.stop_reason = StopReason.DEADLINE

    async def _next_action(self, asked: tuple[int, ...], writer: Writer | None) -> Sampled:
        """The recorded action, where there is one; else the writer's, or the engine's."""
        index = len(self._drafts)
        if index < len(self._recorded):
            step = self._recorded[index]
            expected = tuple(step.prompt_ids.tolist())
            if asked != expected:
                raise Diverged(index, expected, asked)
            self._asking = True
            await asyncio.sleep(0)  # as an engine would: who asks twice at once does so again
            self._asking, self.waiting_since = False, perf_counter()
            return Sampled.then(step)
        if writer is not None:
            self._asking = True
            try:
                ids = self._renderer.encode(await writer(), literal=True)
            finally:
                self._asking = False
            return Sampled.foreign(ids, self._engine.version, self._sampling)
        self._asking, self.waits_for, self.waiting_since = True, "policy", perf_counter()
        try:
            completion = await self._engine.generate(
                Prompt(ids=np.asarray(asked, dtype=np.int32)),
                self._sampling,
                session_id=self.uid,
                seed=derive_seed(self._sampling_seed, index),
            )
        except (EngineError, ConfigError):
            raise
        except Exception as error:
            raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error
        finally:
            self._asking, self.waits_for, self.waiting_since = False, "environment", perf_counter()
        return Sampled.now(completion, self._sampling)

    def _last(self, verb: str) -> Draft:
        if not self._drafts:
            raise EnvError(f"session.{verb} comes after the first action, and there is none yet")
        return self._drafts[-1]

    def _stop(self, reason: StopReason, prompt_ids: tuple[int, ...] | None) -> None:
        self.stop_reason = reason
        self.final_prompt_ids = None if prompt_ids is None else np.asarray(prompt_ids, dtype=np.int32)
        raise EpisodeStopped(reason)
