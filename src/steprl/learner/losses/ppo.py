"""The clipped surrogate of PPO, on any ratio.

Shapes: M trained tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steprl.learner.losses.ratios import ratios


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

    Bounds of different size are "clip-higher" (DAPO, arXiv:2503.14476). With ``dual_clip`` c, tokens of
    negative advantage lose at most ``−c·A`` (arXiv:1912.09729, eq. 5).
    """
    ratio_M = ratios(logprobs_M, old_logprobs_M)
    return surrogate(ratio_M, advantages_M, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def surrogate(
    ratio_M: Tensor, advantages_M: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> Tensor:
    """The loss of `ppo_clip` for a ratio that is already there."""
    clipped_M = ratio_M.clamp(1 - clip_low, 1 + clip_high)
    loss_M = torch.maximum(-advantages_M * ratio_M, -advantages_M * clipped_M)
    if dual_clip is None:
        return loss_M
    return torch.where(advantages_M < 0, torch.minimum(loss_M, -dual_clip * advantages_M), loss_M)


def clipped(ratio_M: Tensor, advantages_M: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """bool[M]: where the clip takes the gradient away, that is where ρ has gone far enough along A."""
    return ((advantages_M > 0) & (ratio_M > 1 + clip_high)) | ((advantages_M < 0) & (ratio_M < 1 - clip_low))
