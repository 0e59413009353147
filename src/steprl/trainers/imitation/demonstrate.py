"""Demonstrations: a scripted policy plays an environment, and every episode is recorded as steps.

What a policy is warmed up on is thus what reinforcement learning will see: the same prompts, the same
tokens, the same masks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from steprl.envs.base import Env
from steprl.envs.policy import Move, ScriptedPolicy, Summarising
from steprl.errors import ConfigError, EngineError
from steprl.renderers import ChatRenderer
from steprl.rewards.compose import RewardComposer
from steprl.rollout import EnvWorkflow, Pool, Progress
from steprl.trainers.interrupt import run_async
from steprl.types import (
    Action,
    Completion,
    ContextRule,
    Message,
    Observation,
    Prompt,
    Sampling,
    Session,
    Task,
    ToolCall,
    ToolSpec,
    TrajectoryGroup,
    WeightSource,
    Writer,
)

UNLIMITED = 1 << 20
"""A context that holds any demonstration, in tokens."""


def demonstrate(
    make_env: Callable[[], Env],
    policy_for: Callable[[Task], ScriptedPolicy],
    tasks: Sequence[Task],
    *,
    renderer: ChatRenderer,
    context: ContextRule,
    max_steps: int = 32,
    max_context: int = UNLIMITED,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[TrajectoryGroup]:
    """One demonstrated episode per task, as groups of one, in the order of the tasks.

    An episode that does not fit ``max_context`` tokens is cut there, as a model's would be.

    Raises:
        ConfigError: what the policy does is no move, or cannot be written in the tool-call format.
        EnvError: every episode broke.
    """
    engine = _Dictation(renderer, max_context)
    pool = Pool(
        workflow=_Demonstration(EnvWorkflow(make_env, context), policy_for, renderer, engine),
        engine=engine,
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=16,
    )
    return run_async(
        lambda: pool.collect(
            tasks,
            label="demo",
            seed=seed,
            group_size=1,
            sampling=Sampling(max_tokens=max_context, stop_ids=renderer.stop_ids),
            max_steps=max_steps,
            progress=progress,
        )
    )


class _Dictation:
    """An engine that answers with what its session was told to say."""

    def __init__(self, renderer: ChatRenderer, max_context: int) -> None:
        self.version = 0
        self.max_context = max_context
        self._renderer = renderer
        self._said: dict[str, str] = {}

    def say(self, session_id: str, text: str) -> None:
        """What the session's next action will be."""
        self._said[session_id] = text

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        ids = [*self._renderer.encode(self._said.pop(session_id)), *sampling.stop_ids[:1]]
        room = self.max_context - len(prompt.ids)
        finish: Literal["stop", "length"] = "stop" if len(ids) <= room else "length"
        ids = ids[:room]
        return Completion(
            ids=np.asarray(ids, dtype=np.int32),
            logprobs=None,
            policy_versions=np.zeros(len(ids), dtype=np.int32),
            finish=finish,
        )

    async def abort(self, session_id: str) -> None:
        self._said.pop(session_id, None)

    def release(self, session_id: str) -> None:
        self._said.pop(session_id, None)

    async def sync(self, source: WeightSource, version: int) -> None:
        raise EngineError("a scripted policy has no weights to take")


class _Demonstration:
    """The standard loop, through a session in which the task's scripted policy decides what is said."""

    def __init__(
        self,
        workflow: EnvWorkflow,
        policy_for: Callable[[Task], ScriptedPolicy],
        renderer: ChatRenderer,
        engine: _Dictation,
    ) -> None:
        self._workflow = workflow
        self._policy_for = policy_for
        self._renderer = renderer
        self._engine = engine

    async def run(self, task: Task, session: Session) -> None:
        dictated = _DictatedSession(session, self._policy_for(task), self._renderer, self._engine)
        await self._workflow.run(task, dictated)


class _DictatedSession:
    """A session that asks the scripted policy first, and has the engine say what it said."""

    def __init__(
        self, session: Session, policy: ScriptedPolicy, renderer: ChatRenderer, engine: _Dictation
    ) -> None:
        self.uid = session.uid
        self.seed = session.seed
        self.reward_range: tuple[float, float] | None = None
        self.observe = session.observe
        self.reward = session.reward
        self.metric = session.metric
        self.end = session.end
        self.count = session.count
        self.max_context = session.max_context
        self._session = session
        self._policy = policy
        self._renderer = renderer
        self._engine = engine

    async def act(
        self,
        observation: Observation,
        *,
        tools: Sequence[ToolSpec] = (),
        agent: str = "policy",
        kind: Literal["act", "summary"] = "act",
        writer: Writer | None = None,
    ) -> Action:
        """See `Session`. The recorded action is what the policy said, read back as a model's would be."""
        if writer is not None:
            return await self._session.act(observation, tools=tools, agent=agent, kind=kind, writer=writer)
        move = self._move(_read(observation), kind)
        self._engine.say(self.uid, self._renderer.write(move.text, move.calls, tools))
        action = await self._session.act(observation, tools=tools, agent=agent, kind=kind)
        if action.finish == "stop" and not _same(move.calls, action):
            raise ConfigError(
                f"the calls {move.calls!r:.200} are not read back from what was written, "
                f"{action.text!r:.200}. A template that opens a thought for the policy needs a text that "
                f"closes it."
            )
        return action

    def _move(self, messages: Sequence[Message], kind: Literal["act", "summary"]) -> Move:
        """What the scripted policy does; of a summary, what it writes."""
        name = type(self._policy).__name__
        if kind == "summary":
            if not isinstance(self._policy, Summarising):
                raise ConfigError(
                    f"the context rule asks the policy for a summary, and {name} has no summarise(messages) "
                    f"to write one. Give it that method, demonstrate with another context rule, or use "
                    f"stored trajectories as demonstrations."
                )
            return Move(text=self._policy.summarise(messages))
        move = self._policy.act(messages)
        if not isinstance(move, Move):
            raise ConfigError(
                f"{name}.act returned {move!r:.80}, which is not a steprl.envs.policy.Move. "
                f"Return Move(text=…, calls=…)."
            )
        return move


def _read(observation: Observation) -> Sequence[Message]:
    """An observation as the messages that a scripted policy reads."""
    if observation.messages is not None:
        return observation.messages
    if observation.text is not None:
        return (Message(role="user", content=observation.text),)
    raise ConfigError("an observation of token ids cannot be read by a scripted policy; it reads messages")


def _same(calls: Sequence[tuple[str, Mapping[str, Any]]], action: Action) -> bool:
    """Whether these are the action's calls, as JSON has them."""
    found = [(call.name, dict(call.arguments)) for call in action.tool_calls if isinstance(call, ToolCall)]
    meant = [(name, json.loads(json.dumps(dict(arguments)))) for name, arguments in calls]
    return found == meant and len(found) == len(action.tool_calls)
