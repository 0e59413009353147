"""How many threads torch computes with: a choice of the run, made in one place."""

from __future__ import annotations

import torch


def set_threads(count: int) -> None:
    """Let torch's operators use ``count`` threads. More than the idle cores makes them far slower."""
    torch.set_num_threads(count)
