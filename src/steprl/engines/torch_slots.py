"""Which request has which slot, and what each slot's keys and values are good for.

Shapes: S slots, C the longest context, P prompt tokens.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steprl.types import Completion, Ints, Sampling

WORTH_WAITING = 16
"""A shared prefix of more tokens than this is copied, or waited for, instead of being computed again."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt that is being answered: where (-1: not yet), what is sampled so far, and who waits."""

    prompt: Ints
    sampling: Sampling
    session_id: str
    uniforms: np.random.Generator
    answer: asyncio.Future[Completion]
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a prompt goes: its slot, how many of its leading tokens need no computing, and the slot
    they are to be copied from (None: they are there already)."""

    slot: int
    reused: int
    donor: int | None


class SlotTable:
    """Bookkeeping of S slots. A slot holds ``known`` tokens, of which the first ``computed`` have keys and
    values; ``valid`` says that the present weights computed all of them, so that others may use them."""

    def __init__(self, slots: int, max_context: int) -> None:
        self.known = np.zeros(slots, dtype=np.int64)
        self.computed = np.zeros(slots, dtype=np.int64)
        self._ids = np.zeros((slots, max_context), dtype=np.int32)
        self._valid = np.zeros(slots, dtype=bool)
        self._busy = np.zeros(slots, dtype=bool)
        self._session: list[str | None] = [None] * slots
        self._used = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    @property
    def full(self) -> bool:
        """True when every slot serves a request."""
        return bool(self._busy.all())

    def find(self, prompt: Ints, session_id: str) -> Place | None:
        """The best place for a prompt now; None when it should wait: no slot is free, or a longer shared
        prefix is being computed for another request at this moment."""
        slot = self._choose(session_id)
        if slot is None:
            return None
        shared = self._shared_prefix(prompt)
        kept = np.where(self._valid, np.minimum(shared, self.computed), 0)
        donor = int(kept.argmax())
        best = int(max(kept[slot], kept[donor]))
        if (shared * (self._busy & self._valid)).max() > best + WORTH_WAITING:
            return None
        copies = kept[donor] > kept[slot] + WORTH_WAITING
        # The last prompt token always runs: it predicts the first token of the action.
        reused = min(best if copies else int(kept[slot]), len(prompt) - 1)
        return Place(slot=slot, reused=reused, donor=donor if copies else None)

    def occupy(self, place: Place, prompt: Ints, session_id: str) -> None:
        """Give the slot to a request."""
        slot, n = place.slot, len(prompt)
        self._ids[slot, :n] = prompt
        self.known[slot], self.computed[slot] = n, place.reused
        self._session[slot] = session_id
        self._valid[slot] = self._busy[slot] = True

    def append(self, slot: int, token: int) -> None:
        """A sampled token joins the slot; its keys and values come with the next pass."""
        self._ids[slot, self.known[slot]] = token
        self.known[slot] += 1

    def vacate(self, slot: int) -> None:
        """The slot's request is over. What it computed stays for others, if it is still valid."""
        self._busy[slot] = False
        self.known[slot] = self.computed[slot]
        self._clock += 1
        self._used[slot] = self._clock

    def forget(self) -> None:
        """The weights have changed: no slot's keys and values, a busy one's included, serve anyone else, and
        which slot is taken next no longer depends on the past."""
        self._valid[:] = False
        self._used[:] = 0
        self._clock = 0

    def release(self, session_id: str) -> None:
        """The session will not come back: its slot is free for anyone, its content still shared."""
        for slot, owner in enumerate(self._session):
            if owner == session_id and not self._busy[slot]:
                self._session[slot] = None

    def tokens(self, slot: int, start: int, count: int) -> Ints:
        """i32[count]: tokens of a slot from ``start``."""
        return self._ids[slot, start : start + count]

    def _choose(self, session_id: str) -> int | None:
        """The session's own slot, else a free one without an owner, else the one idle for longest."""
        idle = [int(slot) for slot in np.flatnonzero(~self._busy)]
        own = [slot for slot in idle if self._session[slot] == session_id]
        unowned = [slot for slot in idle if self._session[slot] is None]
        candidates = own or unowned or idle
        return min(candidates, key=lambda slot: (self._used[slot], slot)) if candidates else None

    def _shared_prefix(self, prompt: Ints) -> NDArray[np.int64]:
        """i64[S]: how many leading tokens each slot shares with the prompt i32[P]."""
        same = self._ids[:, : len(prompt)] == prompt
        lengths = np.where(same.all(axis=1), len(prompt), same.argmin(axis=1))
        return np.minimum(lengths, self.known)
