"""`steprl explain` on groups made by hand, where every number and every reason can be checked on paper."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from episodes import chained, grouped, rewarded, step, trajectory
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steprl.config import build
from steprl.errors import ConfigError
from steprl.trainers.explaining import facts
from steprl.trainers.explaining.apply import apply_all, column, default_words
from steprl.trainers.explaining.disagreement import disputed, pairs, rank_correlation, reasons, signs, spread
from steprl.trainers.explaining.explain import Explanation, explain
from steprl.trainers.explaining.facts import facts_of
from steprl.trainers.recipe import Recipe
from steprl.trajectory.store import file_path, write
from steprl.types import Credits, StepKey, StopReason, Trajectory, TrajectoryGroup


def walk(
    uid: str, anchors: Sequence[str], reward: float, *, group: str = "g", first: float = 0.0
) -> Trajectory:
    """A trajectory through these states: its last step has ``reward``, its first one ``first``."""
    rewards = [0.0] * (len(anchors) - 1) + [reward]
    rewards[0] += first
    made = [step([1], [2, 3], anchor=anchor, reward=r) for anchor, r in zip(anchors, rewards, strict=True)]
    return trajectory(uid, chained(*made), group=group)


def two_groups() -> list[TrajectoryGroup]:
    """``easy`` is solved by all, ``hard`` by one of two, both of whom pass through state "hall"."""
    return grouped(
        walk("e0", ["a", "b"], 1.0, group="easy"),
        walk("e1", ["c", "d"], 1.0, group="easy"),
        walk("h0", ["hall", "x"], 1.0, group="hard"),
        walk("h1", ["hall", "y"], 0.0, group="hard"),
    )


def kinds(groups: Sequence[TrajectoryGroup], uid: str, index: int) -> list[str]:
    return [fact.kind for fact in facts_of(groups)[StepKey(uid, index)].facts]


# --- estimators ---------------------------------------------------------------------------------------


def test_advantages_are_those_of_the_estimators_per_step() -> None:
    applied = apply_all(two_groups(), ["dr_grpo", "gigpo", "reinforce_pp:credit=step,whiten=false"])
    by_name = {c.name: dict(zip(applied.keys, c.advantages.tolist(), strict=True)) for c in applied.columns}
    h0, h1 = StepKey("h0", 1), StepKey("h1", 1)
    assert (by_name["dr_grpo"][h0], by_name["dr_grpo"][h1]) == (0.5, -0.5)
    assert (by_name["gigpo"][h0], by_name["gigpo"][h1]) == (1.0, -1.0)  # once as episodes, once in "hall"
    assert by_name["reinforce_pp:credit=step,whiten=false"][StepKey("e0", 0)] == 1.0
    dr_grpo = applied.columns[0]
    assert dr_grpo.scale == pytest.approx(math.sqrt(4 * 0.25 / 8))
    assert dr_grpo.scaled[4] == pytest.approx(math.sqrt(2))


def test_what_cannot_work_without_more_is_named_with_the_reason() -> None:
    applied = apply_all(
        two_groups(), [*default_words(), "rloo:kl_beta=0.1", "gae:credit=step,values=rollout"]
    )
    assert {"grpo", "dr_grpo", "rloo", "gigpo", "reinforce_pp", "reinforce_pp:credit=step"} < {
        c.name for c in applied.columns
    }
    assert "critic" in applied.refused["gae"]
    assert "reference" in applied.refused["rloo:kl_beta=0.1"]
    assert "snapshots" in applied.refused["gae:credit=step,values=rollout"]
    alone = apply_all(grouped(rewarded("a", 1.0)), ["grpo", "gigpo", "reinforce_pp"])
    assert "too few in every group" in alone.refused["grpo"]
    assert "no step has an anchor" in alone.refused["gigpo"]
    assert [c.name for c in alone.columns] == ["reinforce_pp"]


def test_credit_is_what_the_run_gave() -> None:
    """A group that was too small there has none, and whitening does not see it; nor have summaries."""
    alone = trajectory("alone", chained(step([1], [2], reward=10.0)), group="h")
    broken = trajectory("broken", (), group="h", stop_reason=StopReason.DEADLINE)
    noted = chained(step([1], [2], reward=0.0, kind="summary"), step([1], [2], reward=1.0))
    groups = grouped(trajectory("good", noted), trajectory("bad", chained(step([1], [2]))), alone, broken)
    recipe = build(
        Recipe,
        {
            "model": {"path": "x"},
            "env": {"id": "courier", "train": "train"},
            "rollout": {"failures": {"minimum_group": 2}},
            "algorithm": {"summaries": 0.0},
        },
    )
    applied = apply_all(groups, ["reinforce_pp:credit=step"], recipe)
    found = dict(zip(applied.keys, applied.columns[0].advantages.tolist(), strict=True))
    # returns 1, 1 and 0: mean 2/3, standard deviation 1/√3
    assert found[StepKey("good", 1)] == pytest.approx(1 / 3 * 3**0.5)
    assert found[StepKey("bad", 0)] == pytest.approx(-2 / 3 * 3**0.5)
    assert math.isnan(found[StepKey("good", 0)]) and math.isnan(found[StepKey("alone", 0)])
    everything = apply_all(groups, ["reinforce_pp:credit=step"])
    assert not np.isnan(everything.columns[0].advantages).any()


def test_an_estimator_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'grpo'"):
        apply_all(two_groups(), ["grppo"])
    with pytest.raises(ConfigError, match="'grpo' does not take these options"):
        apply_all(two_groups(), ["grpo:omega=1"])


def test_only_trained_tokens_of_a_step_count() -> None:
    key, other = StepKey("a", 0), StepKey("a", 1)
    credits = Credits(
        advantages={key: np.array([1.0, 9.0, 2.0]), other: np.array([5.0])},
        loss_mask={key: np.array([True, False, True]), other: np.array([False])},
    )
    found = column("mine", [key, other], credits)
    assert found.advantages[0] == 1.5 and math.isnan(found.advantages[1])
    assert found.scale == 1.5 and found.scaled[0] == 1.0
    assert signs(found)[0] == 1.0 and math.isnan(signs(found)[1])


# --- disagreement -------------------------------------------------------------------------------------


def test_pairs_by_hand() -> None:
    applied = apply_all(two_groups(), ["dr_grpo", "reinforce_pp:credit=step", "rloo"])
    first, second, third = pairs(applied.columns)
    # all 4 steps of "easy" are 0 within the group and above the mean of the batch
    assert (first.steps, first.opposite, first.silent) == (8, 0, 4)
    assert {first.one, first.other, second.one, second.other} == {
        "dr_grpo",
        "reinforce_pp:credit=step",
        "rloo",
    }
    assert ({third.one, third.other}, third.silent) == ({"dr_grpo", "rloo"}, 0)
    assert third.rank_correlation == pytest.approx(1.0)
    assert disputed(applied.columns).tolist() == [True] * 4 + [False] * 4
    assert (spread(applied.columns) > 0).all()


def test_opposite_signs_come_first_and_have_their_reason() -> None:
    """Two thirds of the batch succeed, so a reward of 0.5 is good in its group and bad in the batch."""
    groups = grouped(
        rewarded("a", 0.5, group="hard"),
        rewarded("b", 0.0, group="hard"),
        *(rewarded(f"c{i}", 1.0 - 0.1 * i, group="easy") for i in range(4)),
    )
    applied = apply_all(groups, ["grpo", "reinforce_pp"])
    (pair,) = pairs(applied.columns)
    assert pair.opposite >= 1
    in_dispute = disputed(applied.columns)
    assert in_dispute[0]
    (reason, *_) = reasons(applied.keys, in_dispute, facts_of(groups))
    assert (reason.kind, reason.example) == (facts.BETWEEN, StepKey("a", 0))
    assert reason.told == (
        "its reward 0.5 is above its group's mean 0.25 and below the mean over the batch's tokens, 0.65"
    )


def test_a_dispute_without_a_reason_is_counted_as_such() -> None:
    """An estimator of somebody's own may say anything of a step that is like all others."""
    groups = grouped(rewarded("a", 1.0), rewarded("b", 0.0))
    found = facts_of(groups)
    plain = {key: replace(facts_, facts=[]) for key, facts_ in found.items()}
    (reason,) = reasons(list(found), np.array([True, False]), plain)
    assert (reason.kind, reason.steps, reason.example) == ("no reason in the record", 1, StepKey("a", 0))


finite = st.floats(-1e3, 1e3).map(lambda x: round(x, 2))
numbers = hnp.arrays(np.float64, st.integers(2, 12), elements=finite)


@given(numbers)
def test_rank_correlation_sees_order_alone(x_n: np.ndarray) -> None:
    found = rank_correlation(x_n, x_n)
    if np.ptp(x_n) == 0:
        assert found is None
    else:
        assert found == pytest.approx(1.0)
        assert rank_correlation(x_n, -x_n) == pytest.approx(-1.0)
        assert rank_correlation(x_n, np.cbrt(x_n)) == pytest.approx(1.0)


def test_rank_correlation_with_ties_by_hand() -> None:
    # ranks 1.5 1.5 3 against 1 2 3
    found = rank_correlation(np.array([0.0, 0.0, 5.0]), np.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx(1.5 / math.sqrt(1.5 * 2))


# --- reasons ------------------------------------------------------------------------------------------


def test_equal_rewards_are_a_reason_of_the_whole_group() -> None:
    groups = two_groups()
    assert facts.EQUAL in kinds(groups, "e0", 0) and facts.EQUAL in kinds(groups, "e1", 1)
    assert facts.EQUAL not in kinds(groups, "h0", 0)
    told = facts_of(groups)[StepKey("e0", 1)].facts[0].told
    assert told.startswith("all 2 trajectories of its group have the reward 1") and told.endswith(
        "mean over the batch's tokens is 0.75"
    )


def test_a_state_is_shared_with_others_whose_returns_differ() -> None:
    found = facts_of(two_groups())
    second = found[StepKey("h0", 1)]  # acted in "hall", as h1 did
    assert (second.same_state, second.same_state_trajectories) == (1, 1)
    (shared,) = [fact for fact in second.facts if fact.kind == facts.SHARED]
    assert shared.told.startswith("1 step of 1 other trajectory acted in the same state and went on to 0")
    easy = found[StepKey("e0", 1)]
    assert (easy.same_state, facts.SHARED in kinds(two_groups(), "e0", 1)) == (0, False)
    # the first step acts in the task itself, which all share; in "easy" their returns are equal
    assert found[StepKey("e0", 0)].same_state == 1
    assert facts.SHARED not in kinds(two_groups(), "e0", 0)


def test_an_early_step_gets_the_outcome_and_a_late_one_not_what_came_before() -> None:
    groups = grouped(walk("a", ["x", "y", "z"], 1.0, first=0.5), walk("b", ["x", "y"], 0.0))
    found = facts_of(groups)
    assert [found[StepKey("a", i)].return_to_go for i in range(3)] == [1.5, 1.0, 1.0]
    assert facts.OUTCOME in kinds(groups, "a", 1) and facts.EARLIER in kinds(groups, "a", 1)
    assert facts.EARLIER not in kinds(groups, "a", 0) and facts.OUTCOME not in kinds(groups, "a", 2)


def test_limits_errors_and_missing_rewards_are_told() -> None:
    groups = grouped(
        rewarded("cut", 0.0, stop_reason=StopReason.MAX_STEPS),
        rewarded("late", 0.0, stop_reason=StopReason.DEADLINE),
        rewarded("unscored", None),
        rewarded("done", 1.0),
    )
    assert kinds(groups, "cut", 0) == [facts.TRUNCATED, facts.SHARED]  # in the task as it begins, as "done"
    assert kinds(groups, "late", 0) == kinds(groups, "unscored", 0) == [facts.LEFT_OUT]
    assert facts_of(groups)[StepKey("unscored", 0)].return_to_go is None
    lonely = grouped(rewarded("a", 1.0), rewarded("b", 0.0, stop_reason=StopReason.DEADLINE))
    assert facts.ALONE in kinds(lonely, "a", 0)


def test_facts_agree_with_what_gigpo_does() -> None:
    """Without a shared state and other returns in it, the step's part of GiGPO is 0, and only then."""
    groups = two_groups()
    steps, none = apply_all(groups, ["gigpo", "gigpo:omega=0.0"]).columns
    for key, with_steps, without in zip(
        [t.key(i) for g in groups for t in g.trajectories for i in range(2)],
        steps.advantages.tolist(),
        none.advantages.tolist(),
        strict=True,
    ):
        shared = facts.SHARED in kinds(groups, key.trajectory, key.step)
        assert shared == (with_steps != without)


# --- reading ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with two training batches and an evaluation, and nothing else."""
    write(
        file_path(tmp_path, iteration=1), grouped(rewarded("old", 1.0), rewarded("older", 0.0)), iteration=1
    )
    write(file_path(tmp_path, iteration=2), two_groups(), iteration=2)
    evaluation = file_path(tmp_path, iteration=2, split="eval")
    write(evaluation, grouped(rewarded("evaluated", 1.0)), iteration=2, split="eval")
    (tmp_path / "config.toml").write_text(
        '[env]\nid = "courier"\n[algorithm]\nestimator = "gigpo"\nargs = {omega = 0.5}\n'
    )
    return tmp_path


def names(found: Explanation) -> list[str]:
    return [c.name for c in found.applied.columns]


def test_a_run_is_explained_with_its_own_estimator_first(folder: Path) -> None:
    found = explain(folder)
    assert found.source.name == "000002-train.parquet"
    assert names(found)[0] == "gigpo:omega=0.5" and "gigpo" in names(found)
    assert found.episode.uid in {"e0", "e1"}  # in dispute, since only the batch tells them from others
    assert [(reason.kind, reason.steps) for reason in found.reasons][0] == (facts.EQUAL, 4)


def test_an_iteration_or_an_episode_is_found(folder: Path) -> None:
    assert explain(folder, iteration=1, estimators=["rloo"]).groups[0].trajectories[0].uid == "old"
    found = explain(folder, episode="older", estimators=["rloo", "grpo"])
    assert (found.source.name, found.episode.uid) == ("000001-train.parquet", "older")
    file = explain(file_path(folder, iteration=1))
    assert names(file) == [word for word in default_words() if word not in file.applied.refused]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iteration": 9}, "holds no training episodes of iteration 9"),
        ({"episode": "olden"}, "unknown training episode 'olden'. Did you mean 'older'"),
        ({"estimators": ["gae"]}, "no estimator can work with .* gae: it needs a critic"),
    ],
)
def test_what_cannot_be_explained_is_refused(folder: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain(folder, **options)


def test_a_file_is_one_batch(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is one batch"):
        explain(file_path(folder, iteration=1), iteration=1)


def test_the_command_needs_no_torch(folder: Path) -> None:
    """In a process of its own: what it has imported when it is done."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('heavy:', *{'torch', 'transformers'} & set(sys.modules)))\n"
        f"sys.argv = ['steprl', 'explain', {str(folder)!r}]\n"
        "from steprl.cli import main\nmain()"
    )
    environment = {**os.environ, "COLUMNS": "160"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].strip() == "heavy:"
    assert "4 of 8 steps are in dispute" in ended.stdout and "gae is left out" in ended.stdout
