"""Correction for what was sampled by another policy than the proximal one: a stale one, or an engine that
computes its probabilities a little differently.

Shapes: M trained tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steprl.learner.losses.ratios import bounded, step_means, step_sums


def importance_weights(
    old_logprobs_M: Tensor,
    engine_logprobs_M: Tensor,
    step_M: Tensor,
    *,
    kind: str,
    unit: str = "token",
    low: float = 0.0,
    high: float = 2.0,
) -> tuple[Tensor, Tensor]:
    """Weights ``w = π_old/μ`` for the policy loss, without gradient, and bool[M] where a bound was met.

    ``full`` takes w as it is (decoupled PPO, arXiv:2110.00641 and arXiv:2505.24298), ``truncate`` bounds it
    to [low, high] (truncated importance sampling, arXiv:1802.01561; for engines: Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training"), ``mask`` makes it 0 outside (masked
    importance
    sampling: arXiv:2510.18855). No denominator changes with it.

    ``unit`` is what is compared with the bounds and weighs: the token's ratio, or its step's geometric mean
    or product.
    """
    log_ratio_M = (old_logprobs_M - engine_logprobs_M).detach()
    if unit == "step_mean":
        log_ratio_M = step_means(log_ratio_M, step_M)
    elif unit == "step_product":
        log_ratio_M = step_sums(log_ratio_M, step_M)
    weight_M = bounded(log_ratio_M).exp()
    outside_M = (weight_M < low) | (weight_M > high)
    if kind == "truncate":
        return weight_M.clamp(low, high), outside_M
    if kind == "mask":
        return torch.where(outside_M, torch.zeros_like(weight_M), weight_M), outside_M
    return weight_M, torch.zeros_like(outside_M)
