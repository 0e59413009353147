"""Ctrl-C as a request: the first one ends a run in good order, wherever the run was started from."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from steprl.errors import StepRLError
from steprl.rollout.episode import GRACE, close_from_outside

Result = TypeVar("Result")


class Interrupted(StepRLError):
    """Ctrl-C: the run was saved and can be resumed."""


class Stop:
    """A wish to end early. The work sees a cancellation, and ``asked`` tells it from any other."""

    def __init__(self) -> None:
        self.asked = False
        self._cancel: Callable[[], object] | None = None

    def ask(self) -> None:
        """Cancel the work that is listening; from any thread."""
        self.asked = True
        if self._cancel is not None:
            self._cancel()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, the current task is cancelled by `ask` and, in the main thread, by the first Ctrl-C; a
        second Ctrl-C is Python's own."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self.asked:
            self._cancel()
        # only the main thread may have signal handlers
        handles_signals = threading.current_thread() is threading.main_thread()

        def on_ctrl_c() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            self.ask()

        if handles_signals:
            loop.add_signal_handler(signal.SIGINT, on_ctrl_c)
        try:
            yield
        finally:
            self._cancel = None
            if handles_signals:
                loop.remove_signal_handler(signal.SIGINT)


def run_async(work: Callable[[], Coroutine[Any, Any, Result]], stop: Stop | None = None) -> Result:
    """Run ``work`` to its end, also where a loop is running already, as in a notebook: there, in a thread of
    its own.

    A KeyboardInterrupt while waiting for that thread asks ``stop``, and the work ends in its own way.
    """
    if not _loop_is_running():  # asked outside, so that no error of the work has this one as its context
        return _run(work())
    with ThreadPoolExecutor(max_workers=1) as thread:
        running = thread.submit(lambda: _run(work()))
        try:
            return running.result()
        except KeyboardInterrupt:
            if stop is None:
                raise
            stop.ask()
            return running.result()


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """``asyncio.run``, which waits for every task that is left, however long; this one gives them a while."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work)
    finally:
        try:
            _end_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left; what does not end then is closed from outside."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=GRACE))
    for task in left:
        if task.done():
            _ = task.cancelled() or task.exception()  # looked at, so that it is not reported as forgotten
        else:
            close_from_outside(task)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
