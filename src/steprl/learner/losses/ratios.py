"""Probability ratios from log-probabilities, and sums over the tokens of a step.

Shapes: M trained tokens.
"""

from __future__ import annotations

from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def bounded(log_ratio_M: Tensor) -> Tensor:
    """A log-ratio within ±20: beyond that float32 has no use for its exponential."""
    return log_ratio_M.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def ratios(logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """``ρ = exp(clamp(logπ − logπ_old, ±20))``."""
    return bounded(logprobs_M - old_logprobs_M).exp()


def step_sums(values_M: Tensor, step_M: Tensor) -> Tensor:
    """The sum over all tokens of a token's step, for every token."""
    if not len(values_M):
        return values_M
    sums = values_M.new_zeros(int(step_M.max()) + 1).index_add(0, step_M, values_M)
    return sums[step_M]


def step_means(values_M: Tensor, step_M: Tensor) -> Tensor:
    """The mean over all tokens of a token's step, for every token."""
    return step_sums(values_M, step_M) / step_sums(values_M.new_ones(len(values_M)), step_M)
