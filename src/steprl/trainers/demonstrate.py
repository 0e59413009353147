"""Demonstrations: a scripted policy plays an environment, and every episode is recorded as steps.

What a policy is warmed up on is thus what reinforcement learning will see: the same prompts, the same
tokens, the same masks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from steprl.envs.base import Env
from steprl.errors import EngineError
from steprl.rewards.compose import RewardComposer
from steprl.rollout import Pool
from steprl.types import (
    Completion,
    ContextRule,
    History,
    Message,
    Observation,
    Prompt,
    Renderer,
    Sampling,
    Session,
    Task,
    TrajectoryGroup,
    WeightSource,
)


class ScriptedPolicy(Protocol):
    """Reads what a model would read and writes what a model would write."""

    def act(self, messages: Sequence[Message]) -> str: ...


def demonstrate(
    make_env: Callable[[], Env],
    policy: ScriptedPolicy,
    tasks: Sequence[Task],
    *,
    renderer: Renderer,
    context: ContextRule,
    max_steps: int = 32,
    max_context: int = 1 << 20,
    seed: int = 0,
) -> list[TrajectoryGroup]:
    """One demonstrated episode per task, as groups of one, in the order of the tasks."""
    engine = _Dictation(renderer, max_context)
    pool = Pool(
        workflow=_DemonstrationWorkflow(make_env, policy, context, engine),
        engine=engine,
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=16,
    )
    return asyncio.run(
        pool.collect(
            tasks,
            label="demo",
            seed=seed,
            group_size=1,
            sampling=Sampling(max_tokens=max_context, stop_ids=renderer.stop_ids),
            max_steps=max_steps,
        )
    )


class _Dictation:
    """An engine that answers with what its session was told to say."""

    def __init__(self, renderer: Renderer, max_context: int) -> None:
        self.version = 0
        self.max_context = max_context
        self._renderer = renderer
        self._said: dict[str, str] = {}

    def say(self, session_id: str, text: str) -> None:
        """What the session's next action will be."""
        self._said[session_id] = text

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        ids = [*self._renderer.encode(self._said.pop(session_id)), *sampling.stop_ids[:1]]
        return Completion(
            ids=np.asarray(ids, dtype=np.int32),
            logprobs=None,
            policy_versions=np.zeros(len(ids), dtype=np.int32),
            finish="stop",
        )

    async def abort(self, session_id: str) -> None:
        self._said.pop(session_id, None)

    def release(self, session_id: str) -> None:
        self._said.pop(session_id, None)

    async def sync(self, source: WeightSource, version: int) -> None:
        raise EngineError("a scripted policy has no weights to take")


class _DemonstrationWorkflow:
    """The standard loop, with the scripted policy deciding what is said."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        policy: ScriptedPolicy,
        context: ContextRule,
        engine: _Dictation,
    ) -> None:
        self._make_env = make_env
        self._policy = policy
        self._context = context
        self._engine = engine

    async def run(self, task: Task, session: Session) -> None:
        env = self._make_env()
        try:
            history = History(opening=tuple(await env.reset(task, seed=session.seed)))
            tools = tuple(tool.spec for tool in env.tools)
            while True:
                messages = tuple(await self._context(history, session))
                self._engine.say(session.uid, self._policy.act(messages))
                action = await session.act(Observation(messages=messages), tools=tools)
                transition = await env.step(action)
                session.observe(transition)
                if transition.terminated or transition.truncated:
                    session.end(truncated=transition.truncated)
                    return
                history = history.then(action, transition.feedback)
        finally:
            await env.close()
