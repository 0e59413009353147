"""Calling reward functions: off the event loop, within a time limit, and told apart from everything else that
may break, so that no wrong answer is counted where nobody could say what it is worth."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from steprl.errors import ConfigError, ScorerError, ScorerTimeout
from steprl.tools.threads import in_thread

Result = TypeVar("Result")

_CLEANING_UP = 1.0
"""Seconds that a cancelled async reward has to end."""


async def scored(reward: Callable[[], Any], *, on_loop: bool, owner: str, deadline: float) -> Any:
    """What ``reward`` returns.

    Args:
        reward: called in a thread, unless it is ``on_loop``; what it returns is awaited if that can be.
        owner: what messages call it.
        deadline: seconds after which it is given up; 0: never.

    Raises:
        ScorerTimeout: it gave nothing in time. A thread runs on; an async function is cancelled.
        ScorerError: it raised.
        ConfigError: it raised this.
    """
    scoring = asyncio.ensure_future(_outcome(reward, on_loop, owner))
    try:
        await asyncio.wait({scoring}, timeout=deadline or None)
        if scoring.done():
            return scoring.result()
        scoring.cancel()
        await asyncio.wait({scoring}, timeout=_CLEANING_UP)
    except asyncio.CancelledError:
        scoring.cancel()
        raise
    raise ScorerTimeout(
        f"{owner} gave no reward within {deadline:g} s. Set a longer reward_deadline, or make it faster."
    )


async def in_time(score: Callable[[], Result], seconds: float) -> Result:
    """What computing the reward components returns or raises, in a thread, which runs on if it hangs.

    Raises:
        ScorerTimeout: it was not done after ``seconds`` (0: any time will do).
    """
    scoring = asyncio.ensure_future(in_thread(score))
    try:
        await asyncio.wait({scoring}, timeout=seconds or None)
        if scoring.done():
            return scoring.result()
    finally:
        scoring.cancel()
    raise ScorerTimeout(
        f"the reward components were not computed within {seconds:g} s. "
        f"Raise rollout.deadlines.score, or make them faster."
    )


async def _outcome(reward: Callable[[], Any], on_loop: bool, owner: str) -> Any:
    def call() -> Any:
        # translated here, not by the caller: a StopIteration never makes it through a future
        with _told(owner):
            return reward()

    value = call() if on_loop else await in_thread(call)
    if not inspect.isawaitable(value):
        return value
    with _told(owner):
        return await value


@contextmanager
def _told(owner: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, ScorerError):
        raise
    except (Exception, SystemExit) as error:
        told = ScorerError(f"{owner} raised {type(error).__name__}: {error}")
        raise told.with_traceback(error.__traceback__) from error
