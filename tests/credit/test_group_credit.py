"""What group-relative credit means: the specification of ``grpo``, ``dr_grpo`` and ``rloo``."""

from __future__ import annotations

import math

import numpy as np
import pytest
from episodes import grouped, rewarded, step, trajectory
from hypothesis import given
from hypothesis import strategies as st

from steprl.credit import DrGrpo, Gigpo, Grpo, Rloo, check_group_size
from steprl.errors import ConfigError
from steprl.registry import resolve
from steprl.types import Credits, Estimator, Scores, StepKey, StopReason, Trajectory

ESTIMATORS = [Grpo, DrGrpo, Rloo]
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def credit(estimator: Estimator, *trajectories: Trajectory) -> Credits:
    return estimator(grouped(*trajectories), Scores())


def scalars(credits: Credits) -> dict[str, float]:
    """The one advantage of each trajectory that trains; fails when its tokens differ."""
    found: dict[str, set[float]] = {}
    for key, mask in credits.loss_mask.items():
        found.setdefault(key.trajectory, set()).update(credits.advantages[key][mask].tolist())
    assert all(len(values) <= 1 for values in found.values()), found
    return {uid: values.pop() for uid, values in found.items() if values}


@each_estimator
def test_step_counts_do_not_enter_the_statistics(estimator: type[Estimator]) -> None:
    rewards, lengths = [1, 0, 1, 0], [1, 3, 2, 5]
    members = [rewarded(f"t{i}", rewards[i], steps=lengths[i]) for i in range(4)]
    credits = credit(estimator(), *members)
    a = scalars(credits)
    assert a["t0"] == a["t2"] == -a["t1"] == -a["t3"] > 0
    assert len(credits.advantages) == sum(lengths)


def test_the_three_formulas() -> None:
    members = [rewarded(f"t{i}", r) for i, r in enumerate([3.0, 1.0, 2.0])]
    assert scalars(credit(Grpo(), *members))["t0"] == pytest.approx(1 / (1 + 1e-6), rel=1e-12)
    assert scalars(credit(DrGrpo(), *members)) == {"t0": 1.0, "t1": -1.0, "t2": 0.0}
    assert scalars(credit(Rloo(), *members)) == {"t0": 1.5, "t1": -1.5, "t2": 0.0}


@each_estimator
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e-9, 0.0])
def test_equal_rewards_are_exactly_no_signal(estimator: type[Estimator], reward: float) -> None:
    members = [rewarded(f"t{i}", reward) for i in range(3)]
    assert scalars(credit(estimator(), *members)) == {"t0": 0.0, "t1": 0.0, "t2": 0.0}


@each_estimator
def test_groups_do_not_mix(estimator: type[Estimator]) -> None:
    alone = [rewarded("a", 1.0), rewarded("b", 0.0)]
    other = [rewarded("c", 50.0, group="h"), rewarded("d", 70.0, group="h")]
    together = scalars(credit(estimator(), *alone, *other))
    assert {uid: together[uid] for uid in "ab"} == scalars(credit(estimator(), *alone))


@each_estimator
@pytest.mark.parametrize("reason", [StopReason.DEADLINE, StopReason.ABORTED, StopReason.ERROR])
def test_what_load_or_failure_ended_is_out_of_loss_and_statistics(
    estimator: type[Estimator], reason: StopReason
) -> None:
    kept = [rewarded("a", 1.0), rewarded("b", 0.0)]
    credits = credit(estimator(), *kept, rewarded("broken", 9.0, steps=2, stop_reason=reason))
    assert scalars(credits) == scalars(credit(estimator(), *kept))
    for t in range(2):
        assert not credits.loss_mask[StepKey("broken", t)].any()
        assert not credits.advantages[StepKey("broken", t)].any()


@each_estimator
def test_a_missing_reward_leaves_the_others_as_they_are(estimator: type[Estimator]) -> None:
    kept = [rewarded("a", 1.0), rewarded("b", 0.0)]
    credits = credit(estimator(), *kept, rewarded("unscored", None, steps=3))
    assert scalars(credits) == scalars(credit(estimator(), *kept))
    assert not any(credits.loss_mask[StepKey("unscored", t)].any() for t in range(3))


@each_estimator
def test_one_usable_member_has_advantage_0_and_still_counts_as_trained(estimator: type[Estimator]) -> None:
    credits = credit(estimator(), rewarded("a", 1.0), rewarded("b", None))
    assert scalars(credits) == {"a": 0.0}


@each_estimator
def test_nothing_usable_gives_masks_without_a_token(estimator: type[Estimator]) -> None:
    empty = trajectory("empty", [])
    credits = credit(estimator(), empty, rewarded("late", 1.0, stop_reason=StopReason.DEADLINE))
    assert scalars(credits) == {}
    assert list(credits.loss_mask) == [StepKey("late", 0)]
    assert not credit(estimator()).advantages


@each_estimator
def test_a_trajectory_without_steps_is_not_compared(estimator: type[Estimator]) -> None:
    kept = [rewarded("a", 1.0), rewarded("b", 0.5)]
    assert scalars(credit(estimator(), *kept, trajectory("empty", []))) == scalars(credit(estimator(), *kept))


def test_only_sampled_tokens_train() -> None:
    forced = step([1], [5, 6, 7], sampled=[True, True, False], reward=1.0)
    nothing = step([1], [])
    credits = credit(Rloo(), trajectory("a", [nothing, forced]), rewarded("b", 0.0))
    np.testing.assert_array_equal(credits.loss_mask[StepKey("a", 1)], [True, True, False])
    np.testing.assert_array_equal(credits.advantages[StepKey("a", 1)], [1.0, 1.0, 0.0])
    assert credits.loss_mask[StepKey("a", 0)].shape == (0,)


LIMITED = [
    rewarded("a", 1.0),
    rewarded("b", 0.0),
    rewarded("cut", 5.0, stop_reason=StopReason.MAX_STEPS),
    rewarded("full", 2.0, stop_reason=StopReason.CONTEXT_FULL),
]


def test_truncated_trajectories_train_and_count_by_default() -> None:
    assert scalars(credit(DrGrpo(), *LIMITED)) == {"a": -1.0, "b": -2.0, "cut": 3.0, "full": 0.0}


def test_truncated_trajectories_can_be_compared_without_training() -> None:
    found = scalars(credit(DrGrpo(truncated_in_loss=False), *LIMITED))
    assert found == {"a": -1.0, "b": -2.0}


def test_truncated_trajectories_can_train_without_being_compared() -> None:
    assert scalars(credit(DrGrpo(truncated_in_statistics=False), *LIMITED))["cut"] == 4.5
    # left out of the statistics, it has no part of its own in the others' mean
    assert scalars(credit(Rloo(truncated_in_statistics=False), *LIMITED)) == {
        "a": 1.0,
        "b": -1.0,
        "cut": 4.5,
        "full": 1.5,
    }


def test_no_spread_to_measure_an_outsider_by() -> None:
    members = [rewarded("a", 0.1), rewarded("b", 0.1), LIMITED[2]]
    found = scalars(credit(Grpo(truncated_in_statistics=False), *members))
    assert found == {"a": 0.0, "b": 0.0, "cut": 0.0}


@pytest.mark.parametrize(("estimator", "outside"), [(DrGrpo, 4.9), (Rloo, 4.9), (Gigpo, 9.8)])
def test_equal_rewards_are_exactly_no_signal_whoever_is_measured_by_them(
    estimator: type[Estimator], outside: float
) -> None:
    # the mean of three times 0.1 is not 0.1
    members = [rewarded("a", 0.1), rewarded("b", 0.1), rewarded("c", 0.1), LIMITED[2]]
    found = scalars(credit(estimator(truncated_in_statistics=False), *members))
    assert found.pop("cut") == pytest.approx(outside)
    assert found == {"a": 0.0, "b": 0.0, "c": 0.0}


@each_estimator
def test_both_switches_off_leaves_no_trace_of_the_truncated(estimator: type[Estimator]) -> None:
    off = {"truncated_in_loss": False, "truncated_in_statistics": False}
    equal = [rewarded("a", 0.1), rewarded("b", 0.1), rewarded("c", 0.1)]
    assert scalars(credit(estimator(**off), *equal, LIMITED[2])) == {"a": 0.0, "b": 0.0, "c": 0.0}


@each_estimator
@given(rewards=st.lists(st.floats(-100, 100), min_size=2, max_size=8), data=st.data())
def test_order_does_not_matter_and_credit_sums_to_nothing(
    estimator: type[Estimator], rewards: list[float], data: st.DataObject
) -> None:
    members = [rewarded(f"t{i}", reward, steps=1 + i % 3) for i, reward in enumerate(rewards)]
    there = scalars(credit(estimator(), *members))
    assert math.isclose(sum(there.values()), 0.0, abs_tol=1e-6)
    back = scalars(credit(estimator(), *data.draw(st.permutations(members))))
    assert back == pytest.approx(there, rel=1e-9, abs=1e-9)


def test_groups_of_one_are_refused_before_the_run() -> None:
    check_group_size(Grpo(), 2)
    with pytest.raises(ConfigError, match="group_size = 1.*at least 2"):
        check_group_size(Grpo(), 1)


def test_an_estimator_without_groups_may_have_any_size() -> None:
    class Alone:
        requires = frozenset()
        __call__ = Grpo.__call__

    check_group_size(Alone(), 1)


@pytest.mark.parametrize(("name", "estimator"), [("grpo", Grpo), ("dr_grpo", DrGrpo), ("rloo", Rloo)])
def test_estimators_by_name(name: str, estimator: type) -> None:
    assert resolve("estimator", name) is estimator
    assert isinstance(estimator(), Estimator)


@each_estimator
def test_float_residue_of_equal_rewards_is_no_signal(estimator: type[Estimator]) -> None:
    a, b, c = rewarded("a", -0.3), rewarded("b", -0.1 - 0.2), rewarded("c", -0.3)
    assert a.reward != b.reward
    assert set(scalars(credit(estimator(), a, b, c)).values()) == {0.0}
