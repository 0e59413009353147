"""The arithmetic of an evaluation: unbiased estimates from n attempts at a task, and intervals over tasks.

Shapes: T tasks. c of the n attempts at a task are solved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from steprl.trainers.comparison.statistics import LEVEL, t_quantile

SHARE_INTERVAL = (
    f"{LEVEL:.0%} Wilson score interval over tasks: with the effective number of tasks that the spread "
    "between tasks implies, and Student's t; attempts at one task are never taken for independent tasks"
)
MEAN_INTERVAL = f"{LEVEL:.0%} interval over the means of tasks, Student's t"
PAIRED_INTERVAL = f"{LEVEL:.0%} paired percentile bootstrap over tasks"

_AT_ONCE = 1_000_000
"""Numbers that a bootstrap draws at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over ``tasks`` tasks and its interval; ``low`` and ``high`` are None for one task alone, which
    says nothing of others."""

    mean: float
    low: float | None
    high: float | None
    tasks: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of ``k`` attempts solves a task.

    1 − C(n − c, k) / C(n, k), unbiased (Chen et al., arXiv:2107.03374, eq. 1), as the product that cannot
    overflow.

    Raises:
        ValueError: not 0 ≤ c ≤ n or not 1 ≤ k ≤ n.
    """
    _check(n, c, k)
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The probability that all of ``k`` attempts solve a task: pass^k (Yao et al., arXiv:2406.12045).

    C(c, k) / C(n, k), unbiased.

    Raises:
        ValueError: not 0 ≤ c ≤ n or not 1 ≤ k ≤ n.
    """
    _check(n, c, k)
    if c < k:
        return 0.0
    return math.prod((c - i) / (n - i) for i in range(k))


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"{c} of {n} attempts solved and k = {k}: 0 <= c <= n and 1 <= k <= n are needed")


def counts_of_k(attempts: int) -> list[int]:
    """1, 2, 4, … and the number of attempts itself."""
    doubled = [2**power for power in range(attempts.bit_length()) if 2**power < attempts]
    return [*doubled, attempts]


def share(values_T: Sequence[float], *, most: int) -> Interval | None:
    """A mean of numbers in [0, 1], one per task, such as the shares of solved attempts; None without tasks.

    The interval is Wilson's with the sample size n at which a plain share would have the standard error that
    the spread between tasks shows (as Dean and Pagano 2015 do for clustered data): at least the number of
    tasks, at most ``most``, the number of attempts. So it has a width where every task or none is solved, and
    where there is one attempt per task it is Wilson's own.
    """
    tasks = len(values_T)
    if not tasks:
        return None
    mean = math.fsum(values_T) / tasks
    if tasks == 1:
        return Interval(mean=mean, low=None, high=None, tasks=1)
    squared_error = math.fsum((value - mean) ** 2 for value in values_T) / (tasks - 1) / tasks
    size = mean * (1 - mean) / squared_error if squared_error > 0 else float(most if 0 < mean < 1 else tasks)
    size = min(max(size, float(tasks)), float(max(most, tasks)))
    t = _t(tasks - 1)
    centre = (mean + t * t / (2 * size)) / (1 + t * t / size)
    half = t / (1 + t * t / size) * math.sqrt(mean * (1 - mean) / size + (t / (2 * size)) ** 2)
    return Interval(
        mean=mean,
        low=max(0.0, min(mean, centre - half)),
        high=min(1.0, max(mean, centre + half)),
        tasks=tasks,
    )


def mean(values_T: Sequence[float]) -> Interval | None:
    """A mean of any numbers, one per task; None without tasks."""
    tasks = len(values_T)
    if not tasks:
        return None
    centre = math.fsum(values_T) / tasks
    if tasks == 1:
        return Interval(mean=centre, low=None, high=None, tasks=1)
    variance = math.fsum((value - centre) ** 2 for value in values_T) / (tasks - 1)
    half = _t(tasks - 1) * math.sqrt(variance / tasks)
    return Interval(mean=centre, low=centre - half, high=centre + half, tasks=tasks)


@cache
def _t(degrees: int) -> float:
    return t_quantile((1 + LEVEL) / 2, degrees)


def paired(differences_T: Sequence[float], *, seed: int, resamples: int = 10_000) -> Interval | None:
    """The mean of differences, one per task, with a percentile bootstrap over tasks; None without tasks.

    The same seed and differences give the same interval.
    """
    values_T: NDArray[np.float64] = np.asarray(differences_T, dtype=np.float64)
    tasks = len(values_T)
    if not tasks:
        return None
    centre = math.fsum(differences_T) / tasks
    if tasks == 1:
        return Interval(mean=centre, low=None, high=None, tasks=1)
    rng = np.random.default_rng(seed)
    rows = max(1, min(resamples, _AT_ONCE // tasks))
    means: list[float] = []
    while len(means) < resamples:
        chosen = rng.integers(tasks, size=(min(rows, resamples - len(means)), tasks))
        means += values_T[chosen].mean(axis=1).tolist()
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(mean=centre, low=low, high=high, tasks=tasks)


def sign_test(more: int, less: int) -> float:
    """The exact two-sided p of ``more`` against ``less``, where either is as likely: McNemar's for 0 and 1.

    1 when there is nothing to tell apart.
    """
    total, fewer = more + less, min(more, less)
    below = sum(math.comb(total, i) for i in range(fewer + 1))
    return min(1.0, float(Fraction(2 * below, 1 << total)))
