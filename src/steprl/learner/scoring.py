"""One figure per action token of many rows, in passes that fit and without gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from steprl.batch import micro_batches
from steprl.types import Floats, Row


def score_rows(
    rows: Sequence[Row], token_budget: int, forward: Callable[[Sequence[Row]], Tensor]
) -> list[Floats]:
    """What ``forward`` says of some rows' action tokens ([M], row by row), as f32[N] of each of ``rows``.

    Rows without an action token have an empty answer and are not run.
    """
    scored: list[Floats] = [np.zeros(0, dtype=np.float32) for _ in rows]
    acted = [i for i, row in enumerate(rows) if len(row.action_positions)]
    lengths = [len(rows[i].ids) for i in acted]
    for micro in micro_batches(lengths, token_budget):
        indices = [acted[k] for k in micro]
        with torch.no_grad():
            found_M = forward([rows[i] for i in indices])
        counts = [len(rows[i].action_positions) for i in indices]
        parts = np.split(found_M.float().cpu().numpy(), np.cumsum(counts)[:-1])
        for i, part in zip(indices, parts, strict=True):
            scored[i] = part
    return scored
