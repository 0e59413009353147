"""The session of one episode: every action passes through it and becomes a step, exactly as sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import numpy as np

from steprl.errors import EngineError, EnvError
from steprl.renderers import prompt_ids
from steprl.rewards.compose import RewardComposer
from steprl.rollout.seeds import derive_seed
from steprl.types import (
    Action,
    Completion,
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
    finite,
)


class EpisodeStopped(Exception):
    """The session has ended the episode: a limit was reached. Workflows let it pass."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(slots=True, eq=False)
class _Draft:
    """A step being written: sampled already, not yet answered by the environment."""

    prompt_ids: tuple[int, ...]
    completion: Completion
    action: Action
    kind: Literal["act", "summary"]
    agent: str
    parent: int | None
    started: float
    engine_seconds: float
    env_seconds: float = 0.0
    transition: Transition = field(default_factory=Transition)
    extra: dict[str, float] = field(default_factory=dict)


class EpisodeSession:
    """Implements `Session` and `Actor` for one episode.

    Args:
        task: what is played; reward components see it.
        uid: the trajectory's name.
        seed: what the environment is reset with; the same for all members of a group.
        sampling_seed: with the number of the step it decides the stream each action is sampled from.
        max_steps: actions (summaries not counted) before the episode is truncated.
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
    ) -> None:
        self.seed = seed
        self.stop_reason: StopReason | None = None
        self.final_prompt_ids: Ints | None = None
        self._task = task
        self.uid = uid
        self._sampling_seed = sampling_seed
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._rewards = rewards
        self._max_steps = max_steps
        self._drafts: list[_Draft] = []
        self._last_of: dict[str, int] = {}
        self._asking = False

    async def act(
        self,
        observation: Observation,
        *,
        tools: Sequence[ToolSpec] = (),
        agent: str = "policy",
        kind: Literal["act", "summary"] = "act",
    ) -> Action:
        """Ask the policy. The prompt's ids and the sampled ids are recorded as they are.

        Raises:
            EpisodeStopped: the step limit or the context is reached, or the request was aborted.
            EngineError: the very first prompt does not fit the context.
            EnvError: the episode has ended, or the last question is not answered yet.
        """
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
        completion = await self._sampled(asked)
        action = self._renderer.parse(completion.ids.tolist(), completion.finish)
        self._drafts.append(
            _Draft(
                prompt_ids=asked,
                completion=completion,
                action=action,
                kind=kind,
                agent=agent,
                parent=self._last_of.get(agent),
                started=started,
                engine_seconds=perf_counter() - started,
            )
        )
        self._last_of[agent] = len(self._drafts) - 1
        if completion.finish == "abort":
            self._stop(StopReason.ABORTED, None)
        return action

    def observe(self, transition: Transition) -> None:
        """Record what the environment answered to the last action."""
        draft = self._last("observe")
        draft.transition = transition
        draft.env_seconds = perf_counter() - draft.started - draft.engine_seconds

    def reward(self, value: float, name: str) -> None:
        """Add a named component to the last step; several of one name add up."""
        draft = self._last("reward")
        draft.extra[name] = draft.extra.get(name, 0.0) + finite(value, f"reward '{name}'")

    def end(self, *, truncated: bool = False) -> None:
        """The episode is over: by the task's own end, or by a limit that is not the task's."""
        if self.stop_reason is None:
            self.stop_reason = StopReason.MAX_STEPS if truncated else StopReason.TERMINATED

    def steps(self, *, scored: bool = True) -> tuple[Step, ...]:
        """The record. Rewards are composed here, once; a broken episode is recorded unscored."""
        return tuple(self._finished(draft, scored) for draft in self._drafts)

    async def _sampled(self, asked: tuple[int, ...]) -> Completion:
        self._asking = True
        try:
            return await self._engine.generate(
                Prompt(ids=np.asarray(asked, dtype=np.int32)),
                self._sampling,
                session_id=self.uid,
                seed=derive_seed(self._sampling_seed, len(self._drafts)),
            )
        finally:
            self._asking = False

    def _finished(self, draft: _Draft, scored: bool) -> Step:
        transition = draft.transition
        if draft.extra:
            named = dict(transition.rewards)
            for name, value in draft.extra.items():
                named[name] = named.get(name, 0.0) + value
            transition = Transition(
                feedback=transition.feedback,
                rewards=named,
                terminated=transition.terminated,
                truncated=transition.truncated,
                anchor=transition.anchor,
            )
        rewards: Mapping[str, float] = {}
        reward: float | None = None
        if scored:
            rewards, reward = self._rewards.compose(self._task, draft.action, transition)
        completion = draft.completion
        return Step(
            prompt_ids=np.asarray(draft.prompt_ids, dtype=np.int32),
            action_ids=completion.ids,
            sampled_mask=np.ones(len(completion.ids), dtype=np.bool_),
            logprobs=completion.logprobs,
            policy_versions=completion.policy_versions,
            sampling=self._sampling,
            finish=completion.finish,
            kind=draft.kind,
            agent=draft.agent,
            parent=draft.parent,
            reward=reward,
            rewards=rewards,
            feedback=transition.feedback,
            anchor=transition.anchor,
            calls=draft.action.tool_calls,
            timings={"engine": draft.engine_seconds, "env": draft.env_seconds},
        )

    def _last(self, verb: str) -> _Draft:
        if not self._drafts:
            raise EnvError(f"session.{verb} comes after the first action, and there is none yet")
        return self._drafts[-1]

    def _stop(self, reason: StopReason, prompt_ids: tuple[int, ...] | None) -> None:
        self.stop_reason = reason
        self.final_prompt_ids = None if prompt_ids is None else np.asarray(prompt_ids, dtype=np.int32)
        raise EpisodeStopped(reason)
