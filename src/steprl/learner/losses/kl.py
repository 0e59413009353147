"""KL to a reference policy as a loss. Its k1 has no place here: differentiated, it is a score function whose
mean is 0 whatever the reference; it belongs into the reward.

Shapes: M trained tokens. Source: http://joschu.net/blog/kl-approx.html
"""

from __future__ import annotations

from torch import Tensor

from steprl.learner.losses.ratios import bounded, ratios


def k2(logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """``½(logπ − logπ_ref)²``: a biased value; on tokens of π, an unbiased gradient of KL(π ‖ π_ref)."""
    return 0.5 * bounded(logprobs_M - ref_logprobs_M).square()


def k3(logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """``π_ref/π − 1 − log(π_ref/π)``: never negative; on tokens of π, an unbiased value of KL(π ‖ π_ref).

    Its gradient on tokens of π is that of KL(π_ref ‖ π) (GRPO's choice, arXiv:2402.03300, eq. 4).
    """
    log_ratio_M = bounded(ref_logprobs_M - logprobs_M)
    return log_ratio_M.exp() - 1 - log_ratio_M


def kl_losses(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    ref_logprobs_M: Tensor,
    *,
    kind: str,
    unbiased: bool = False,
) -> Tensor:
    """`k2` or `k3` per token; with ``unbiased``, an estimate of KL(π ‖ π_ref) from tokens of π_old.

    Then `k3` is multiplied with ρ and its gradient goes through ρ too, which makes value and gradient exact
    in the mean (DeepSeek-V3.2, arXiv:2512.02556). `k2` is multiplied with ρ as a constant: its own gradient
    already is that of the KL, and one through ρ would be a second one.
    """
    if kind == "k2":
        losses_M = k2(logprobs_M, ref_logprobs_M)
        return ratios(logprobs_M, old_logprobs_M).detach() * losses_M if unbiased else losses_M
    losses_M = k3(logprobs_M, ref_logprobs_M)
    return ratios(logprobs_M, old_logprobs_M) * losses_M if unbiased else losses_M
