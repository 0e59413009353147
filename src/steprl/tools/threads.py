"""Sync tools run in threads: one for each call that is running, however many there are, and none that keeps
the process from ending. A thread cannot be stopped from outside, so a call that hangs must cost only itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from steprl.errors import EnvError

Result = TypeVar("Result")

_Work = Callable[[], None]

_IDLE_SECONDS = 10.0
"""How long a thread without work waits for the next call."""


class _Threads:
    """Threads that are kept for the next call while they are idle, and made when none is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Work]] = []

    def submit(self, work: _Work) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            # daemons, unlike those of concurrent.futures: nobody waits for a hung one at exit
            thread = threading.Thread(target=self._serve, args=(inbox,), name="steprl-tool", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise EnvError(
                    f"no thread can be started for a tool ({threading.active_count()} are running): {error}. "
                    f"Lower rollout.concurrency, or look for tools that never return."
                ) from error
        inbox.put(work)

    def _serve(self, inbox: queue.SimpleQueue[_Work]) -> None:
        while True:
            try:
                work = inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # taken a moment ago: its work is on the way
            work()
            with self._lock:
                self._idle.append(inbox)


_threads = _Threads()


async def in_thread(function: Callable[[], Result]) -> Result:
    """What ``function`` returns or raises, off the event loop, with the caller's context variables.

    A caller that is cancelled stops waiting at once; the thread ends when the function does.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return  # nobody waits any more
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop has closed: whoever asked is gone

    _threads.submit(work)
    return await answer
