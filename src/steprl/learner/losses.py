"""Policy losses per token. They see trained tokens only: through ``exp`` a masked one can be 0·inf, a NaN.

Shapes: M trained tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def ratios(logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """``ρ = exp(clamp(logπ − logπ_old, ±20))``: beyond that float32 has no use for the number."""
    return (logprobs_M - old_logprobs_M).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def ppo_clip(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """``l = max(−A·ρ, −A·clip(ρ, 1−clip_low, 1+clip_high))`` per token (PPO, arXiv:1707.06347, eq. 7).

    With ``dual_clip`` c, tokens of negative advantage lose at most ``−c·A`` (arXiv:1912.09729, eq. 5).
    """
    ratio_M = ratios(logprobs_M, old_logprobs_M)
    clipped_M = ratio_M.clamp(1 - clip_low, 1 + clip_high)
    loss_M = torch.maximum(-advantages_M * ratio_M, -advantages_M * clipped_M)
    if dual_clip is None:
        return loss_M
    return torch.where(advantages_M < 0, torch.minimum(loss_M, -dual_clip * advantages_M), loss_M)


def clipped(
    logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """bool[M]: where the clip takes the gradient away, that is where ρ has gone far enough along A."""
    ratio_M = ratios(logprobs_M, old_logprobs_M)
    return ((advantages_M > 0) & (ratio_M > 1 + clip_high)) | ((advantages_M < 0) & (ratio_M < 1 - clip_low))
