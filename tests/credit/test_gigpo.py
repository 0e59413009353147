"""What ``gigpo`` means: who is compared in which state, by values worked out by hand."""

from __future__ import annotations

import pytest
from episodes import chained, grouped, step, trajectory

from steprl.credit import Gigpo, check_group_size
from steprl.errors import ConfigError
from steprl.types import Need, Scores, Step, StepKey, StopReason, Trajectory


def to(anchor: str | None, reward: float = 0.0, **fields: object) -> Step:
    """A step that reaches a state."""
    return step([1], [2], anchor=anchor, reward=reward, **fields)


def played(uid: str, *steps: Step, group: str = "g", **fields: StopReason) -> Trajectory:
    return trajectory(uid, chained(*steps), group=group, **fields)


def credit(estimator: Gigpo, *members: Trajectory) -> dict[str, list[float]]:
    """The advantage of each step's one token, by trajectory."""
    found = estimator(grouped(*members), Scores()).advantages
    return {t.uid: [found[t.key(i)][0].item() for i in range(len(t.steps))] for t in members}


A = played("a", to("hall"), to("kitchen", 1.0))
B = played("b", to("hall"), to("cellar"))
C = played("c", to("cellar"), to("end", 0.5))


def test_a_step_is_compared_in_the_state_in_which_it_acted() -> None:
    # Episodes: 1, 0, ½ with mean ½. The first steps all act in the task itself: returns 1, 0, ½. The second
    # steps of a and b act in the hall: 1 and 0. That of c acts in the cellar, which b reached and left alone.
    assert credit(Gigpo(), A, B, C) == {"a": [1.0, 1.0], "b": [-1.0, -1.0], "c": [0.0, 0.0]}


def test_both_comparisons_divide_by_their_spread() -> None:
    found = credit(Gigpo(mode="mean_std_norm"), A, B, C)
    episode = 0.5 / (0.5 + 1e-6)
    assert found["a"] == pytest.approx([2 * episode, episode + 0.5 / (0.5**0.5 + 1e-6)], rel=1e-12)
    assert found["c"] == [0.0, 0.0]


def test_omega_weighs_the_steps_part_and_gamma_discounts_it() -> None:
    found = credit(Gigpo(omega=0.1, gamma=0.5), A, B, C)
    # the first steps' returns are ½, 0, ¼ with mean ¼
    assert found["a"] == pytest.approx([0.5 + 0.1 * 0.25, 0.5 + 0.1 * 0.5])
    assert found["b"] == pytest.approx([-0.5 - 0.1 * 0.25, -0.5 - 0.1 * 0.5])
    assert credit(Gigpo(omega=0.0), A, B, C)["a"] == [0.5, 0.5]


def test_a_state_needs_steps_of_two_trajectories() -> None:
    again = played("a", to("hall"), to("hall", 1.0), to("end", 2.0))  # returns in the hall: 3 and 2
    other = played("b", to("cellar", 3.0))
    assert credit(Gigpo(), again, other) == {"a": [0.0, 0.0, 0.0], "b": [0.0]}
    assert credit(Gigpo(min_trajectories=1), again, other) == {"a": [0.0, 0.5, -0.5], "b": [0.0]}


def test_states_of_different_groups_are_different() -> None:
    members = [A, B, played("c", to("hall"), to("end", 9.0), group="h"), played("d", to("x", 9.0), group="h")]
    assert {uid: credit(Gigpo(), *members)[uid] for uid in "ab"} == credit(Gigpo(), A, B)


def test_without_an_anchor_there_is_no_comparison() -> None:
    blind = [played("a", to(None), to(None, 1.0)), played("b", to(None), to(None))]
    # both first steps act in the task, the second ones nobody knows where
    assert credit(Gigpo(), *blind) == {"a": [1.0, 0.5], "b": [-1.0, -0.5]}


def test_a_summary_leaves_the_state_as_it_is_and_meets_summaries_only() -> None:
    a = played("a", to("hall"), to(None, kind="summary"), to("end", 1.0))
    b = played("b", to("hall"), to("end", 0.0))
    # the acts in the hall meet; the one summary there meets nobody
    assert credit(Gigpo(), a, b) == {"a": [1.0, 0.5, 1.0], "b": [-1.0, -1.0]}


def test_a_branch_acts_in_the_state_of_its_parent() -> None:
    forked = trajectory("a", [to("hall"), to("kitchen", parent=0), to("end", 1.0, parent=0)])
    # in the hall: 0 and 1 of a, 0 of b; the first steps: mean of its branches ½, and 0
    found = credit(Gigpo(), forked, B)
    assert found["a"] == pytest.approx([0.5 + 0.25, 0.5 - 1 / 3, 0.5 + 2 / 3])
    assert found["b"] == pytest.approx([-0.5 - 0.25, -0.5 - 1 / 3])


def test_another_agents_turn_changes_the_state() -> None:
    def pair(uid: str, middle: str, reward: float) -> Trajectory:
        turns = [to("x", agent="pro"), to(middle, agent="contra"), to("end", reward, agent="pro", parent=0)]
        return trajectory(uid, turns)

    apart = credit(Gigpo(), pair("a", "y", 1.0), pair("b", "z", 0.0))
    assert apart["a"] == [1.0, 0.5, 0.5]
    assert credit(Gigpo(), pair("a", "y", 1.0), pair("b", "y", 0.0))["a"] == [1.0, 0.5, 1.0]


def test_equal_returns_in_a_state_are_exactly_no_signal() -> None:
    for mode in ("mean_norm", "mean_std_norm"):
        members = [played(uid, to("hall", 0.1), to("end", 0.1 + 0.2 if uid == "a" else 0.3)) for uid in "abc"]
        assert set(sum(credit(Gigpo(mode=mode), *members).values(), [])) == {0.0}


def test_truncated_trajectories_can_train_without_being_compared() -> None:
    cut = played("cut", to("hall"), to("away", 3.0), stop_reason=StopReason.MAX_STEPS)
    found = credit(Gigpo(truncated_in_statistics=False), A, B, cut)
    assert {uid: found[uid] for uid in "ab"} == credit(Gigpo(), A, B)
    assert found["cut"] == [5.0, 5.0]
    out = Gigpo(truncated_in_loss=False)(grouped(A, B, cut), Scores())
    assert not out.loss_mask[StepKey("cut", 0)].any() and not out.advantages[StepKey("cut", 0)].any()


def test_needs_and_options() -> None:
    assert Gigpo().requires == {Need.GROUPS, Need.ANCHORS}
    check_group_size(Gigpo(min_trajectories=4), 4)
    with pytest.raises(ConfigError, match="group_size = 3.*at least 4"):
        check_group_size(Gigpo(min_trajectories=4), 3)
    with pytest.raises(ConfigError, match="'std_norm'.*Did you mean 'mean_std_norm'"):
        Gigpo(mode="std_norm")
    with pytest.raises(ConfigError, match="min_trajectories is 0"):
        Gigpo(min_trajectories=0)
    with pytest.raises(ConfigError, match="omega is inf"):
        Gigpo(omega=float("inf"))
