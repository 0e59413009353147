"""What holds for all estimators: the faults that the specification names, and invariants of any batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from episodes import chained, grouped, rewarded, step, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.credit import DrGrpo, Gae, Gigpo, Grpo, ReinforcePp, ReinforcePpBaseline, Rloo
from steprl.registry import resolve
from steprl.types import Credits, Estimator, Need, Scores, StepKey, StopReason, Trajectory

Make = Callable[[], Estimator]

BY_GROUP: dict[str, Make] = {
    "grpo": Grpo,
    "dr_grpo": DrGrpo,
    "rloo": Rloo,
    "gigpo": Gigpo,
    "gigpo std": lambda: Gigpo(mode="mean_std_norm", omega=0.5),
    "reinforce_pp_baseline raw": lambda: ReinforcePpBaseline(whiten=False),
}
BY_BATCH: dict[str, Make] = {
    "reinforce_pp_baseline": ReinforcePpBaseline,
    "reinforce_pp token": lambda: ReinforcePp(gamma=0.9),
    "reinforce_pp step": lambda: ReinforcePp(credit="step", gamma=0.9),
    "gae token": lambda: Gae(gamma=0.9, lam=0.8),
    "gae step": lambda: Gae(credit="step", gamma=0.9, lam=0.8),
}
EVERY = BY_GROUP | BY_BATCH
each = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
each_by_group = pytest.mark.parametrize("make", BY_GROUP.values(), ids=BY_GROUP)


def scored(*trajectories: Trajectory, seed: int = 0) -> Scores:
    """Values of every step at sampled tokens and the first one; nonsense at the other tokens."""
    rng = np.random.default_rng(seed)
    values, after = {}, {}
    for made in sorted(trajectories, key=lambda t: t.uid):
        after[made.uid] = rng.normal()
        for index, each_step in enumerate(made.steps):
            said = np.where(each_step.sampled_mask, rng.normal(size=len(each_step.action_ids)), math.nan)
            said[:1] = rng.normal()
            values[made.key(index)] = said
    return Scores(values=values, bootstrap_values=after)


def credit(make: Make, *trajectories: Trajectory) -> Credits:
    return make()(grouped(*trajectories), scored(*trajectories))


def assert_same(one: Credits, other: Credits, *, exactly: bool = False) -> None:
    """The same of all steps that ``one`` has."""
    for key, expected in one.advantages.items():
        np.testing.assert_array_equal(other.loss_mask[key], one.loss_mask[key])
        tolerance = 0.0 if exactly else 1e-9
        np.testing.assert_allclose(other.advantages[key], expected, rtol=tolerance, atol=tolerance)
        if one.returns is not None:
            assert other.returns is not None
            np.testing.assert_allclose(other.returns[key], one.returns[key], rtol=tolerance, atol=tolerance)


# --- faults that others have had ----------------------------------------------------------------------


CENTRED = {
    "grpo": 0.5 / (math.sqrt(1 / 3) + 1e-6),
    "dr_grpo": 0.5,
    "rloo": 2 / 3,
    "gigpo": 0.5 + 0.5,
    "gigpo std": 1.5 * 0.5 / (math.sqrt(1 / 3) + 1e-6),
    "reinforce_pp_baseline raw": 0.5,
}
"""The credit of 1 in a group of 1, 0, 1, 0, whose variance is ⅓; of steps, where all act in one state."""


@pytest.mark.parametrize("name", BY_GROUP)
@pytest.mark.parametrize("lengths", [[1, 1, 1, 1], [1, 3, 2, 5], [7, 1, 1, 1]])
def test_step_counts_do_not_enter_a_groups_statistics(name: str, lengths: list[int]) -> None:
    played = [rewarded(f"t{i}", 1.0 - i % 2, steps=n) for i, n in enumerate(lengths)]
    members = [replace(t, steps=tuple(chained(*t.steps))) for t in played]
    credits = credit(BY_GROUP[name], *members)
    # in the task itself, where every trajectory has one step
    numbers = [credits.advantages[t.key(0)][0] for t in members]
    x = CENTRED[name]
    assert numbers == pytest.approx([x, -x, x, -x], rel=1e-12)


@each_by_group
@pytest.mark.parametrize("uids", ["pqrs", "zyxw"])
def test_the_group_is_the_task_not_the_trajectory(make: Make, uids: str) -> None:
    credits = credit(make, *(rewarded(uid, r) for uid, r in zip(uids, [1.0, 0.0, 1.0, 0.0], strict=True)))
    assert all(credits.advantages[StepKey(uid, 0)].all() for uid in uids)


@pytest.mark.parametrize("make", [Grpo, DrGrpo, Rloo, ReinforcePpBaseline])
def test_every_step_has_its_trajectorys_number_on_its_own_tokens(make: type[Grpo]) -> None:
    shapes = ([True], [False, True, True], [True, False, False, True])
    steps = chained(*(step([1], [2] * len(m), sampled=m, reward=float(len(m) == 4)) for m in shapes))
    credits = credit(make, trajectory("a", steps), rewarded("b", 0.0))
    numbers = {x for t in range(3) for x in credits.advantages[StepKey("a", t)][list(shapes[t])].tolist()}
    assert len(numbers) == 1 and numbers.pop() > 0
    for t, mask in enumerate(shapes):
        np.testing.assert_array_equal(credits.advantages[StepKey("a", t)] != 0, mask)


@pytest.mark.parametrize("make", [ReinforcePp, Gae])
def test_returns_are_not_reset_at_observation_tokens(make: type[ReinforcePp] | type[Gae]) -> None:
    mask = [True, True, False, False, True, True]
    for layout in (
        [step([1], [2] * 6, sampled=mask, reward=1.0)],
        [step([1], [2] * 4, reward=1.0)],
        chained(step([1], [2, 2]), step([1], [2, 2], reward=1.0)),
    ):
        made = trajectory("a", layout)
        nothing = {made.key(t): np.where(s.sampled_mask, 0.0, math.nan) for t, s in enumerate(made.steps)}
        credits = make(whiten=False)(grouped(made), Scores(values=nothing))
        found = [credits.advantages[made.key(t)][s.sampled_mask] for t, s in enumerate(made.steps)]
        assert np.concatenate(found).tolist() == [1.0, 1.0, 1.0, 1.0]


@each
def test_what_scores_say_of_other_tokens_does_not_leak(make: Make) -> None:
    gap = trajectory("a", [step([1], [2, 3, 4], sampled=[True, False, True], reward=1.0)])
    tight = trajectory("a", [step([1], [2, 4], reward=1.0)])
    for made, values in ((gap, [0.5, math.nan, 0.25]), (tight, [0.5, 0.25])):
        scores = Scores(values={StepKey("a", 0): np.array(values), StepKey("b", 0): np.array([0.0, 1.0])})
        credits = make()(grouped(made, rewarded("b", 0.0)), scores)
        sampled = made.steps[0].sampled_mask
        found = credits.advantages[StepKey("a", 0)][sampled].tolist()
        if made is gap:
            expected = found
    assert found == expected


@each
def test_one_missing_reward_takes_one_trajectory_out(make: Make) -> None:
    kept = [rewarded("a", 1.0), rewarded("b", 0.0), rewarded("c", 0.5, steps=2)]
    unscored = trajectory("unscored", chained(step([1], [2], reward=None), step([1], [2], reward=7.0)))
    together = credit(make, *kept, unscored)
    assert_same(credit(make, *kept), together, exactly=True)
    assert not any(together.loss_mask[unscored.key(t)].any() for t in range(2))


@each
def test_the_reward_survives_gaps_in_the_mask_and_empty_actions(make: Make) -> None:
    gaps = step([1], [2, 3, 4], sampled=[True, False, False], reward=0.0)
    with_reward, without = (
        trajectory(uid, chained(gaps, step([1], [], reward=last))) for uid, last in (("a", 5.0), ("b", 0.0))
    )
    scores = Scores(values={StepKey(uid, 0): np.array([0.0, math.nan, math.nan]) for uid in "ab"})
    credits = make()(grouped(with_reward, without), scores)
    assert credits.advantages[StepKey("a", 0)][0] > 0 > credits.advantages[StepKey("b", 0)][0]


# --- invariants ---------------------------------------------------------------------------------------

REASONS = [StopReason.TERMINATED, StopReason.TERMINATED, StopReason.MAX_STEPS, StopReason.DEADLINE]


@st.composite
def batches(draw: st.DrawFn) -> list[Trajectory]:
    """One to three groups of one to four trajectories of zero to four steps, of every kind."""
    made = []
    for group in range(draw(st.integers(1, 3))):
        for member in range(draw(st.integers(1, 4))):
            steps = [
                step(
                    [1],
                    [2] * len(mask),
                    sampled=mask,
                    reward=draw(st.sampled_from([0.0, 0.0, 0.1, 1.0, -2.5])),
                    anchor=draw(st.sampled_from(["hall", "cellar", None])),
                    kind=draw(st.sampled_from(["act", "act", "act", "summary"])),
                )
                for mask in draw(st.lists(st.lists(st.booleans(), max_size=3), max_size=4))
            ]
            reason = draw(st.sampled_from(REASONS))
            uid = f"t{group}{member}"
            made.append(trajectory(uid, chained(*steps), group=f"g{group}", stop_reason=reason))
    return made


few = settings(max_examples=15, deadline=None)


@each
@few
@given(members=batches(), data=st.data())
def test_order_does_not_matter(make: Make, members: list[Trajectory], data: st.DataObject) -> None:
    assert_same(credit(make, *members), credit(make, *data.draw(st.permutations(members))))


@each_by_group
@few
@given(members=batches())
def test_groups_can_be_credited_apart(make: Make, members: list[Trajectory]) -> None:
    together = credit(make, *members)
    for group in grouped(*members):
        assert_same(make()([group], scored(*members)), together, exactly=True)


@each
@few
@given(members=batches(), reason=st.sampled_from(["error", "deadline", "aborted"]))
def test_what_load_or_failure_ended_changes_nothing(
    make: Make, members: list[Trajectory], reason: str
) -> None:
    broken = rewarded("broken", 50.0, steps=3, group="g0", stop_reason=StopReason(reason))
    scores = scored(*members)
    groups, more = grouped(*members), grouped(*members[:1], broken, *members[1:])
    assert_same(make()(groups, scores), make()(more, scores), exactly=True)
    credits = make()(more, scores)
    assert not any(credits.loss_mask[broken.key(t)].any() for t in range(3))


@each
@few
@given(members=batches())
def test_credit_is_finite_and_on_sampled_tokens_of_what_trains(make: Make, members: list[Trajectory]) -> None:
    credits = credit(make, *members)
    for made in members:
        for index, each_step in enumerate(made.steps):
            key = made.key(index)
            trains = made.stop_reason.trains
            np.testing.assert_array_equal(credits.loss_mask[key], each_step.sampled_mask & trains)
            assert np.isfinite(credits.advantages[key]).all()
            assert not credits.advantages[key][~credits.loss_mask[key]].any()


def test_defaults_are_those_of_the_papers() -> None:
    by_token = Gae()
    assert (by_token.credit, by_token.gamma, by_token.lam, by_token.whiten) == ("token", 1.0, 1.0, True)
    plain = ReinforcePp()
    assert (plain.credit, plain.gamma, plain.whiten) == ("token", 1.0, True)
    states = Gigpo()
    assert (states.omega, states.gamma, states.min_trajectories) == (1.0, 1.0, 2)
    assert ReinforcePpBaseline().whiten
    assert [made.kl_beta for made in (by_token, plain, states, Grpo(), Rloo())] == [0.0] * 5


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("reinforce_pp", ReinforcePp),
        ("reinforce_pp_baseline", ReinforcePpBaseline),
        ("gae", Gae),
        ("gigpo", Gigpo),
    ],
)
def test_by_name(name: str, made: type) -> None:
    assert resolve("estimator", name) is made
    assert isinstance(made(), Estimator) and all(isinstance(need, Need) for need in made().requires)
