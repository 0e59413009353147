"""Who is being waited for: when no episode ends for a while, a log line names those that are pending.

The watch is a thread of its own, so that it also speaks when an environment blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from steprl.rollout.session import EpisodeSession

logger = logging.getLogger("steprl.rollout")

_NAMED = 4
"""Episodes that a line names; the others are counted."""

_ANSWER_SECONDS = 1.0
"""How long the event loop has to show that it is alive."""


class Pending:
    """The episodes that are being played, and a watch over them."""

    def __init__(self, report: float) -> None:
        self._report = report
        self._playing: dict[str, EpisodeSession] = {}
        self._ended = 0

    @contextmanager
    def playing(self, session: EpisodeSession) -> Iterator[None]:
        """Within, the session's episode is pending."""
        self._playing[session.uid] = session
        try:
            yield
        finally:
            del self._playing[session.uid]
            self._ended += 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, a line is logged for every ``report`` seconds (0: never) in which no episode ended."""
        if not self._report:
            yield
            return
        over = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(over, asyncio.get_running_loop(), threading.get_ident()), daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        seen = self._ended
        while not over.wait(self._report):
            if self._ended == seen and self._playing:
                logger.warning("%s%s", self._line(), _blocked(loop, thread))
            seen = self._ended

    def _line(self) -> str:
        now = perf_counter()
        sessions = sorted(list(self._playing.values()), key=lambda session: session.waiting_since)
        named = [
            f"{session.uid} waits for the {session.waits_for} since {now - session.waiting_since:.0f} s "
            f"(task {session.task_id}, {session.acted} actions so far)"
            for session in sessions[:_NAMED]
        ]
        more = f" and {len(sessions) - _NAMED} more" if len(sessions) > _NAMED else ""
        return f"no episode has ended for {self._report:g} s; pending: {'; '.join(named)}{more}"


def _blocked(loop: asyncio.AbstractEventLoop, thread: int) -> str:
    """Where the event loop's thread is, if it does not answer: something runs there that should await."""
    alive = threading.Event()
    try:
        loop.call_soon_threadsafe(alive.set)
    except RuntimeError:
        return ""  # closed: the run is over
    frame = sys._current_frames().get(thread)
    if alive.wait(_ANSWER_SECONDS) or frame is None:
        return ""
    where = "".join(traceback.format_stack(frame)[-3:])
    return f"\nThe event loop is blocked. Blocking work belongs into a sync @tool or a thread. At:\n{where}"
