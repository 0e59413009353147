"""Attempts made up for a test of what is reported of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steprl.trainers.evaluation.attempts import Attempt


def attempt(place: int, number: int, outcome: float | None, **fields: Any) -> Attempt:
    """One attempt that was given this outcome; None: none was reported."""
    components = {} if outcome is None else {"outcome": outcome}
    return Attempt(
        **{
            "place": place,
            "attempt": number,
            "uid": f"eval-{place}.{number}",
            "task_id": f"t{place}",
            "task_hash": f"hash-{place}",
            "seed": place,
            "sampling_seed": 100 * place + number,
            "stop_reason": "terminated",
            "reward": outcome or 0.0,
            "components": components,
            **fields,
        }
    )


def spoiled(place: int, number: int, fault: str) -> Attempt:
    """One attempt that nobody can judge."""
    error = "ScorerError: cannot parse" if fault == "scorer" else "OSError: gone"
    return attempt(place, number, None, fault=fault, stop_reason="error", reward=None, error=error)


def table(*outcomes: Sequence[float | str | None]) -> list[Attempt]:
    """A row of attempts per task: outcomes, or the names of faults."""
    return [
        spoiled(place, number, cell) if isinstance(cell, str) else attempt(place, number, cell)
        for place, row in enumerate(outcomes)
        for number, cell in enumerate(row)
    ]
