"""What ``reinforce_pp`` and ``reinforce_pp_baseline`` mean: values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from episodes import chained, grouped, rewarded, step, trajectory

from steprl.credit import ReinforcePp, ReinforcePpBaseline
from steprl.errors import ConfigError
from steprl.types import Credits, Estimator, Need, Scores, StepKey, StopReason, Trajectory


def credit(estimator: Estimator, *trajectories: Trajectory) -> Credits:
    return estimator(grouped(*trajectories), Scores())


def of(credits: Credits, uid: str, index: int = 0) -> list[float]:
    return credits.advantages[StepKey(uid, index)].tolist()


TWO_STEPS = trajectory(
    "a", chained(step([1], [5, 6], reward=1.0), step([1], [7, 8, 9], sampled=[True, False, True], reward=2.0))
)


def test_returns_run_over_the_sampled_tokens_of_all_steps() -> None:
    credits = credit(ReinforcePp(gamma=0.5, whiten=False), TWO_STEPS)
    assert of(credits, "a", 1) == [1.0, 0.0, 2.0]
    assert of(credits, "a", 0) == [0.75, 1.5]
    assert credits.returns is None


def test_with_step_credit_gamma_is_per_step() -> None:
    credits = credit(ReinforcePp(credit="step", gamma=0.5, whiten=False), TWO_STEPS)
    assert of(credits, "a", 1) == [2.0, 0.0, 2.0]
    assert of(credits, "a", 0) == [2.0, 2.0]


def test_an_early_step_gets_the_outcome() -> None:
    late = trajectory("a", chained(*(step([1], [2, 3], reward=float(t == 3)) for t in range(4))))
    for unit in ("token", "step"):
        credits = credit(ReinforcePp(credit=unit, whiten=False), late)
        assert all(of(credits, "a", t) == [1.0, 1.0] for t in range(4))


def test_whitening_over_tokens_and_over_steps() -> None:
    long = trajectory("a", [step([1], [2, 3, 4], reward=3.0)])
    short = trajectory("b", [step([1], [2], reward=-1.0)], group="h")
    # tokens: 3, 3, 3, −1 with mean 2 and variance 4; steps: 3, −1 with mean 1 and variance 8
    by_token = credit(ReinforcePp(), long, short)
    assert of(by_token, "a") == pytest.approx([1 / math.sqrt(4 + 1e-8)] * 3, rel=1e-15)
    assert of(by_token, "b") == pytest.approx([-3 / math.sqrt(4 + 1e-8)], rel=1e-15)
    by_step = credit(ReinforcePp(credit="step"), long, short)
    assert of(by_step, "a") == pytest.approx([2 / (math.sqrt(8) + 1e-8)] * 3, rel=1e-15)
    assert of(by_step, "b") == pytest.approx([-2 / (math.sqrt(8) + 1e-8)], rel=1e-15)


@pytest.mark.parametrize("unit", ["token", "step"])
def test_one_number_alone_and_equal_numbers_are_exactly_no_signal(unit: str) -> None:
    alone = trajectory("a", [step([1], [2], reward=0.7)])
    assert of(credit(ReinforcePp(credit=unit), alone), "a") == [0.0]
    equal = [trajectory(uid, [step([1], [2, 3], reward=0.1)]) for uid in "abc"]
    assert all(of(credit(ReinforcePp(credit=unit), *equal), uid) == [0.0, 0.0] for uid in "abc")
    assert not credit(ReinforcePp(credit=unit)).advantages


LIMITED = [
    trajectory("a", [step([1], [2], reward=1.0)]),
    trajectory("b", [step([1], [2], reward=3.0)]),
    trajectory("cut", [step([1], [2], reward=6.0)], stop_reason=StopReason.MAX_STEPS),
]


def test_truncated_trajectories_can_count_without_training() -> None:
    everything = credit(ReinforcePp(), *LIMITED)
    credits = credit(ReinforcePp(truncated_in_loss=False), *LIMITED)
    assert of(credits, "a") == of(everything, "a") and of(credits, "b") == of(everything, "b")
    assert not credits.loss_mask[StepKey("cut", 0)].any() and of(credits, "cut") == [0.0]


def test_truncated_trajectories_can_train_without_counting() -> None:
    credits = credit(ReinforcePp(truncated_in_statistics=False), *LIMITED)
    assert of(credits, "a") == of(credit(ReinforcePp(), *LIMITED[:2]), "a")
    assert of(credits, "cut") == pytest.approx([4 / math.sqrt(2 + 1e-8)])
    # one alone in the statistics, or equal ones, have no spread to measure an outsider by
    assert of(credit(ReinforcePp(truncated_in_statistics=False), *LIMITED[1:]), "cut") == [0.0]


# --- with a baseline ----------------------------------------------------------------------------------


def test_the_baseline_is_the_groups_mean_and_the_spread_the_batchs() -> None:
    members = [rewarded("a", 1.0), rewarded("b", 0.0, steps=3), rewarded("c", 4.0, group="h")]
    members.append(rewarded("d", 2.0, group="h"))
    plain = credit(ReinforcePpBaseline(whiten=False), *members)
    assert [of(plain, uid)[0] for uid in "abcd"] == [0.5, -0.5, 1.0, -1.0]
    # over tokens: two of 0.5, six of −0.5, two of 1, two of −1
    tokens = np.repeat([0.5, -0.5, 1.0, -1.0], [2, 6, 2, 2])
    scale = 1 / math.sqrt(tokens.var(ddof=1) + 1e-8)
    credits = credit(ReinforcePpBaseline(), *members)
    for uid, centred in zip("abcd", (0.5, -0.5, 1.0, -1.0), strict=True):
        assert of(credits, uid) == pytest.approx([(centred - tokens.mean()) * scale] * 2, rel=1e-14)
    assert of(credits, "b", 0) == of(credits, "b", 2)


def test_who_has_nobody_to_be_compared_with_gets_0_and_stays_out_of_the_whitening() -> None:
    pair = [rewarded("a", 1.0), rewarded("b", 0.0, steps=2)]
    alone = [rewarded("c", 9.0, group="h"), rewarded("d", None, group="h")]
    credits = credit(ReinforcePpBaseline(), *pair, *alone)
    assert of(credits, "a") == of(credit(ReinforcePpBaseline(), *pair), "a")
    assert of(credits, "c") == [0.0, 0.0] and credits.loss_mask[StepKey("c", 0)].all()


# --- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credit": "steps"}, "unknown credit.*'steps'.*Did you mean 'step'"),
        ({"gamma": 1.5}, "gamma is 1.5.*from 0 to 1"),
        ({"whiten": "false"}, "whiten is 'false'.*true or false"),
        ({"kl_beta": -0.1}, "kl_beta is -0.1"),
        ({"kl_beta": math.nan}, "kl_beta is nan"),
        ({"truncated_in_loss": 1}, "truncated_in_loss is 1"),
    ],
)
def test_options_are_checked_where_they_are_given(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReinforcePp(**options)


def test_what_is_needed_follows_from_the_options() -> None:
    assert ReinforcePp().requires == frozenset()
    assert ReinforcePp(kl_beta=0.1).requires == {Need.REFERENCE}
    assert ReinforcePp().requires == frozenset()
    assert ReinforcePpBaseline().requires == {Need.GROUPS}
