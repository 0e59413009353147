"""Running to the end: nothing that is left over, however stubborn, holds it up."""

from __future__ import annotations

import asyncio
import time

import pytest

from steprl.trainers import interrupt
from steprl.trainers.interrupt import run_async


async def stubborn() -> None:
    """Never ends, whoever asks."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


def test_a_task_that_refuses_to_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "GRACE", 0.1)
    left: list[asyncio.Task[None]] = []

    async def work() -> str:
        left.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)
        return "done"

    started = time.perf_counter()
    assert run_async(work) == "done"
    assert time.perf_counter() - started < 5
    coroutine = left[0].get_coro()
    assert coroutine is not None and coroutine.cr_frame is None  # type: ignore[union-attr]


def test_what_is_left_may_clean_up() -> None:
    cleaned: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("tidy")

    async def work() -> None:
        work.task = asyncio.create_task(tidy())  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_async(work)
    assert cleaned == ["tidy"]


def test_inside_a_running_loop_it_runs_in_a_thread_of_its_own() -> None:
    async def outer() -> int:
        async def inner() -> int:
            return 7

        return run_async(inner)

    assert asyncio.run(outer()) == 7
