"""Deterministic order: the engine answers in rounds, so that no delay decides what is computed together.

Whatever shares a batch shares its rounding. Here a round begins when every episode that is being played has
asked; its requests go to the engine in dispatch order, and nobody joins before all are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from steprl.types import Completion, Engine, Prompt, Sampling, WeightSource


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    prompt: Prompt
    sampling: Sampling
    seed: int
    turn: asyncio.Future[None]


class Turns:
    """An `Engine` that asks another one in rounds.

    Args:
        engine: answers. Nobody else may ask it meanwhile.
        order: session ids in dispatch order: each takes a seat once.
        seats: how many episodes are played at once.
    """

    def __init__(self, engine: Engine, order: Sequence[str], seats: int) -> None:
        self.version = engine.version
        self.max_context = engine.max_context
        self._engine = engine
        self._place = {session_id: place for place, session_id in enumerate(order)}
        self._admitted = {session_id: asyncio.Event() for session_id in order}
        self._waiting = list(reversed(order))
        self._seated: set[str] = set()
        self._asked: dict[str, _Question] = {}
        for _ in range(min(seats, len(order))):
            self._admit()

    @asynccontextmanager
    async def seat(self, session_id: str) -> AsyncIterator[None]:
        """Within, the session's episode is being played; the others' rounds wait for it."""
        try:
            await self._admitted[session_id].wait()
            yield
        finally:
            if session_id in self._seated:
                self._seated.remove(session_id)
                if self._waiting:
                    self._admit()
                self._begin_soon()
            else:
                self._waiting.remove(session_id)  # cancelled before its turn came

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        """See `Engine`: answered in the round that begins when every seated session has asked."""
        question = _Question(prompt, sampling, seed, asyncio.get_running_loop().create_future())
        self._asked[session_id] = question
        self._begin_soon()
        try:
            await question.turn
        finally:
            if self._asked.get(session_id) is question:
                del self._asked[session_id]
        return await self._engine.generate(prompt, sampling, session_id=session_id, seed=seed)

    async def abort(self, session_id: str) -> None:
        """See `Engine`."""
        await self._engine.abort(session_id)

    def release(self, session_id: str) -> None:
        """See `Engine`."""
        self._engine.release(session_id)

    async def sync(self, source: WeightSource, version: int) -> None:
        """See `Engine`."""
        await self._engine.sync(source, version)
        self.version = version

    def _admit(self) -> None:
        session_id = self._waiting.pop()
        self._seated.add(session_id)
        self._admitted[session_id].set()

    def _begin_soon(self) -> None:
        """Begin when whoever runs now has come to wait like everyone else."""
        if self._asked.keys() == self._seated:
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._asked.keys() != self._seated:
            return  # somebody was given up meanwhile
        # Who waits for a future runs in the order in which futures are set: the engine is asked in dispatch
        # order, by all of them before its own loop gets to run.
        for session_id in sorted(self._asked, key=self._place.__getitem__):
            self._asked.pop(session_id).turn.set_result(None)
