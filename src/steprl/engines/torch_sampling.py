"""Sampling for a batch of requests that each have their own temperature, filters and random stream.

Shapes: B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steprl.types import Sampling


def distribution(logits_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Log-probabilities f32[B, V] of what is sampled from: temperature and filters included.

    A greedy request (temperature 0) keeps the model's own distribution: its tokens are the argmax,
    their log-probabilities those at temperature 1.
    """
    logits = logits_BV.float()
    temperatures = [s.temperature or 1.0 for s in sampling]
    if any(t != 1.0 for t in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    filtered = [row for row, s in enumerate(sampling) if not s.neutral and s.temperature > 0]
    if filtered:
        logits = logits.clone() if logits is logits_BV else logits
        logits[filtered] = _filter(logits[filtered], [sampling[row] for row in filtered])
    return torch.log_softmax(logits, dim=-1)


def sample(logprobs_BV: Tensor, sampling: Sequence[Sampling], uniforms: Sequence[float]) -> Tensor:
    """One token per request, i64[B]: the inverse of the cumulative distribution at ``uniforms``.

    Sums run in float64, so that a vocabulary of 10^5 tokens leaves no probability unreachable, and a
    token of probability 0 is never chosen. Greedy requests take the argmax.
    """
    greedy = [s.temperature == 0 for s in sampling]
    if all(greedy):
        return logprobs_BV.argmax(dim=-1)
    cumulative = logprobs_BV.double().exp().cumsum(dim=-1)
    u = torch.tensor(uniforms, dtype=torch.float64, device=logprobs_BV.device)[:, None]
    tokens = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(-1)
    # u * total can round up to total itself; then the last token that has any probability is meant
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1)
    tokens = torch.minimum(tokens, last)
    if any(greedy):
        chosen = torch.tensor(greedy, device=tokens.device)
        tokens = torch.where(chosen, logprobs_BV.argmax(dim=-1), tokens)
    return tokens


def _filter(logits_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Top-k, then top-p over what is left, per request; at least one token always survives."""
    values, order = logits_BV.sort(dim=-1, descending=True)
    ranks = torch.arange(values.shape[-1], device=values.device)
    k = torch.tensor([s.top_k or values.shape[-1] for s in sampling], device=values.device)[:, None]
    values = values.masked_fill(ranks >= k, float("-inf"))
    p = torch.tensor([s.top_p for s in sampling], dtype=torch.float64, device=values.device)[:, None]
    probabilities = values.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    values = values.masked_fill((before >= p) & (p < 1.0), float("-inf"))
    return torch.full_like(logits_BV, float("-inf")).scatter(-1, order, values)
