"""``Tool`` and ``@tool``: a typed function, sync or async, that an agent can call by name.

Whatever the agent does wrong comes back as a ``ToolError`` whose text tells it what to do instead.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, overload

from pydantic_core import PydanticSerializationError, to_json

from steprl.errors import ConfigError, DeadlineError, EnvError, ToolError
from steprl.tools.cassette import GivenUp, playing
from steprl.tools.schema import Arguments, arguments_of, read_docstring
from steprl.tools.threads import in_thread
from steprl.types import ToolSpec

_CLEANING_UP = 1.0
"""Seconds that an async tool has to end after it was cancelled."""

MAX_OUTPUT = 10_000
"""Characters of a tool's output that reach the agent, unless the tool says otherwise."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A function an agent can call. Calling the tool itself calls the plain function.

    ``spec`` is what the model is told; ``method`` says that the function takes ``self``: accessed on an
    instance, the tool is bound to it like a method, so that tools can share an episode's state.
    ``deadline`` is how many seconds a call may take (0: any); None leaves it to the environment.
    ``evidence`` says that its results are worth keeping: a `ToolEnv` marks them for context rules.
    """

    spec: ToolSpec
    call: Callable[..., Any]
    arguments: Arguments
    max_output: int = MAX_OUTPUT
    method: bool = False
    deadline: float | None = None
    evidence: bool = False

    @property
    def name(self) -> str:
        """What the agent calls it."""
        return self.spec.name

    @property
    def description(self) -> str:
        """What the agent is told that it does."""
        return self.spec.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __get__(self, instance: object | None, owner: type | None = None) -> Tool:
        return self if instance is None else self.bind(instance)

    def bind(self, instance: object) -> Tool:
        """This tool with ``self`` filled in; itself when it takes none or has one already."""
        if not self.method or isinstance(self.call, MethodType):
            return self
        return replace(self, call=MethodType(self.call, instance))

    async def run(self, arguments: Mapping[str, Any], *, deadline: float = 0.0) -> str:
        """Check the arguments, call the function, and return its result as text.

        A sync function runs in a thread, off the event loop. Text is returned as it is, ``None`` as
        "ok", a set in sorted order, anything else as compact JSON; cut at ``max_output`` characters. Inside
        a `Cassette` the answer may be a recorded one, unless the tool is a method.

        Args:
            deadline: seconds a call may take (0: any) where the tool itself does not say.

        Raises:
            ToolError: wrong arguments, no result in time, or the function raised: ``TypeName: message``.
            DeadlineError: a method that shares the episode's state gave no result in time and may still
                be changing it.
            EnvError: raised by the function itself, for what is not the agent's doing; or the result
                cannot be written as JSON.
        """
        if self.method and not isinstance(self.call, MethodType):
            raise EnvError(f"tool '{self.name}' is a method: bind it first (instance.{self.name})")
        checked = self.arguments.check(self.name, arguments)
        seconds = deadline if self.deadline is None else self.deadline
        cassette = None if self.method else playing(self.name)
        if cassette is None:
            return await self._answer(checked, seconds)
        return await cassette.through(self.name, checked, lambda: self._answer(checked, seconds))

    async def _answer(self, checked: Mapping[str, Any], deadline: float) -> str:
        try:
            result = await (self._result(checked) if not deadline else self._in_time(checked, deadline))
        except GivenUp:
            raise  # nobody knows what the answer would have been
        except ToolError as error:
            raise ToolError(self._cut(str(error))) from error
        return self._cut(self._text(result))

    async def _result(self, checked: Mapping[str, Any]) -> Any:
        if not inspect.iscoroutinefunction(self.call):
            return await in_thread(lambda: self._call_in_thread(checked))
        with _told():
            return await self.call(**checked)

    async def _in_time(self, checked: Mapping[str, Any], deadline: float) -> Any:
        working = asyncio.ensure_future(self._result(checked))
        try:
            await asyncio.wait({working}, timeout=deadline)
            if working.done():
                return working.result()
            working.cancel()
            # whoever cleans up at a cancellation may do so, but not for ever
            await asyncio.wait({working}, timeout=_CLEANING_UP)
        except asyncio.CancelledError:
            working.cancel()
            raise
        if self.method and not (working.done() and inspect.iscoroutinefunction(self.call)):
            raise DeadlineError(
                f"tool '{self.name}' gave no result within {deadline:g} s and may still be changing the "
                f"episode's state. Raise its deadline, @tool(deadline=…), or make it faster."
            )
        raise GivenUp(f"no result within {deadline:g} seconds; the call was given up")

    def _call_in_thread(self, checked: Mapping[str, Any]) -> Any:
        # translated here, not by the caller: a StopIteration never makes it through a future
        with _told():
            return self.call(**checked)

    def _text(self, result: Any) -> str:
        if isinstance(result, str):
            return result
        if result is None:
            return "ok"
        if isinstance(result, (set, frozenset)):
            result = sorted(result, key=repr)  # the order of a set differs from process to process
        try:
            return to_json(result).decode()
        except (PydanticSerializationError, RecursionError, ValueError) as error:
            raise EnvError(
                f"tool '{self.name}' returned a {type(result).__name__} that JSON cannot hold: {error}. "
                f"Return text, or values made of lists, dicts, numbers and text."
            ) from error

    def _cut(self, text: str) -> str:
        if len(text) <= self.max_output:
            return text
        return (
            f"{text[: self.max_output]}… [cut: {len(text) - self.max_output:,} of {len(text):,} characters]"
        )


def _cancelled() -> bool:
    """Whether someone cancelled the running task; in a thread without a loop nobody can."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a tool's function raises into what the agent is told, without the traceback.

    A function that exits (argparse does) or trips over a task that it cancelled itself has failed like
    any other; only a call that was cancelled or closed from outside, and Ctrl-C, go on as they are.
    """
    try:
        yield
    except (EnvError, ToolError):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _cancelled():
            raise
        outside = isinstance(error, (KeyboardInterrupt, GeneratorExit))
        if outside and threading.current_thread() is threading.main_thread():
            raise
        raise ToolError(f"{type(error).__name__}: {error}") from error


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    max_output: int = MAX_OUTPUT,
    deadline: float | None = None,
    evidence: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    max_output: int = MAX_OUTPUT,
    deadline: float | None = None,
    evidence: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function: ``@tool``, or ``@tool(deadline=5, …)`` with any of the options.

    Every parameter needs a type. The docstring up to its first section is the description; a
    Google-style ``Args:`` section describes the arguments. Works on methods, too: ``self`` is not an
    argument. A call that takes longer than ``deadline`` seconds (0: any time; None: as the environment says)
    is given up, and the agent is told. With ``evidence`` a `ToolEnv` returns its results, not its errors, as
    ``Message(mark="evidence")``, which context rules may keep and no model sees.

    Raises:
        ConfigError: no description, a bad name, a parameter without a type or with one that JSON
            cannot express.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return _make(function, name, description, max_output, deadline, evidence)

    return make if function is None else make(function)


def _make(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    max_output: int,
    deadline: float | None,
    evidence: bool,
) -> Tool:
    if not inspect.isfunction(function):
        raise ConfigError(
            f"@tool needs a function, got {function!r}. "
            f"Options are given by keyword, and @staticmethod goes above @tool."
        )
    name = function.__name__ if name is None else name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"tool name '{name}': letters, digits, _ and - are allowed, 64 at most, no digit first"
        )
    if max_output < 1:
        raise ConfigError(f"tool '{name}': max_output must be at least 1 character, got {max_output}")
    if deadline is not None and not 0 <= deadline < float("inf"):
        raise ConfigError(f"tool '{name}': deadline must be 0 (none) or a number of seconds, got {deadline}")
    documented, described = read_docstring(function)
    description = documented if description is None else description
    if not description:
        raise ConfigError(f"tool '{name}' has no description. Write a docstring: the agent reads it.")
    arguments = arguments_of(function, name, described)
    return Tool(
        spec=ToolSpec(name=name, description=description, parameters=arguments.schema),
        call=function,
        arguments=arguments,
        max_output=max_output,
        method=next(iter(inspect.signature(function).parameters), "") == "self",
        deadline=deadline,
        evidence=evidence,
    )
