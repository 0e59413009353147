"""Where two estimators disagree: in sign, in order, and for which of the reasons that the record gives.

Shapes: S steps of the batch; n steps on which both of two estimators have a say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from steprl.trainers.explaining.apply import Column
from steprl.trainers.explaining.facts import Fact, StepFacts
from steprl.types import Bools, Doubles, StepKey

_ZERO = 1e-9
"""Of the scale: an advantage that small is none."""


NO_REASON = Fact(kind="no reason in the record", told="nothing in the record tells it from other steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two estimators over the n steps on which both have a say.

    ``opposite``: one encourages what the other discourages. ``silent``: one says 0, the other not.
    ``rank_correlation`` is Spearman's, None where one says the same of all steps.
    """

    one: str
    other: str
    steps: int
    opposite: int
    silent: int
    rank_correlation: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A kind of fact, of how many of the steps in dispute it holds, and one of them, told."""

    kind: str
    steps: int
    example: StepKey
    told: str


def pairs(columns: Sequence[Column]) -> list[Pair]:
    """Every two estimators, those that disagree most first."""
    found = []
    for one, other in combinations(columns, 2):
        both = ~np.isnan(one.advantages) & ~np.isnan(other.advantages)
        a_n, b_n = signs(one)[both], signs(other)[both]
        found.append(
            Pair(
                one=one.name,
                other=other.name,
                steps=int(both.sum()),
                opposite=int((a_n * b_n < 0).sum()),
                silent=int(((a_n == 0) != (b_n == 0)).sum()),
                rank_correlation=rank_correlation(one.advantages[both], other.advantages[both]),
            )
        )
    return sorted(
        found,
        key=lambda p: (-p.opposite, -p.silent, 2.0 if p.rank_correlation is None else p.rank_correlation),
    )


def signs(column: Column) -> Doubles:
    """−1, 0 or 1 for each step, NaN where it does not train."""
    scaled_S = column.scaled
    signs_S: Doubles = np.sign(np.where(np.abs(scaled_S) < _ZERO, 0.0, scaled_S))
    return signs_S


def disputed(columns: Sequence[Column]) -> Bools:
    """bool[S]: two estimators that have a say do not have the same sign."""
    signs_CS = np.stack([signs(column) for column in columns])
    least_S, most_S = np.fmin.reduce(signs_CS), np.fmax.reduce(signs_CS)
    disputed_S: Bools = least_S < most_S
    return disputed_S


def spread(columns: Sequence[Column]) -> Doubles:
    """f64[S]: the greatest less the least scaled advantage; 0 where fewer than two have a say."""
    scaled_CS = np.stack([column.scaled for column in columns])
    range_S = np.fmax.reduce(scaled_CS) - np.fmin.reduce(scaled_CS)
    found_S: Doubles = np.nan_to_num(range_S)
    return found_S


def reasons(keys: Sequence[StepKey], disputed_S: Bools, facts: Mapping[StepKey, StepFacts]) -> list[Reason]:
    """The facts of the steps in dispute by kind, the most frequent first; a step can have several, and one
    without any is counted as such."""
    found: dict[str, list[tuple[StepKey, Fact]]] = {}
    for key, in_dispute in zip(keys, disputed_S.tolist(), strict=True):
        for fact in (facts[key].facts or [NO_REASON]) if in_dispute else ():
            found.setdefault(fact.kind, []).append((key, fact))
    listed = [
        Reason(kind=kind, steps=len(cases), example=cases[0][0], told=cases[0][1].told)
        for kind, cases in found.items()
    ]
    return sorted(listed, key=lambda reason: -reason.steps)


def rank_correlation(a_n: Doubles, b_n: Doubles) -> float | None:
    """Spearman's: the correlation of ranks, ties sharing their mean rank; None where one is constant."""
    ranks_a, ranks_b = _ranks(a_n), _ranks(b_n)
    if len(ranks_a) < 2 or np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return None
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])


def _ranks(x_n: Doubles) -> Doubles:
    # rounded, so that float residue does not put equals in an order
    scale = np.abs(x_n).max(initial=0.0) or 1.0
    _, where_n, counts = np.unique(np.round(x_n / scale, 9), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks_n: Doubles = (last - (counts - 1) / 2)[where_n]
    return ranks_n
