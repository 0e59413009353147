"""Scoring off the event loop and within a time limit, so that a reward that hangs costs its own episode only.

Python cannot stop a thread: one that hangs runs on, keeps nobody from ending, and is counted by nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from steprl.errors import ScorerTimeout

Result = TypeVar("Result")


async def in_time(score: Callable[[], Result], seconds: float) -> Result:
    """What ``score`` returns or raises, called in a thread of its own.

    Raises:
        ScorerTimeout: it was not done after ``seconds`` (0: any time will do).
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

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
            result = score()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has closed: whoever asked is gone
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="steprl-scorer", daemon=True).start()
    done, _ = await asyncio.wait({answer}, timeout=seconds or None)
    if not done:
        answer.cancel()
        raise ScorerTimeout(
            f"the reward components were not computed within {seconds:g} s. "
            f"Raise rollout.deadlines.score, or make them faster."
        )
    return answer.result()
