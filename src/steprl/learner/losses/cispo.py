"""CISPO: clip the importance weight, not the update.

Shapes: M trained tokens.
"""

from __future__ import annotations

from torch import Tensor

from steprl.learner.losses.ratios import ratios


def cispo(logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, *, ratio_max: float) -> Tensor:
    """``l = −sg(min(ρ, ratio_max))·A·logπ`` per token (MiniMax-M1, arXiv:2506.13585, eq. 4).

    Every token keeps its gradient. The value of the loss says nothing: only its gradient is an estimate.
    """
    weight_M = ratios(logprobs_M, old_logprobs_M).detach().clamp(max=ratio_max)
    return -weight_M * advantages_M * logprobs_M
