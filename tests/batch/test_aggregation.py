"""Aggregation as weights: each rule's formula, and what holds for all of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.batch import RULES, Aggregation
from steprl.errors import ConfigError
from steprl.types import Bools, StepKey

# a: steps of 2 and 1 trained tokens and one of none; b: one step of 3; c: nothing trains
MASKS = {
    StepKey("a", 0): np.array([True, False, True]),
    StepKey("a", 1): np.array([True]),
    StepKey("a", 2): np.array([False, False]),
    StepKey("b", 0): np.array([True, True, True]),
    StepKey("c", 0): np.array([False]),
    StepKey("c", 1): np.array([], dtype=bool),
}

FORMULAS = [
    ("token_mean", Fraction(1, 6), Fraction(1, 6), Fraction(1, 6)),
    ("seq_mean_token_mean", Fraction(1, 3 * 2), Fraction(1, 3 * 1), Fraction(1, 3 * 3)),
    ("seq_mean_token_sum", Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)),
    ("traj_mean_token_mean", Fraction(1, 2 * 3), Fraction(1, 2 * 3), Fraction(1, 2 * 3)),
    ("traj_mean_step_mean", Fraction(1, 2 * 2 * 2), Fraction(1, 2 * 2 * 1), Fraction(1, 2 * 1 * 3)),
    ("traj_mean_token_sum", Fraction(1, 2), Fraction(1, 2), Fraction(1, 2)),
    ("constant", Fraction(1, 2 * 10), Fraction(1, 2 * 10), Fraction(1, 2 * 10)),
]


def aggregation(rule: str) -> Aggregation:
    return Aggregation(rule=rule, max_tokens=10 if rule == "constant" else None)


@pytest.mark.parametrize(("rule", "a0", "a1", "b0"), FORMULAS)
def test_formula(rule: str, a0: Fraction, a1: Fraction, b0: Fraction) -> None:
    weights = aggregation(rule).weights(MASKS)
    np.testing.assert_array_equal(weights[StepKey("a", 0)], [float(a0), 0.0, float(a0)])
    np.testing.assert_array_equal(weights[StepKey("a", 1)], [float(a1)])
    np.testing.assert_array_equal(weights[StepKey("a", 2)], [0.0, 0.0])
    np.testing.assert_array_equal(weights[StepKey("b", 0)], [float(b0)] * 3)
    np.testing.assert_array_equal(weights[StepKey("c", 0)], [0.0])
    assert weights.keys() == MASKS.keys()


def test_every_rule_is_covered() -> None:
    assert {row[0] for row in FORMULAS} == set(RULES)


def test_one_and_nine_tokens_have_a_token_mean_of_a_tenth() -> None:
    masks = {StepKey("a", 0): np.ones(1, dtype=bool), StepKey("b", 0): np.ones(9, dtype=bool)}
    weights = Aggregation(rule="token_mean").weights(masks)
    assert weights[StepKey("a", 0)].sum() * 1.0 + weights[StepKey("b", 0)].sum() * 0.0 == 0.1


def test_by_default_every_trajectory_counts_the_same() -> None:
    weights = Aggregation().weights(MASKS)
    total = {uid: sum(w.sum() for key, w in weights.items() if key.trajectory == uid) for uid in "abc"}
    assert total == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})


masks = st.dictionaries(
    st.builds(StepKey, st.sampled_from("abcd"), st.integers(0, 4)),
    st.lists(st.booleans(), max_size=6).map(lambda bits: np.array(bits, dtype=bool)),
    max_size=12,
)


@given(masks, st.sampled_from([rule for rule in RULES if "mean_token_mean" in rule or "step" in rule]))
def test_means_have_weights_that_add_up_to_one(masks: dict[StepKey, Bools], rule: str) -> None:
    weights = Aggregation(rule=rule).weights(masks)
    trains = any(mask.any() for mask in masks.values())
    assert sum(w.sum() for w in weights.values()) == pytest.approx(1.0 if trains else 0.0)


@given(masks, st.sampled_from(sorted(RULES)))
def test_weights_are_positive_where_trained_and_0_elsewhere(masks: dict[StepKey, Bools], rule: str) -> None:
    weights = aggregation(rule).weights(masks)
    for key, mask in masks.items():
        assert weights[key].dtype == np.float64
        np.testing.assert_array_equal(weights[key] > 0, mask)


def test_an_unknown_rule_is_answered_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="'tokens_mean'.*'token_mean'"):
        Aggregation(rule="tokens_mean")


def test_constant_needs_its_constant_and_the_others_refuse_it() -> None:
    for max_tokens in (None, 0):
        with pytest.raises(ConfigError, match="divides by max_tokens"):
            Aggregation(rule="constant", max_tokens=max_tokens)
    with pytest.raises(ConfigError, match="no effect"):
        Aggregation(rule="token_mean", max_tokens=10)
