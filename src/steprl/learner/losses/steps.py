"""Losses whose ratio belongs to a whole step: its mean (GSPO) or its product (turn-level PPO).

The tokens of a step are told by ``step_M``, so it does not matter in which row they stand or how rows are
merged. A step must not be split over micro-batches, and rows never do that.

Shapes: M trained tokens.
"""

from __future__ import annotations

from torch import Tensor

from steprl.learner.losses.ppo import surrogate
from steprl.learner.losses.ratios import bounded, step_means, step_sums


def gspo(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    step_M: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """`ppo_clip` with ``s = exp(mean_j (logπ − logπ_old))`` over the step's trained tokens (arXiv:2507.18071,
    eq. 7).

    The gradient is that of GSPO-token (eq. 13-14): each token pulls with its own advantage. Where these are
    equal within a step, which is what GSPO is made for, it is that of GSPO. A step counts through its tokens'
    weights: ``seq_mean_token_mean`` gives each step the same, as in the paper.
    """
    ratio_M = gspo_ratios(logprobs_M, old_logprobs_M, step_M)
    return surrogate(ratio_M, advantages_M, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def gspo_ratios(logprobs_M: Tensor, old_logprobs_M: Tensor, step_M: Tensor) -> Tensor:
    """``sg(s)·π/sg(π)``: the value of a step's geometric mean ratio, the gradient of each token's own."""
    mean_M = step_means((logprobs_M - old_logprobs_M).detach(), step_M)
    return bounded(mean_M + (logprobs_M - logprobs_M.detach())).exp()


def step_product(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    step_M: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """`ppo_clip` with ``ρ = Π_j π/π_old`` over the step's trained tokens: the step is the action, clipped as
    one.

    The ratio of policy gradient theory for a step (the trajectory-level one is arXiv:2402.14740's). Each
    token carries the whole step's loss; under ``traj_mean_step_mean`` or ``seq_mean_token_mean`` they add up
    to one.
    """
    ratio_M = step_product_ratios(logprobs_M, old_logprobs_M, step_M)
    return surrogate(ratio_M, advantages_M, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def step_product_ratios(logprobs_M: Tensor, old_logprobs_M: Tensor, step_M: Tensor) -> Tensor:
    """``exp(clamp(Σ_j (logπ − logπ_old), ±20))`` over the tokens of each token's step."""
    return bounded(step_sums(logprobs_M - old_logprobs_M, step_M)).exp()
