"""Traces in numbers: how many sampled ids each has lost or changed, which boundaries moved, and what the
model makes of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from steprl.trainers.doctor.traces import Ids, Placed, Trace, TraceName
from steprl.types import Floats

Scorer = Callable[[Sequence[Placed]], Sequence[Floats]]
"""Log-probabilities f32[A] of each action's ids after its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """|Δ log-probability| against what was sampled: mean and maximum over the tokens that a trace still has,
    and over whole actions."""

    token_mean: float
    token_max: float
    action_mean: float
    action_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """One kind of trace over all conversations.

    ``sampled`` tokens in ``actions`` actions; of the tokens ``changed`` are not in the trace's action as
    sampled; of the actions ``lost`` are not in the trace, ``shifted`` begin or end elsewhere, ``in_context``
    stand after exactly the ids they were sampled after and ``exact`` have their own ids as well. ``forged``
    control tokens were only spelled.
    """

    name: TraceName
    actions: int
    sampled: int
    changed: int
    lost: int
    shifted: int
    in_context: int
    exact: int
    forged: int
    shift: Shift | None

    @property
    def changed_share(self) -> float:
        """Of the sampled tokens."""
        return self.changed / max(1, self.sampled)


def compare(
    name: TraceName, sampled: Sequence[Sequence[Placed]], traces: Sequence[Trace], scorer: Scorer | None
) -> TraceReport:
    """The traces of some conversations against what was sampled in each."""
    pairs = [
        pair
        for actions, trace in zip(sampled, traces, strict=True)
        for pair in zip(actions, trace.actions, strict=True)
    ]
    both = [(one, other) for one, other in pairs if other is not None]
    tokens = sum(len(one.action) for one, _ in pairs)
    return TraceReport(
        name=name,
        actions=len(pairs),
        sampled=tokens,
        changed=tokens - sum(len(_kept(one.action, other.action)[0]) for one, other in both),
        lost=len(pairs) - len(both),
        shifted=sum(_bounds(one) != _bounds(other) for one, other in both),
        in_context=sum(one.context == other.context for one, other in both),
        exact=sum(one == other for one, other in both),
        forged=sum(trace.forged for trace in traces),
        shift=None if scorer is None or not both else _shift(both, scorer),
    )


def _bounds(placed: Placed) -> tuple[int, int]:
    return len(placed.context), len(placed.context) + len(placed.action)


def _kept(one: Ids, other: Ids) -> tuple[list[int], list[int]]:
    """Positions of the ids that both have, in order."""
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    left = [block.a + i for block in blocks for i in range(block.size)]
    right = [block.b + i for block in blocks for i in range(block.size)]
    return left, right


def _shift(both: Sequence[tuple[Placed, Placed]], scorer: Scorer) -> Shift:
    distinct = list(dict.fromkeys(placed for pair in both for placed in pair))
    scores: Mapping[Placed, Floats] = dict(zip(distinct, scorer(distinct), strict=True))
    tokens: list[float] = []
    actions: list[float] = []
    for one, other in both:
        left, right = _kept(one.action, other.action)
        tokens += np.abs(scores[one][left].astype(float) - scores[other][right]).tolist()
        actions.append(abs(float(scores[one].sum(dtype=float)) - float(scores[other].sum(dtype=float))))
    return Shift(
        token_mean=float(np.mean(tokens)) if tokens else 0.0,
        token_max=max(tokens, default=0.0),
        action_mean=float(np.mean(actions)),
        action_max=max(actions),
    )
