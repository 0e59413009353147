"""Plays a scripted conversation as rollout plays any episode: pool, session, environment, context rule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steprl.engines.scripted import ScriptedEngine
from steprl.envs.base import Env
from steprl.renderers import ChatRenderer
from steprl.rewards import RewardComposer
from steprl.rollout import EnvWorkflow, FailurePolicy, Pool
from steprl.tools import Tool
from steprl.trainers.doctor.conversations import Conversation, reply
from steprl.types import (
    Action,
    Actor,
    ContextRule,
    History,
    Message,
    Observation,
    Sampling,
    Task,
    ToolSpec,
    Trajectory,
    Transition,
    Writer,
)

SUMMARY = "Oslo has 709000 inhabitants, as was said."
"""What the model answers when a context rule asks for a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """An episode and what it was made of.

    ``replies`` are the ids that the script said, action by action; ``shown`` are the messages of each prompt,
    and ``said`` all messages of the conversation, neither of which has summaries' requests.
    """

    trajectory: Trajectory
    tools: tuple[ToolSpec, ...]
    replies: tuple[tuple[int, ...], ...]
    shown: tuple[tuple[Message, ...], ...]
    said: tuple[Message, ...]

    @property
    def acts(self) -> list[int]:
        """Indices of the steps that are no summaries."""
        return [index for index, step in enumerate(self.trajectory.steps) if step.kind == "act"]


def play(
    conversation: Conversation, renderer: ChatRenderer, rule: ContextRule, called: tuple[Tool, str]
) -> Play:
    """Play it.

    Raises:
        ConfigError: the template, the format or the rule refuses it.
    """
    replies = tuple(reply(renderer, turn, called) for turn in conversation.turns)
    stage = _Stage(conversation, (called[0],) if conversation.calls else (), rule)

    def script(prompt: str, turn: int) -> Sequence[int]:
        if stage.summarising:
            return (*renderer.encode(SUMMARY), renderer.stop_ids[-1])
        return replies[stage.round]

    pool = Pool(
        workflow=EnvWorkflow(lambda: _Scripted(stage), stage),
        engine=ScriptedEngine(script, encode=renderer.encode, decode=renderer.decode),
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=1,
        failures=FailurePolicy(fail_fast=True, retries=0),
    )
    (group,) = asyncio.run(
        pool.collect(
            [Task(id=conversation.name)],
            label=conversation.name,
            seed=0,
            group_size=1,
            sampling=Sampling(max_tokens=4096, stop_ids=renderer.stop_ids),
            max_steps=len(replies),
        )
    )
    return Play(
        trajectory=group.trajectories[0],
        tools=tuple(made.spec for made in stage.tools),
        replies=replies,
        shown=tuple(stage.shown),
        said=tuple(stage.said),
    )


class _Stage:
    """Where a conversation stands; and the rule of the episode, which keeps what the real one shows."""

    def __init__(self, conversation: Conversation, tools: tuple[Tool, ...], rule: ContextRule) -> None:
        self.conversation = conversation
        self.tools = tools
        self.round = 0
        self.summarising = False
        self.shown: list[tuple[Message, ...]] = []
        self.said: list[Message] = list(conversation.opening)
        self._rule = rule

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        shown = tuple(await self._rule(history, _Asking(actor, self)))
        self.shown.append(shown)
        return shown


class _Asking:
    """The actor of a rule, which notes when it is asked for a summary."""

    def __init__(self, actor: Actor, stage: _Stage) -> None:
        self.max_context = actor.max_context
        self.count = actor.count
        self._actor = actor
        self._stage = stage

    async def act(
        self,
        observation: Observation,
        *,
        kind: Literal["act", "summary"] = "summary",
        writer: Writer | None = None,
    ) -> Action:
        self._stage.summarising = True
        try:
            return await self._actor.act(observation, kind=kind, writer=writer)
        finally:
            self._stage.summarising = False


class _Scripted(Env):
    """Answers what the conversation says."""

    def __init__(self, stage: _Stage) -> None:
        self.tools = stage.tools
        self._stage = stage

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        return self._stage.conversation.opening

    async def step(self, action: Action) -> Transition:
        stage = self._stage
        turn = stage.conversation.turns[stage.round]
        stage.round += 1
        feedback = tuple(
            Message(
                role=role,
                content=content,
                name=stage.tools[0].name if role == "tool" else None,
                tool_call_id=f"call_{place}" if role == "tool" else None,
                mark="state",
            )
            for place, (role, content) in enumerate(turn.back)
        )
        stage.said += [action.message(), *feedback]
        return Transition(feedback=feedback, terminated=stage.round == len(stage.conversation.turns))
