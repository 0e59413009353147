"""What comes next: branches, several agents, summaries, and steps in which no token was sampled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from episodes import chained, grouped, step, trajectory

from steprl.credit import Gae, ReinforcePp
from steprl.types import Credits, Scores, Step, StepKey, StopReason, Trajectory

UNITS = pytest.mark.parametrize("unit", ["token", "step"])


def act(reward: float = 0.0, parent: int | None = None, **fields: object) -> Step:
    """A step of one token."""
    return step([1], [2], reward=reward, parent=parent, **fields)


def forced(reward: float = 0.0, parent: int | None = None) -> Step:
    """A step in which no token was sampled."""
    return step([1], [2], sampled=[False], reward=reward, parent=parent)


def returns(*steps: Step, unit: str = "token", gamma: float = 0.5) -> list[float]:
    credits = ReinforcePp(credit=unit, gamma=gamma, whiten=False)(grouped(trajectory("a", steps)), Scores())
    return _first(credits, len(steps))


def _first(credits: Credits, count: int) -> list[float]:
    return [credits.advantages[StepKey("a", t)][0].item() for t in range(count)]


def critic(made: Trajectory, values: list[float], after: float = 0.0) -> Scores:
    by_step = {made.key(t): np.array([v]) for t, v in enumerate(values)}
    return Scores(values=by_step, bootstrap_values={"a": after})


@UNITS
def test_a_parent_of_several_steps_goes_on_with_their_mean(unit: str) -> None:
    tree = [act(1.0), act(2.0, 0), act(6.0, 0), act(4.0, 1)]
    assert returns(*tree, unit=unit) == [1.0 + 0.5 * (4.0 + 6.0) / 2, 2.0 + 0.5 * 4.0, 6.0, 4.0]
    made = trajectory("a", tree)
    # λ = 0: the parent sees the mean of its children's values
    credits = Gae(credit=unit, lam=0.0, whiten=False)(grouped(made), critic(made, [1.0, 3.0, 5.0, 7.0]))
    assert _first(credits, 4) == [1.0 + 4.0 - 1.0, 2.0 + 7.0 - 3.0, 6.0 - 5.0, 4.0 - 7.0]


@UNITS
def test_identical_branches_are_as_one(unit: str) -> None:
    assert returns(act(), act(0.3, 0), act(0.3, 0), act(0.3, 0), unit=unit)[0] == pytest.approx(0.15)


@UNITS
def test_each_agent_has_a_chain_of_its_own(unit: str) -> None:
    turns = [
        act(1.0, agent="pro"),
        act(10.0, agent="contra"),
        act(2.0, 0, agent="pro"),
        act(20.0, 1, agent="contra"),
    ]
    assert returns(*turns, unit=unit) == [2.0, 20.0, 2.0, 20.0]


def test_where_parents_go_through_other_agents_the_chain_does_not() -> None:
    turns = [act(1.0, agent="pro"), act(10.0, 0, agent="contra"), act(2.0, 1, agent="pro")]
    assert returns(*turns) == [2.0, 10.0, 2.0]


@UNITS
def test_a_limit_continues_the_step_recorded_last_only(unit: str) -> None:
    made = trajectory(
        "a", [act(), act(1.0, 0), act(2.0, 0), act(agent="other")], stop_reason=StopReason.MAX_STEPS
    )
    credits = Gae(credit=unit, whiten=False)(grouped(made), critic(made, [0.0] * 4, after=8.0))
    assert _first(credits, 4) == [1.5, 1.0, 2.0, 8.0]


@UNITS
def test_nothing_is_discounted_over_a_summary(unit: str) -> None:
    steps = chained(act(1.0), act(kind="summary"), act(8.0))
    assert returns(*steps, unit=unit) == [1.0 + 0.5 * 8.0, 8.0, 8.0]


def test_nothing_is_discounted_within_a_summary() -> None:
    steps = chained(step([1], [2, 3, 4], reward=0.0, kind="summary"), step([1], [2, 3], reward=8.0))
    credits = ReinforcePp(gamma=0.5, whiten=False)(grouped(trajectory("a", steps)), Scores())
    assert credits.advantages[StepKey("a", 0)].tolist() == [4.0, 4.0, 4.0]
    assert credits.advantages[StepKey("a", 1)].tolist() == [4.0, 8.0]


@UNITS
def test_the_reward_of_a_step_without_sampled_tokens_moves_to_the_sampled_token_before(unit: str) -> None:
    assert returns(*chained(act(1.0), forced(4.0), act(2.0)), unit=unit) == [1.0 + 4.0 + 1.0, 0.0, 2.0]
    # at the end, and over several
    assert returns(*chained(act(1.0), forced(4.0), forced(8.0)), unit=unit)[0] == 13.0
    # no action can have brought about what stands before the first
    assert returns(*chained(forced(4.0), act(2.0)), unit=unit) == [0.0, 2.0]


@UNITS
def test_it_moves_along_its_own_chain(unit: str) -> None:
    assert returns(act(1.0), act(2.0, 0), forced(4.0, 0), unit=unit)[:2] == [1.0 + (0.5 * 2.0 + 4.0) / 2, 2.0]


@UNITS
def test_a_step_without_sampled_tokens_is_no_step_of_the_whitening(unit: str) -> None:
    plain, gap = chained(act(1.0), act(2.0)), chained(act(1.0), forced(), act(2.0))
    a, b = (ReinforcePp(credit=unit)(grouped(trajectory("a", s)), Scores()) for s in (plain, gap))
    assert _first(a, 2) == [_first(b, 3)[0], _first(b, 3)[2]]


@UNITS
def test_a_limit_reaches_through_steps_without_sampled_tokens(unit: str) -> None:
    made = trajectory("a", chained(act(1.0), forced(4.0)), stop_reason=StopReason.CONTEXT_FULL)
    scores = critic(made, [3.0, math.nan], after=8.0)
    credits = Gae(credit=unit, gamma=0.5, whiten=False)(grouped(made), scores)
    assert _first(credits, 1) == [1.0 + 4.0 + 0.5 * 8.0 - 3.0]
