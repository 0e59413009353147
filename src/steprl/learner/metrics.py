"""What an update says about itself, summed over micro-batches and divided once at the end.

Shapes: M trained tokens, V value targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steprl.learner.losses import TokenLosses, TrainedTokens, ratios, value_clipped


class PolicyMetrics:
    """Means over all trained tokens of a mini-batch, however it was cut."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(("clip_share", "approx_kl", "entropy"), 0.0)
        self._max: dict[str, float] = {"max_ratio_deviation": 0.0}
        self._engine_gap = 0.0
        self._engine_tokens = 0
        self._tokens = 0
        self._rows = 0
        self._padded = 0
        self._unpadded = 0

    @torch.no_grad()
    def add_tokens(self, tokens: TrainedTokens, found: TokenLosses) -> None:
        """The trained tokens of one micro-batch, and what their loss was made of."""
        ratio_M = ratios(tokens.logprobs, tokens.old_logprobs)
        self._tokens += len(tokens.logprobs)
        self._sums["clip_share"] += found.clipped.sum().item()
        # k3 of KL(old ‖ new): never negative, little variance (http://joschu.net/blog/kl-approx.html)
        self._sums["approx_kl"] += (ratio_M - 1 - ratio_M.log()).sum().item()
        self._sums["entropy"] += tokens.entropy.sum().item()
        self._see_max("max_ratio_deviation", (ratio_M - 1).abs())
        if found.kl is not None:
            self._add("ref_kl", found.kl)
        if found.importance is not None and found.bounded is not None:
            self._add("importance_mean", found.importance)
            self._add("importance_bounded_share", found.bounded)
            self._see_max("max_importance", found.importance)
        gap = (tokens.old_logprobs - tokens.engine_logprobs).abs()
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
            figures |= self._max
            figures["padding_share"] = 1 - self._unpadded / self._padded
        if self._engine_tokens:
            figures["engine_gap"] = self._engine_gap / self._engine_tokens
        return figures

    def _add(self, name: str, figures_M: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + figures_M.sum().item()

    def _see_max(self, name: str, figures_M: Tensor) -> None:
        self._max[name] = max(self._max.get(name, 0.0), figures_M.max().item())


VALUE_FIGURES = frozenset(
    {"value_loss", "value_targets", "value_mean", "return_mean", "value_clip_share", "explained_variance"}
)
"""What an update says of values, which a joint one says beside what it says of the policy."""


class ValueMetrics:
    """Figures over all value targets of a mini-batch, however it was cut; nothing else of a row enters
    them."""

    def __init__(self, *, value_clip: float | None) -> None:
        self._value_clip = value_clip
        self._loss = 0.0
        self._targets = 0
        self._clipped = 0
        self._sums = dict.fromkeys(("value", "return", "return²", "error", "error²"), 0.0)

    @torch.no_grad()
    def add(self, loss: Tensor, values_V: Tensor, returns_V: Tensor, old_values_V: Tensor) -> None:
        """The targets of one micro-batch, and its share of the loss."""
        clipped_V = value_clipped(values_V, returns_V, old_values_V, value_clip=self._value_clip)
        values_V, returns_V = values_V.double(), returns_V.double()
        errors_V = returns_V - values_V
        self._loss += loss.item()
        self._targets += len(values_V)
        self._clipped += int(clipped_V.sum())
        for name, figures_V in (
            ("value", values_V),
            ("return", returns_V),
            ("return²", returns_V.square()),
            ("error", errors_V),
            ("error²", errors_V.square()),
        ):
            self._sums[name] += figures_V.sum().item()

    def result(self) -> dict[str, float]:
        """``value_loss``, ``value_targets``; with targets ``value_mean``, ``return_mean``,
        ``value_clip_share``, and with returns that differ ``explained_variance`` = 1 − Var(G − v)/Var(G)."""
        figures = {"value_loss": self._loss, "value_targets": float(self._targets)}
        if not self._targets:
            return figures
        means = {name: total / self._targets for name, total in self._sums.items()}
        figures["value_mean"], figures["return_mean"] = means["value"], means["return"]
        figures["value_clip_share"] = self._clipped / self._targets
        spread = means["return²"] - means["return"] ** 2
        if spread > 1e-12 * max(1.0, means["return²"]):  # less is float residue of equal returns
            figures["explained_variance"] = 1 - (means["error²"] - means["error"] ** 2) / spread
        return figures
