"""Calls into code that may raise, hang or block: each within a deadline, on an event loop in another thread.

The checker itself is ordinary sync code, so it also works where a loop is running already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from time import perf_counter
from typing import Any

_TICK = 0.005
"""Seconds between two looks at whether the loop is held."""
_GRACE = 1.0
"""Seconds that a call, or the loop, has to obey once it was told to end."""


class Hung(Exception):
    """A call that did not come back in time; the text says for how long it was waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call came to. ``held`` is the longest time in seconds for which it let nothing else run."""

    value: Any = None
    error: BaseException | None = None
    held: float = 0.0


class Guard:
    """One event loop for all calls, as in rollout; a new one only after a call that blocked it for good.

    Args:
        deadline: seconds that a call may take.
        forgotten: takes what was raised in tasks that the environment started by itself: exits, and
            exceptions that nobody looked at.
    """

    def __init__(self, deadline: float, forgotten: Callable[[BaseException], None]) -> None:
        self.deadline = deadline
        self._forgotten = forgotten
        self._begin()

    def call(self, function: Callable[[], Any]) -> Outcome:
        """Call ``function``, and await what it returns if that can be awaited.

        Raises:
            Hung: it did not come back in time. It was cancelled, or, where that had no effect, left behind.
        """
        running = asyncio.run_coroutine_threadsafe(_outcome(function), self._loop)
        try:
            return running.result(self.deadline)
        except TimeoutError:
            running.cancel()
            if self._answers():
                raise Hung(f"did not come back within {self.deadline:g} s") from None
            self._loop.call_soon_threadsafe(self._loop.stop)  # should it ever come free
            self._begin()
            raise Hung(f"blocked the event loop for over {self.deadline:g} s") from None

    def close(self) -> None:
        """Cancel what is still running and end the loop, if it can be reached."""
        if self._answers():
            ending = asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
            wait([ending], timeout=_GRACE)
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(_GRACE)
        if not self._thread.is_alive():
            self._loop.close()

    def _begin(self) -> None:
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._handle)
        # a daemon: a call that never ends must not keep the process from ending
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop,), name="steprl-check", daemon=True
        )
        self._thread.start()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while loop is self._loop and not self._stopping:
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                self._forgotten(error)  # raised by a task: it would end a training run, but not the check

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), BaseException):
            self._forgotten(context["exception"])

    def _stop(self) -> None:
        self._stopping = True
        self._loop.stop()

    def _answers(self) -> bool:
        """Whether the loop is free within the grace period."""
        free = threading.Event()
        self._loop.call_soon_threadsafe(free.set)
        return free.wait(_GRACE)


async def _outcome(function: Callable[[], Any]) -> Outcome:
    value: Any = None
    error: BaseException | None = None
    ticker = _Ticker()
    try:
        value = function()
        if inspect.isawaitable(value):
            value = await value
    except BaseException as raised:  # an exit, too: it would end the loop and not the check
        error = raised
    return Outcome(value=value, error=error, held=ticker.stop())


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_GRACE / 2)
    await asyncio.get_running_loop().shutdown_asyncgens()


class _Ticker:
    """Ticks on the loop; the longest time without a tick is how long the loop was held."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest = 0.0
        self._last = perf_counter()
        self._next = self._loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._look()
        self._next = self._loop.call_later(_TICK, self._tick)

    def _look(self) -> None:
        now = perf_counter()
        self._longest = max(self._longest, now - self._last)
        self._last = now

    def stop(self) -> float:
        self._next.cancel()
        self._look()
        return self._longest
