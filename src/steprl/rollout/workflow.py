"""The standard loop: an environment, a context rule, and the session between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal

from steprl.envs.base import Env
from steprl.errors import ConfigError
from steprl.types import (
    Action,
    ContextRule,
    History,
    Message,
    Observation,
    Session,
    Task,
    ToolSpec,
    Writer,
    finite,
)

logger = logging.getLogger("steprl.rollout")


class _PolicyActor:
    """What a context rule sees of the session. ``summaries`` are those written since they were last taken."""

    def __init__(self, session: Session, tools: Sequence[ToolSpec]) -> None:
        self.max_context = session.max_context
        self.summaries: list[Action] = []
        self._session = session
        self._tools = tools

    def count(self, messages: Sequence[Message]) -> int:
        return self._session.count(_observed(messages), tools=self._tools)

    async def act(
        self,
        observation: Observation,
        *,
        kind: Literal["act", "summary"] = "summary",
        writer: Writer | None = None,
    ) -> Action:
        action = await self._session.act(observation, tools=self._tools, kind=kind, writer=writer)
        if kind == "summary":
            self.summaries.append(action)
        return action


class EnvWorkflow:
    """Plays one episode of an `Env`: ``o_{t+1} = transition.observation or C(z_0 … z_t)``."""

    def __init__(self, make_env: Callable[[], Env], context: ContextRule) -> None:
        self._make_env = make_env
        self._context = context

    async def run(self, task: Task, session: Session) -> None:
        """Reset, then act and step until the environment ends it or the session does."""
        env = self._make_env()
        session.reward_range = _declared(env)
        try:
            history = History(opening=tuple(await env.reset(task, seed=session.seed)))
            tools = tuple(tool.spec for tool in env.tools)
            actor = _PolicyActor(session, tools)
            observation, history = await self._next(history, actor)
            while True:
                action = await session.act(observation, tools=tools)
                transition = await env.step(action)
                session.observe(transition)
                if transition.terminated or transition.truncated:
                    session.end(truncated=transition.truncated)
                    return
                history = history.then(action, transition.feedback)
                if transition.observation is not None:
                    observation = transition.observation
                else:
                    observation, history = await self._next(history, actor)
        finally:
            await _closed(env, session)

    async def _next(self, history: History, actor: _PolicyActor) -> tuple[Observation, History]:
        """What the rule shows, and the history with the summaries that it asked for."""
        shown = _observed(await self._context(history, actor))
        for summary in actor.summaries:
            history = history.summarised(summary)
        actor.summaries.clear()
        return shown, history


async def _closed(env: Env, session: Session) -> None:
    """Close an environment; that it fails to is told and counted, and costs the episode nothing."""
    try:
        await env.close()
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        playing = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and playing is not None and playing.cancelling():
            raise  # the episode's own, and none that leaked from a task of the environment
        session.metric(1.0, "close_failed")
        logger.warning("%s: %s.close failed: %r", session.uid, type(env).__name__, error)


def _declared(env: Env) -> tuple[float, float]:
    """The environment's range of rewards, once it is known to be one."""
    declared = env.reward_range
    try:
        low, high = (finite(bound, "a bound") for bound in declared)
        ordered = low <= high
    except (TypeError, ValueError):
        ordered = False
    if not ordered:
        raise ConfigError(
            f"{type(env).__name__}.reward_range is {declared!r}: give the least and the greatest total "
            f"reward of an episode, two finite numbers"
        )
    return low, high


def _observed(messages: Sequence[Message]) -> Observation:
    return Observation(messages=tuple(messages))
