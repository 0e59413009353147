"""Factors on the weights of single steps."""

from __future__ import annotations

import numpy as np
import pytest
from episodes import grouped, rewarded
from hypothesis import given
from hypothesis import strategies as st

from steprl.batch import RULES, Aggregation, minibatches, rows
from steprl.credit import DrGrpo
from steprl.types import MiniBatch, Scores, StepKey

MEMBERS = [rewarded("a", 1.0, steps=3), rewarded("b", 0.0, steps=1)]


def cut(rule: str, factors: dict[StepKey, float] | None, merge: bool = True) -> MiniBatch:
    old = {t.key(i): np.full(len(s.action_ids), -1.0) for t in MEMBERS for i, s in enumerate(t.steps)}
    (batch,) = minibatches(
        rows(MEMBERS, merge=merge),
        DrGrpo()(grouped(*MEMBERS), Scores()),
        Scores(old_logprobs=old),
        aggregation=Aggregation(rule=rule, max_tokens=8 if rule == "constant" else None),
        count=1,
        token_budget=64,
        rng=np.random.default_rng(0),
        factors=factors,
    )
    return batch


def weights(batch: MiniBatch) -> dict[StepKey, float]:
    """By step, of one of its tokens."""
    return {
        key: float(sample.weights[sample.row.step_index == i][0])
        for sample in batch.samples
        for i, key in enumerate(sample.row.step_keys)
    }


@given(st.sampled_from(sorted(RULES)), st.floats(0.01, 100), st.booleans())
def test_a_factor_is_that_of_its_steps_and_of_no_other(rule: str, factor: float, merge: bool) -> None:
    before = weights(cut(rule, None, merge))
    after = weights(cut(rule, {StepKey("a", 1): factor}, merge))
    expected = {key: weight * (factor if key == StepKey("a", 1) else 1.0) for key, weight in before.items()}
    assert after == pytest.approx(expected, rel=1e-6)


def test_a_factor_of_a_step_in_another_mini_batch_is_none_here() -> None:
    assert weights(cut("token_mean", {StepKey("elsewhere", 0): 2.0})) == weights(cut("token_mean", {}))
