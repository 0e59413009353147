"""Filters on episodes written by hand: what each keeps, and what becomes of a group that it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from episodes import chained, grouped, rewarded, step, trajectory
from hypothesis import given
from hypothesis import strategies as st

from steprl.config import build
from steprl.credit import Grpo, ReinforcePp, scored
from steprl.errors import ConfigError
from steprl.trainers.crediting import credits_of, kept_groups
from steprl.trainers.filtering.base import TrajectoryFilter
from steprl.trainers.filtering.choose import TOO_FEW, Chosen, Filters, choose, filters_of
from steprl.trainers.filtering.filters import (
    Informative,
    Length,
    NoRepeats,
    ToolCalls,
    UsefulCalls,
)
from steprl.trainers.recipe import Recipe
from steprl.types import (
    MalformedCall,
    Message,
    Scores,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
)


class Rich(TrajectoryFilter):
    """Keeps trajectories with a reward of at least ``least``."""

    def __init__(self, least: float = 1.0) -> None:
        self.least = least

    def keeps(self, trajectory: Trajectory) -> bool:
        return trajectory.reward is not None and trajectory.reward >= self.least


class Silent(TrajectoryFilter):
    """Forgets to answer."""

    def keeps(self, trajectory: Trajectory) -> bool:
        pass  # type: ignore[return]


RICH = {"test_filters:Rich": True}


def recipe(keep: dict[str, Any], **options: Any) -> Recipe:
    table: dict[str, Any] = {"env": {"id": "courier"}, "filter": {"keep": keep}}
    for name, value in options.items():
        section, _, option = name.partition("__")
        table.setdefault(section, {})[option] = value
    return build(Recipe, table)


def chosen(groups: Sequence[TrajectoryGroup], keep: dict[str, Any], **options: Any) -> Chosen:
    made = recipe(keep, **options)
    return choose(made, filters_of(made), Grpo(), groups)


def uids(groups: Sequence[TrajectoryGroup]) -> list[list[str]]:
    return [[t.uid for t in group.trajectories] for group in groups]


def refused(keep: dict[str, Any], **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        filters_of(recipe(keep, **options))
    return str(caught.value)


def solved(uid: str, outcome: float | None, reward: float, *, group: str = "g") -> Trajectory:
    rewards = {} if outcome is None else {"outcome": outcome}
    return trajectory(uid, [step([1], [2], reward=reward, rewards=rewards)], group=group)


# --- groups -------------------------------------------------------------------------------------------


def test_a_group_without_a_difference_in_reward_is_dropped() -> None:
    (flat,) = grouped(rewarded("a", 1.0), rewarded("b", 1.0))
    (mixed,) = grouped(rewarded("a", 1.0), rewarded("b", 0.0))
    (residue,) = grouped(rewarded("a", 0.1 + 0.2), rewarded("b", 0.3))
    assert not Informative().keeps(flat) and Informative().keeps(mixed) and not Informative().keeps(residue)


def test_by_success_a_difference_on_the_way_is_none() -> None:
    (shaped,) = grouped(solved("a", 0.0, 0.1), solved("b", 0.0, 0.3))
    (some,) = grouped(solved("a", 1.0, 0.5), solved("b", None, 0.5))  # b came to no outcome: not solved
    (every,) = grouped(solved("a", 1.0, 1.0), solved("b", 1.0, 0.9))
    by_success = Informative(by="success")
    assert Informative().keeps(shaped) and not by_success.keeps(shaped)
    assert by_success.keeps(some) and not by_success.keeps(every)


def test_what_cannot_be_compared_is_no_difference() -> None:
    late = rewarded("late", 0.0, stop_reason=StopReason.DEADLINE)
    (group,) = grouped(rewarded("a", 1.0), late, rewarded("unscored", None))
    assert not Informative().keeps(group)


# --- on the way ---------------------------------------------------------------------------------------


def called(*calls: str, answers: Sequence[str] = (), **fields: Any) -> Step:
    """A step with these calls: ``name:argument``, or ``!`` for one that is malformed; and their answers."""
    made: list[ToolCall | MalformedCall] = []
    feedback = []
    for n, call in enumerate(calls):
        name, _, argument = call.partition(":")
        bad = name == "!"
        made.append(
            MalformedCall(raw=argument, reason="?")
            if bad
            else ToolCall(name=name, arguments={"x": argument}, id=f"c{n}")
        )
        content = answers[n] if n < len(answers) else "fine"
        feedback.append(
            Message(role="tool", content="Error: malformed")
            if bad
            else Message(role="tool", content=content, name=name, tool_call_id=f"c{n}")
        )
    return step([1], [2], calls=tuple(made), feedback=tuple(feedback), **fields)


def test_useful_calls_are_neither_malformed_nor_refused() -> None:
    one = trajectory("a", chained(called("look:1", "look:2"), called("!", "look", answers=("", "Error: no"))))
    assert UsefulCalls(0.5).keeps(one) and not UsefulCalls(0.51).keeps(one)
    assert UsefulCalls(1.0).keeps(rewarded("b", 1.0)), "without a call there is no share"
    assert UsefulCalls(0.0).keeps(trajectory("c", [called("!")]))
    quoted = trajectory("d", [called("look", answers=("it says Error: 7",))])
    assert UsefulCalls(1.0).keeps(quoted)


def test_tool_calls_are_counted_over_the_episode_and_malformed_ones_are_none() -> None:
    three = trajectory("a", chained(called("look:1", "look:2"), called("!", "look:3")))
    assert ToolCalls(least=3, most=3).keeps(three)
    assert not ToolCalls(least=4).keeps(three) and not ToolCalls(most=2).keeps(three)


def test_the_same_calls_again_are_a_repetition_where_no_state_is_known() -> None:
    twice = trajectory("a", chained(called("look:1"), called("look:1")))
    between = trajectory("b", chained(called("look:1"), called("look:2"), called("look:1")))
    assert not NoRepeats().keeps(twice) and NoRepeats(most=1).keeps(twice)
    assert NoRepeats().keeps(between)


def test_where_states_are_known_the_same_action_in_another_state_is_none() -> None:
    """Going north twice leads further; doing it where it was done before is a loop, however long."""
    north = trajectory("a", chained(called("go:north", anchor="hall"), called("go:north", anchor="attic")))
    assert NoRepeats().keeps(north)
    loop = chained(
        called("look", anchor="hall"),  # in the beginning
        called("go:north", anchor="attic"),  # in the hall
        called("go:south", anchor="hall"),  # in the attic
        called("go:north", anchor="attic"),  # in the hall again
    )
    assert not NoRepeats().keeps(trajectory("b", loop)) and NoRepeats().keeps(trajectory("b", loop[:3]))


def test_agents_do_not_repeat_each_other_and_summaries_are_no_actions() -> None:
    pro = called("look", agent="pro")
    contra = called("look", agent="contra")
    noted = step([1], [2], kind="summary")
    assert NoRepeats().keeps(trajectory("a", [pro, contra, noted, noted]))
    assert not NoRepeats().keeps(trajectory("a", [pro, contra, replace(pro, parent=0)]))


def test_without_calls_the_same_tokens_are_the_same_action() -> None:
    same = trajectory("a", chained(step([1], [5]), step([1], [5])))
    other = trajectory("b", chained(step([1], [5]), step([1], [6])))
    assert not NoRepeats().keeps(same) and NoRepeats().keeps(other)


def test_length_is_in_actions_and_sampled_tokens() -> None:
    noted = step([1], [2, 3], kind="summary")
    made = trajectory("a", chained(step([1], [2, 3], sampled=[True, False]), noted, step([1], [4])))
    assert Length(most_steps=2).keeps(made) and not Length(most_steps=1).keeps(made)
    assert Length(most_tokens=4).keeps(made) and not Length(most_tokens=3).keeps(made)
    assert not Length(most_steps=2, most_tokens=3).keeps(made)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"useful_calls": True}, "filter 'useful_calls' does not take these options"),
        ({"useful_calls": {"least": 2}}, "a filter's least is 2; it must be a share from 0 to 1"),
        ({"tool_calls": True}, "the filter 'tool_calls' keeps all: give it least, most, or both"),
        ({"tool_calls": {"least": 3, "most": 2}}, "keeps none: most = 2 is below least = 3"),
        ({"tool_calls": {"least": 1.5}}, "a filter's least is 1.5; it must be a whole number, 0 or more"),
        ({"no_repeats": {"most": -1}}, "a filter's most is -1; it must be a whole number, 0 or more"),
        ({"length": True}, "the filter 'length' keeps all"),
        ({"length": {"most_steps": 0}}, "a filter's most_steps is 0; it must be a whole number, 1 or more"),
        ({"informative": {"by": "sucess"}}, "unknown by of the filter 'informative': 'sucess'. Did you mean"),
        ({"informativ": True}, "unknown filter 'informativ'. Did you mean 'informative'?"),
        (
            {"informative": {}},
            "filter.keep.informative has no options: write true (or false to leave it out)",
        ),
        ({"test_filters:recipe": {"keep": {}}}, "a filter is derived from TrajectoryFilter or GroupFilter"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(keep: dict[str, Any], message: str) -> None:
    assert message in refused(keep)


def test_a_group_of_one_has_no_difference_and_is_refused_at_once() -> None:
    message = refused({"informative": True}, rollout__group_size=1)
    assert "needs 2 trajectories or more; rollout.group_size = 1. Raise it" in message


def test_in_statistics_is_for_trajectories_that_are_taken_out() -> None:
    assert "informative drops groups" in refused({"informative": True}, filter__in_statistics=True)
    assert "has no effect without a filter" in refused({}, filter__in_statistics=True)
    assert "filter.max_rounds must be 0 (none) or above, got -1" in refused({}, filter__max_rounds=-1)


def test_a_filter_can_be_switched_off_where_it_is_named() -> None:
    found = filters_of(recipe({"informative": False, "no_repeats": True, "tool_calls": {"least": 1}}))
    assert [*found.of_trajectories, *found.of_groups] == ["no_repeats", "tool_calls"]
    assert not filters_of(recipe({"informative": False}))


def test_a_filter_that_gives_no_answer_is_a_mistake_and_drops_nothing() -> None:
    with pytest.raises(ConfigError, match=r"'test_filters:Silent' answered None: its keeps"):
        chosen(grouped(rewarded("a", 1.0), rewarded("b", 0.0)), {"test_filters:Silent": True})


# --- what becomes of a group --------------------------------------------------------------------------


def test_a_trajectory_that_is_taken_out_is_in_no_comparison() -> None:
    groups = grouped(rewarded("a", 3.0), rewarded("b", 1.0), rewarded("c", 0.0))
    found = chosen(groups, RICH)
    assert uids(found.groups) == [["a", "b"]] and found.untrained == frozenset()
    assert found.left_out == {"c": "the filter 'test_filters:Rich' took its episode out"}
    credits = credits_of(recipe(RICH), Grpo(), found.groups, Scores(), untrained=found.untrained)
    advantages = {key.trajectory: float(a[0]) for key, a in credits.advantages.items()}
    assert advantages["a"] == pytest.approx(2**-0.5) and advantages["a"] == -advantages["b"]


def test_in_statistics_it_is_compared_and_not_trained_on() -> None:
    groups = grouped(rewarded("a", 3.0), rewarded("b", 1.5), rewarded("c", 0.0))
    found = chosen(groups, {"test_filters:Rich": {"least": 2.0}}, filter__in_statistics=True)
    assert uids(found.groups) == [["a", "b", "c"]] and found.untrained == {"b", "c"}
    credits = credits_of(recipe({}), Grpo(), found.groups, Scores(), untrained=found.untrained)
    trained = {key.trajectory: bool(mask.any()) for key, mask in credits.loss_mask.items()}
    assert trained == {"a": True, "b": False, "c": False}
    (advantage,) = {a[0] for key, a in credits.advantages.items() if key.trajectory == "a"}
    assert advantage == pytest.approx(1.0)  # 1.5 above the mean of all three, by their spread


def test_an_estimator_that_compares_never_gets_a_group_of_one() -> None:
    groups = grouped(rewarded("a", 3.0), rewarded("b", 0.0), rewarded("c", 0.0))
    found = chosen(groups, RICH)
    assert (
        found.groups == [] and found.dropped == {TOO_FEW: 1} and found.taken_out == {"test_filters:Rich": 2}
    )
    assert found.left_out["a"] == "too few are left in its group"
    made = recipe(RICH)
    alone = choose(made, filters_of(made), ReinforcePp(), groups)
    assert uids(alone.groups) == [["a"]], "one that compares no groups trains on it"
    three = recipe(RICH, rollout__failures={"minimum_group": 3})
    assert choose(three, filters_of(three), ReinforcePp(), groups).groups == []


def test_in_statistics_a_group_with_nothing_to_train_on_is_dropped() -> None:
    groups = grouped(rewarded("a", 0.5), rewarded("b", 0.0))
    assert chosen(groups, RICH, filter__in_statistics=True).dropped == {TOO_FEW: 1}


def test_groups_are_looked_at_as_they_will_be_compared() -> None:
    """Only what is left differs, or does not; in statistics, the whole group does."""
    groups = grouped(rewarded("a", 1.0), rewarded("b", 1.0), rewarded("c", 0.0))
    both = {"informative": True, **RICH}
    assert chosen(groups, both).dropped == {"informative": 1, TOO_FEW: 0}
    found = chosen(groups, both, filter__in_statistics=True)
    assert uids(found.groups) == [["a", "b", "c"]] and found.untrained == {"c"}


def test_what_broke_stays_where_it_is_and_is_no_filters_doing() -> None:
    broken = rewarded("broken", None, stop_reason=StopReason.ERROR)
    found = chosen(grouped(rewarded("a", 2.0), broken, rewarded("b", 1.0)), RICH)
    assert uids(found.groups) == [["a", "broken", "b"]] and found.left_out == {}


def test_the_figures_add_up() -> None:
    groups = grouped(
        *(rewarded(f"flat{n}", 1.0, group="flat") for n in range(2)),
        *(rewarded(f"poor{n}", 0.0, group="poor") for n in range(2)),
        *(rewarded(f"good{n}", 1.0 + n, group="good") for n in range(2)),
    )
    found = chosen(groups, {**RICH, "informative": True})
    assert found.metrics(wanted=2) == {
        "filter/kept_groups": 1,
        "filter/kept_share": pytest.approx(1 / 3),
        "filter/missing_share": 0.5,
        "filter/zero_variance_share": 0,
        "filter/test_filters:Rich/trajectories": 2,
        "filter/informative/groups": 1,
        "filter/too_few/groups": 1,
    }
    assert found.told() == (
        "test_filters:Rich took out 2 trajectories, informative dropped 1 of 3 groups, "
        "too few were left in 1 of 3 groups"
    )
    assert Chosen(groups=groups, played=3).metrics(wanted=3) == {}
    assert Chosen(groups=groups, played=3).told() == ""


REWARDS = st.lists(
    st.lists(st.sampled_from([None, 0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=4), min_size=1, max_size=5
)


@given(rewards=REWARDS, in_statistics=st.booleans(), informative=st.booleans())
def test_nothing_is_lost_doubled_or_left_alone(
    rewards: list[list[float | None]], in_statistics: bool, informative: bool
) -> None:
    groups = grouped(
        *(rewarded(f"{g}.{n}", r, group=f"{g}") for g, of in enumerate(rewards) for n, r in enumerate(of))
    )
    keep: dict[str, Any] = {**RICH, "informative": informative}
    found = chosen(groups, keep, filter__in_statistics=in_statistics)
    kept = {t.uid for group in found.groups for t in group.trajectories}
    every = [t for group in groups for t in group.trajectories]
    trained = {t.uid for t in every if scored(t) and t.uid in kept - found.untrained}
    # each scored trajectory either trains or has a reason not to
    assert trained | {t.uid for t in every if t.uid in found.left_out and scored(t)} == {
        t.uid for t in every if scored(t)
    }
    assert not trained & found.left_out.keys()
    assert [g.group_uid for g in found.groups] == [
        g.group_uid for g in groups if g.group_uid in {k.group_uid for k in found.groups}
    ]
    assert len(found.groups) + sum(found.dropped.values()) == len(groups)
    for group in found.groups:
        assert sum(scored(t) for t in group.trajectories) >= 2
        assert any(t.uid in trained for t in group.trajectories)


@given(rewards=REWARDS)
def test_without_filters_a_batch_is_what_it_was(rewards: list[list[float | None]]) -> None:
    groups = grouped(
        *(rewarded(f"{g}.{n}", r, group=f"{g}") for g, of in enumerate(rewards) for n, r in enumerate(of))
    )
    made = recipe({})
    found = choose(made, Filters(of_trajectories={}, of_groups={}), Grpo(), groups)
    assert uids(found.groups) == uids(kept_groups(made, groups)) and not found.filtered
