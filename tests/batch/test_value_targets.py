"""What a critic regresses on: where its targets sit, and that their weights are their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from episodes import step, trajectory

from steprl.batch import Aggregation, ValueTargets, minibatches, prompt_ends, rows
from steprl.types import Credits, Sample, Scores, Trajectory

# the second step continues the first one's tokens; its first action token was forced, not sampled
LONG = trajectory(
    "a", [step([1, 2, 3], [4, 5]), step([1, 2, 3, 4, 5, 6], [7, 8, 9], sampled=[False, True, True])]
)
SHORT = trajectory("b", [step([1, 2], [3])])


def samples(
    *trajectories: Trajectory, targets: ValueTargets | None, merge: bool = True, **changed: Any
) -> tuple[Sample, ...]:
    """Samples whose returns are 10·t + j and whose old values are half of that."""
    keys = [(t.key(i), s) for t in trajectories for i, s in enumerate(t.steps)]
    figures = {key: 10.0 * key.step + np.arange(len(s.action_ids)) for key, s in keys}
    credits = Credits(
        advantages={key: np.zeros(len(s.action_ids)) for key, s in keys},
        loss_mask=changed.pop("loss_mask", {key: s.sampled_mask for key, s in keys}),
        returns=changed.pop("returns", figures),
    )
    scores = Scores(
        old_logprobs={key: np.zeros(len(s.action_ids), dtype=np.float32) for key, s in keys},
        values=changed.pop("values", {key: figures[key].astype(np.float32) / 2 for key, _ in keys}),
    )
    options: dict[str, Any] = {"aggregation": Aggregation(), "count": 1, "token_budget": 99}
    made = rows(trajectories, merge=merge)
    (batch,) = minibatches(
        made, credits, scores, value_targets=targets, rng=np.random.default_rng(0), **options
    )
    return tuple(sorted(batch.samples, key=lambda sample: sample.row.step_keys))


def lists(sample: Sample) -> tuple[list[float], ...]:
    assert sample.value_positions is not None and sample.returns is not None
    assert sample.old_values is not None and sample.value_weights is not None
    fields = (sample.value_positions, sample.returns, sample.old_values, sample.value_weights)
    return tuple(field.tolist() for field in fields)


def test_the_value_of_a_step_sits_at_its_last_prompt_token() -> None:
    long, short = samples(LONG, SHORT, targets=ValueTargets())
    # the return is read at the first trained token (1 of step 1), the old value at token 0: V(o_t)
    assert lists(long) == ([2, 5], [0.0, 11.0], [0.0, 5.0], [0.25, 0.25])
    assert lists(short) == ([1], [0.0], [0.0], [0.5])


def test_the_value_before_a_token_sits_one_position_before_it() -> None:
    long, short = samples(LONG, SHORT, targets=ValueTargets(unit="token"))
    assert lists(long) == ([2, 3, 6, 7], [0, 1, 11, 12], [0, 0.5, 5.5, 6], [0.125] * 4)
    assert lists(short) == ([1], [0], [0], [0.5])


@pytest.mark.parametrize("unit", ["step", "token"])
def test_merged_or_not_the_targets_are_the_same(unit: Any) -> None:
    def targets(merge: bool) -> list[tuple[Any, ...]]:
        made = samples(LONG, SHORT, targets=ValueTargets(unit=unit), merge=merge)
        return [one for sample in made for one in zip(*lists(sample), strict=True)]

    assert targets(True) == targets(False)


def test_value_weights_have_a_rule_of_their_own() -> None:
    long, short = samples(LONG, SHORT, targets=ValueTargets(aggregation=Aggregation(rule="token_mean")))
    assert lists(long)[3] == pytest.approx([1 / 3, 1 / 3]) and lists(short)[3] == pytest.approx([1 / 3])
    assert long.weights.tolist() == [0.125] * 4  # the policy's rule is another


def test_what_does_not_train_is_no_target() -> None:
    masks = {LONG.key(0): np.zeros(2, dtype=bool), LONG.key(1): np.array([False, False, True])}
    wild = {key: np.full(len(mask), np.nan) for key, mask in masks.items()}
    wild[LONG.key(1)][2] = 3.0
    values = {LONG.key(1): np.array([7.0, np.nan, 8.0], dtype=np.float32), LONG.key(0): np.zeros(2)}
    given = {"loss_mask": masks, "returns": wild, "values": values}
    assert lists(samples(LONG, targets=ValueTargets(), **given)[0]) == ([5], [3.0], [7.0], [1.0])
    assert lists(samples(LONG, targets=ValueTargets(unit="token"), **given)[0]) == ([7], [3.0], [8.0], [1.0])


def test_without_targets_samples_have_none() -> None:
    assert all(sample.value_positions is None for sample in samples(LONG, SHORT, targets=None))


@pytest.mark.parametrize("missing", ["returns", "values"])
def test_targets_without_returns_or_values_are_refused(missing: str) -> None:
    with pytest.raises(ValueError, match="need Credits.returns and Scores.values"):
        samples(SHORT, targets=ValueTargets(), **{missing: None})


def test_a_return_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trajectory='b', step=0\).*no finite return"):
        samples(SHORT, targets=ValueTargets(), returns={SHORT.key(0): np.array([np.nan])})


def test_prompt_ends_of_a_merged_row() -> None:
    (row,) = rows([LONG])
    assert list(prompt_ends(row)) == [(LONG.key(0), 2, 0), (LONG.key(1), 5, 2)]
