"""The regression of a critic.

Shapes: V value targets.
"""

from __future__ import annotations

import torch
from torch import Tensor


def value_losses(
    values_V: Tensor, returns_V: Tensor, old_values_V: Tensor, *, value_clip: float | None
) -> Tensor:
    """``0.5·max((v − G)², (clip(v, v_old ± value_clip) − G)²)``; without the clip ``0.5·(v − G)²``.

    The clip is the one of PPO's first implementation (arXiv:2005.12729, section 3).
    """
    squares_V = (values_V - returns_V).square()
    if value_clip is None:
        return 0.5 * squares_V
    return 0.5 * torch.maximum(squares_V, _near(values_V, old_values_V, value_clip).sub(returns_V).square())


def value_clipped(
    values_V: Tensor, returns_V: Tensor, old_values_V: Tensor, *, value_clip: float | None
) -> Tensor:
    """bool[V]: where the clipped value is the one that counts, which leaves no gradient."""
    if value_clip is None:
        return torch.zeros_like(values_V, dtype=torch.bool)
    clipped_V = _near(values_V, old_values_V, value_clip)
    return (clipped_V - returns_V).square() > (values_V - returns_V).square()


def _near(values_V: Tensor, old_values_V: Tensor, value_clip: float) -> Tensor:
    return torch.minimum(torch.maximum(values_V, old_values_V - value_clip), old_values_V + value_clip)
