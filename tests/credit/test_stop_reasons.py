"""What a stop reason does to credit: which trajectories are in the loss, in the statistics, and bootstrapped.

Every expected number is worked out by hand for three trajectories of one step of one token: ``a`` was worth 1
and ``b`` 0, both at the task's own end; ``c`` was worth 2 and ended for the reason in question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import pytest
from episodes import grouped, step, trajectory

from steprl.credit import DrGrpo, Gae, Gigpo, Grpo, ReinforcePp, ReinforcePpBaseline, Rloo
from steprl.types import Credits, Estimator, Scores, StepKey, StopReason

OUT = {StopReason.DEADLINE, StopReason.ABORTED, StopReason.ERROR}
TRUNCATED = {StopReason.MAX_STEPS, StopReason.CONTEXT_FULL}

OVER_TOKENS, OVER_STEPS = sqrt(0.5 + 1e-8), sqrt(0.5) + 1e-8
"""The unit of whitening two numbers that are 1 apart: their variance is ½."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """``alone``: a and b without c. ``together``: all three. ``outside``: c, measured by a and b alone."""

    make: Callable[..., Estimator]
    alone: tuple[float, float]
    together: tuple[float, float, float]
    outside: float


def pair(x: float) -> tuple[float, float]:
    return x, -x


def three(x: float) -> tuple[float, float, float]:
    return 0.0, -x, x  # 1, 0, 2 have the mean 1 and the variance 1


WITHOUT_A_CRITIC = {
    "grpo": Expected(
        make=Grpo,
        alone=pair(0.5 / (sqrt(0.5) + 1e-6)),
        together=three(1 / (1 + 1e-6)),
        outside=1.5 / (sqrt(0.5) + 1e-6),
    ),
    "dr_grpo": Expected(make=DrGrpo, alone=pair(0.5), together=three(1.0), outside=1.5),
    "rloo": Expected(make=Rloo, alone=pair(1.0), together=three(1.5), outside=1.5),
    "reinforce_pp token": Expected(
        make=ReinforcePp,
        alone=pair(0.5 / OVER_TOKENS),
        together=three(1 / sqrt(1 + 1e-8)),
        outside=1.5 / OVER_TOKENS,
    ),
    "reinforce_pp step": Expected(
        make=lambda **options: ReinforcePp(credit="step", **options),
        alone=pair(0.5 / OVER_STEPS),
        together=three(1 / (1 + 1e-8)),
        outside=1.5 / OVER_STEPS,
    ),
    "reinforce_pp_baseline": Expected(
        make=ReinforcePpBaseline,
        alone=pair(0.5 / OVER_TOKENS),
        together=three(1 / sqrt(1 + 1e-8)),
        outside=1.5 / OVER_TOKENS,
    ),
    # the one step of each acts in the task itself, so the comparison of steps doubles that of episodes
    "gigpo": Expected(make=Gigpo, alone=pair(1.0), together=three(2.0), outside=3.0),
}
WITH_A_CRITIC = {
    "token": (pair(0.5 / OVER_TOKENS), three(1 / sqrt(1 + 1e-8))),
    "step": (pair(0.5 / OVER_STEPS), three(1 / (1 + 1e-8))),
}
"""``gae``: a and b alone, and all three. Every value is 0."""

each_reason = pytest.mark.parametrize("reason", list(StopReason))


def credit(estimator: Estimator, reason: StopReason) -> Credits:
    """Of a, b and c. What comes after c is worth −6, if it is asked for."""
    ends = {"a": (1.0, StopReason.TERMINATED), "b": (0.0, StopReason.TERMINATED), "c": (2.0, reason)}
    members = [
        trajectory(uid, [step([1], [2], reward=reward)], stop_reason=end)
        for uid, (reward, end) in ends.items()
    ]
    nothing = {StepKey(uid, 0): np.zeros(1) for uid in ends}
    return estimator(grouped(*members), Scores(values=nothing, bootstrap_values={"c": -6.0}))


def found(credits: Credits) -> dict[str, float]:
    """The advantage of every trajectory in the loss; the others must have 0."""
    for key, mask in credits.loss_mask.items():
        assert mask.any() or not credits.advantages[key].any()
    return {
        key.trajectory: credits.advantages[key].item()
        for key, mask in credits.loss_mask.items()
        if mask.any()
    }


def close(*numbers: float) -> Any:
    return pytest.approx(dict(zip("abc", numbers, strict=False)), rel=1e-12, abs=1e-15)


@each_reason
@pytest.mark.parametrize("name", WITHOUT_A_CRITIC)
def test_without_a_critic(name: str, reason: StopReason) -> None:
    expected = WITHOUT_A_CRITIC[name]
    numbers = expected.alone if reason in OUT else expected.together
    assert found(credit(expected.make(), reason)) == close(*numbers)


@pytest.mark.parametrize("in_statistics", [True, False])
@pytest.mark.parametrize("in_loss", [True, False])
@each_reason
@pytest.mark.parametrize("name", WITHOUT_A_CRITIC)
def test_the_two_switches_are_about_truncated_trajectories_alone(
    name: str, reason: StopReason, in_loss: bool, in_statistics: bool
) -> None:
    expected = WITHOUT_A_CRITIC[name]
    estimator = expected.make(truncated_in_loss=in_loss, truncated_in_statistics=in_statistics)
    numbers: tuple[float, ...] = expected.alone if reason in OUT else expected.together
    if reason in TRUNCATED and not in_statistics:
        numbers = (*expected.alone, expected.outside)
    if reason in TRUNCATED and not in_loss:
        numbers = numbers[:2]
    assert found(credit(estimator, reason)) == close(*numbers)


@each_reason
@pytest.mark.parametrize("unit", WITH_A_CRITIC)
def test_with_a_critic(unit: str, reason: StopReason) -> None:
    alone, together = WITH_A_CRITIC[unit]
    numbers: tuple[float, ...] = alone if reason in OUT else together
    if reason in TRUNCATED:
        # 2 + ½·(−6) = −1: 1, 0, −1 are whitened, and c is the least of them
        numbers = (together[2], 0.0, together[1])
    credits = credit(Gae(credit=unit, gamma=0.5), reason)
    assert found(credits) == close(*numbers)
    assert credits.returns is not None
    returns = {StopReason.TERMINATED: 2.0} | dict.fromkeys(TRUNCATED, -1.0) | dict.fromkeys(OUT, 0.0)
    assert [credits.returns[StepKey(uid, 0)].item() for uid in "abc"] == [1.0, 0.0, returns[reason]]


def test_every_stop_reason_is_in_or_out() -> None:
    assert {reason for reason in StopReason if not reason.trains} == OUT
    assert {reason for reason in StopReason if reason.bootstraps} == TRUNCATED
