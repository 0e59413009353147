"""What an update says about itself, summed over micro-batches and divided once at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steprl.learner.losses import clipped, ratios


class PolicyMetrics:
    """Means over all trained tokens of a mini-batch, however it was cut."""

    def __init__(self, *, clip_low: float, clip_high: float) -> None:
        self._clip_low = clip_low
        self._clip_high = clip_high
        self._sums = dict.fromkeys(("clip_share", "approx_kl", "entropy"), 0.0)
        self._max_ratio_deviation = 0.0
        self._engine_gap = 0.0
        self._engine_tokens = 0
        self._tokens = 0
        self._rows = 0
        self._padded = 0
        self._unpadded = 0

    @torch.no_grad()
    def add_tokens(
        self,
        logprobs_M: Tensor,
        old_logprobs_M: Tensor,
        advantages_M: Tensor,
        engine_logprobs_M: Tensor,
        entropy_M: Tensor,
    ) -> None:
        """The trained tokens of one micro-batch; ``engine_logprobs_M`` is NaN where there was none."""
        ratio_M = ratios(logprobs_M, old_logprobs_M)
        clipped_M = clipped(
            logprobs_M, old_logprobs_M, advantages_M, clip_low=self._clip_low, clip_high=self._clip_high
        )
        self._tokens += len(logprobs_M)
        self._sums["clip_share"] += clipped_M.sum().item()
        # k3 of KL(old ‖ new): never negative, little variance (http://joschu.net/blog/kl-approx.html)
        self._sums["approx_kl"] += (ratio_M - 1 - ratio_M.log()).sum().item()
        self._sums["entropy"] += entropy_M.sum().item()
        self._max_ratio_deviation = max(self._max_ratio_deviation, (ratio_M - 1).abs().max().item())
        gap = (old_logprobs_M - engine_logprobs_M).abs()
        known = ~gap.isnan()
        self._engine_gap += gap[known].sum().item()
        self._engine_tokens += int(known.sum())

    def add_rows(self, lengths: Sequence[int]) -> None:
        """The rows of one micro-batch, to see how much of the work was padding."""
        self._rows += len(lengths)
        self._unpadded += sum(lengths)
        self._padded += len(lengths) * max(lengths)

    def result(self) -> dict[str, float]:
        """The figures. Means are left out when there was nothing to take them over."""
        figures = {"tokens": float(self._tokens), "rows": float(self._rows)}
        if self._tokens:
            figures |= {name: total / self._tokens for name, total in self._sums.items()}
            figures["max_ratio_deviation"] = self._max_ratio_deviation
            figures["padding_share"] = 1 - self._unpadded / self._padded
        if self._engine_tokens:
            figures["engine_gap"] = self._engine_gap / self._engine_tokens
        return figures
