"""``ToolEnv``: an environment that is a list of tools, a system prompt and a reward for the answer.

Tool calls run and their results come back as tool messages; an action without calls is the final answer.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from steprl.envs.base import Env
from steprl.envs.scoring import scored
from steprl.errors import ConfigError, EnvError, ScorerError, ToolError, unknown
from steprl.tools import Tool
from steprl.types import Action, MalformedCall, Mark, Message, Task, ToolCall, Transition, finite

CUT = "Your message was cut at the length limit before it held a tool call or an answer. Be shorter."

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)

Reward = float | Mapping[str, float]
"""A number (the component ``outcome``) or several named components."""


class ToolEnv(Env):
    """Subclass it, set ``tools`` and ``system_prompt``, write ``reward``; the rest has defaults.

    ``tools`` may be functions and methods made with ``@tool``. The calls of one action run
    concurrently, except that methods, which share the episode's state, run one after the other in the
    order of the calls; so the same calls always give the same state. All of them end before the step does.

    A tool call may take ``tool_deadline`` seconds (0: any time); a tool's own deadline comes first. Results
    of a ``@tool(evidence=True)`` are marked as evidence for context rules; its errors are not.

    ``reward`` may take ``reward_deadline`` seconds (0: any time). It runs in a thread, unless it is async,
    and for several episodes at once: what it shares with other instances must bear that.
    """

    system_prompt: str = ""
    tool_deadline: float = 60.0
    reward_deadline: float = 60.0

    _task: Task | None = None
    _over: bool = False
    _closed: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(cls.tools, property):
            return  # chosen per instance, checked when used
        _by_name(cls.__name__, cls.tools)
        for name, member in vars(cls).items():
            if isinstance(member, Tool) and member.method and member not in cls.tools:
                raise ConfigError(
                    f"{cls.__name__}.{name} is a tool that the agent is not told about. "
                    f"Add it to {cls.__name__}.tools, or make tools a property that picks from them."
                )

    # --- what a subclass writes ---

    def setup(self, task: Task, seed: int) -> None | Awaitable[None]:
        """Prepare the episode's state; may be async. Called by ``reset``; everything random from ``seed``."""

    @abstractmethod
    def reward(self, task: Task, answer: str) -> Reward | Awaitable[Reward]:
        """Score the final answer: a number, or named components; may be async. Called once, at the end."""

    def answer(self, text: str) -> str:
        """The answer in the text of a final action: here all of it, without the thinking."""
        # a closing tag without its opening one closes a thought that the prompt opened
        return _THOUGHT.sub("", text).rpartition("</think>")[2].strip()

    def anchor(self, feedback: Sequence[Message]) -> str | None:
        """The canonical state after ``feedback`` (no counters, no timestamps), for step-level credit."""
        return None

    # --- the contract ---

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        """See ``Env.reset``: the system prompt, if there is one, and the task's prompt as user."""
        if self._closed or self._task is not None:
            raise EnvError(
                f"{type(self).__name__}.reset: an instance serves one episode. Make a new one for the next."
            )
        self._task = task
        await _settled(self.setup(task, seed))
        opening = [Message(role="user", content=task.prompt)]
        if self.system_prompt:
            opening.insert(0, Message(role="system", content=self.system_prompt))
        return opening

    async def step(self, action: Action) -> Transition:
        """See ``Env.step``. Calls run even when text surrounds them.

        An action that was cut by length before it held a call is not an answer: the agent is told.

        Raises:
            EnvError: called before ``reset``, after the end or after ``close``.
            ScorerError: ``reward`` raised, or returned what is not a finite number.
            ScorerTimeout: ``reward`` gave nothing in time.
            ConfigError: the reward lies outside ``reward_range``, so that the range is wrong.
        """
        task = self._running(action)
        if action.tool_calls:
            feedback = await self._run_calls(action.tool_calls)
            return Transition(feedback=feedback, anchor=self.anchor(feedback))
        if action.finish == "length":
            feedback = (Message(role="user", content=CUT),)
            return Transition(feedback=feedback, anchor=self.anchor(feedback))
        self._over = True
        reward = await scored(
            lambda: self.reward(task, self.answer(action.text)),
            on_loop=inspect.iscoroutinefunction(self.reward),
            owner=f"{type(self).__name__}.reward",
            deadline=self.reward_deadline,
        )
        return Transition(rewards=self._components(reward), terminated=True, anchor=self.anchor(()))

    async def close(self) -> None:
        """See ``Env.close``. A subclass that overrides it calls ``super().close()``."""
        self._closed = True

    # --- inside ---

    def _running(self, action: Action) -> Task:
        where = f"{type(self).__name__}.step"
        if self._closed:
            raise EnvError(f"{where}: the environment is closed")
        if self._task is None:
            raise EnvError(f"{where}: call reset first")
        if self._over:
            raise EnvError(f"{where}: the episode is over. Make a new instance for the next.")
        if action.finish == "abort":
            raise EnvError(f"{where}: the action was aborted, so there is nothing to act on")
        return self._task

    async def _run_calls(self, calls: Sequence[ToolCall | MalformedCall]) -> tuple[Message, ...]:
        tools = _by_name(type(self).__name__, self.tools)
        in_order = asyncio.Lock()  # fair: whoever asks first, the earlier call, gets it first
        results = await asyncio.gather(
            *(self._result(call, tools, in_order) for call in calls), return_exceptions=True
        )
        # Raised when all are done: a call that outlives the step would act on a closed environment.
        return tuple(_unbroken(result) for result in results)

    async def _result(
        self, call: ToolCall | MalformedCall, tools: Mapping[str, Tool], in_order: asyncio.Lock
    ) -> Message:
        if isinstance(call, MalformedCall):
            return Message(role="tool", content=_readable(f"Error: malformed tool call: {call.reason}"))
        mark: Mark | None = None
        try:
            if call.name not in tools:
                hint = "" if tools else "There are no tools: answer in plain text."
                raise ToolError(unknown("tool", call.name[:80], tools, hint=hint))
            chosen = tools[call.name].bind(self)
            if chosen.method:
                async with in_order:
                    text = await chosen.run(call.arguments, deadline=self.tool_deadline)
            else:
                text = await chosen.run(call.arguments, deadline=self.tool_deadline)
            mark = "evidence" if chosen.evidence else None
        except ToolError as error:
            text = f"Error: {error}"  # says how to call the tool, and nothing about the task
        return Message(role="tool", content=_readable(text), name=call.name, tool_call_id=call.id, mark=mark)

    def _components(self, reward: Any) -> dict[str, float]:
        named = reward if isinstance(reward, Mapping) else {"outcome": reward}
        where = f"{type(self).__name__}.reward"
        try:
            components = {name: finite(value, f"component '{name}'") for name, value in named.items()}
        except (TypeError, ValueError) as error:
            message = f"{where}: {error}. Return a float, or a mapping of names to floats."
            raise ScorerError(message) from None
        total = sum(components.values())
        low, high = self.reward_range
        if not low - 1e-9 <= total <= high + 1e-9:
            raise ConfigError(
                f"{where}: the total {total} lies outside reward_range {self.reward_range}. "
                f"Declare the range in which an episode's reward can lie: reward_range = (least, greatest)"
            )
        return components


def _by_name(owner: str, tools: Sequence[Tool]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    for entry in tools:
        if not isinstance(entry, Tool):
            raise ConfigError(f"{owner}.tools holds {entry!r}, which is not a tool. Decorate it with @tool.")
        if entry.name in named:
            raise ConfigError(
                f"{owner}.tools holds two tools called '{entry.name}'. Rename one: @tool(name=…)"
            )
        named[entry.name] = entry
    return named


def _unbroken(result: Message | BaseException) -> Message:
    if isinstance(result, BaseException):
        raise result
    return result


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _readable(text: str) -> str:
    """``text`` with half surrogate pairs, which no tokenizer can read, written out as ``\\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
