"""How torch computes: with how many threads, and whether only with what gives the same bits every time.

Choices of the run, made in one place.
"""

from __future__ import annotations

import torch


def set_threads(count: int) -> None:
    """Let torch's operators use ``count`` threads. More than the idle cores makes them far slower."""
    torch.set_num_threads(count)


def set_deterministic() -> None:
    """Let torch use only algorithms that give the same bits every time; one without such a form raises."""
    torch.use_deterministic_algorithms(True)
