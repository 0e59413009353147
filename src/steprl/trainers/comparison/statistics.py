"""The arithmetic of a comparison: means with their interval, spread over seeds, drawdown.

Shapes: S seeds, N points of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""Of every interval: two-sided, from Student's t with S − 1 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure over S seeds: ``mean``, sample standard deviation ``std`` and half the width of the interval
    ``margin``; these two are None for one seed, which says nothing of others."""

    mean: float
    std: float | None
    margin: float | None
    seeds: int


def estimate(values_S: Sequence[float]) -> Estimate | None:
    """Mean, spread and interval; None without values."""
    count = len(values_S)
    if count == 0:
        return None
    mean = math.fsum(values_S) / count
    if count == 1:
        return Estimate(mean=mean, std=None, margin=None, seeds=1)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values_S) / (count - 1))
    margin = t_quantile((1 + LEVEL) / 2, count - 1) * std / math.sqrt(count)
    return Estimate(mean=mean, std=std, margin=margin, seeds=count)


def t_quantile(probability: float, degrees: int) -> float:
    """Where Student's t with so many degrees of freedom has this much below it; for probabilities of 0.5 to
    0.9999."""
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < probability:
        high *= 2
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, degrees) < probability else (low, middle)
    return high


def _t_below(t: float, degrees: int) -> float:
    """P(T ≤ t) for t ≥ 0: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = 1.0, 0.0
    if degrees % 2:
        for k in range(1, (degrees - 1) // 2 + 1):
            term = term * (2 * k - 2) / (2 * k - 1) if k > 1 else 1.0
            total += term * cosine ** (2 * k - 1)
        inside = 2 / math.pi * (theta + sine * total)
    else:
        for k in range(degrees // 2):
            term = term * (2 * k - 1) / (2 * k) if k else 1.0
            total += term * cosine ** (2 * k)
        inside = sine * total
    return 0.5 + inside / 2


def smoothed(curve_N: Sequence[float], window: int) -> list[float]:
    """Means over ``window`` points each, from the first complete window on: one iteration's batch is a small
    sample."""
    return [
        math.fsum(curve_N[end - window : end]) / window
        for end in range(min(window, len(curve_N)), len(curve_N) + 1)
    ]


def drawdown(curve_N: Sequence[float]) -> float:
    """How far a curve falls below its own greatest value so far, at most; 0 for one that never falls."""
    peak, largest = -math.inf, 0.0
    for value in curve_N:
        peak = max(peak, value)
        largest = max(largest, peak - value)
    return largest
