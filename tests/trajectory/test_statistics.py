"""Every figure of a batch small enough to count by hand, and the rules behind the figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.trajectory import batch_statistics, success, unique_tokens
from steprl.types import (
    EpisodeError,
    MalformedCall,
    Sampling,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
)

GOOD = ToolCall(name="f", arguments={}, id="1")
BAD = MalformedCall(raw="{", reason="not JSON")


def step(prompt: list[int], action: list[int], *, added: int = 0, **fields: object) -> Step:
    """A step whose last ``added`` action tokens were not sampled; its reward is the sum of ``rewards``."""
    fields.setdefault("reward", sum(fields.get("rewards", {}).values()))
    return Step(
        prompt_ids=prompt,
        action_ids=action,
        sampled_mask=[True] * (len(action) - added) + [False] * added,
        logprobs=None,
        policy_versions=[0] * len(action),
        sampling=Sampling(),
        **fields,
    )


def trajectory(uid: str, *steps: Step, group: str = "g", **fields: object) -> Trajectory:
    fields.setdefault("stop_reason", StopReason.TERMINATED)
    return Trajectory(uid=uid, group_uid=group, task_id=group, task_hash="", seed=0, steps=steps, **fields)


def group(*members: Trajectory, uid: str = "g") -> TrajectoryGroup:
    return TrajectoryGroup(group_uid=uid, task_id=uid, trajectories=members)


def test_every_figure_of_a_batch_counted_by_hand() -> None:
    solved = trajectory(
        "solved",
        step([1, 2], [3, 4], calls=(GOOD, BAD)),
        step([1, 2, 3, 4, 5], [6, 7], added=1, rewards={"outcome": 1.0, "format": 0.5}, parent=0),
        metrics={"env_s": 2.0},
    )
    cut = trajectory(
        "cut",
        step([1, 2], [3, 9, 9, 9], finish="length"),
        stop_reason=StopReason.MAX_STEPS,
        metrics={"env_s": 4.0},
    )
    late = trajectory("late", step([8], [8], rewards={"outcome": 1.0}), stop_reason=StopReason.DEADLINE)
    broken = trajectory(
        "broken",
        group="h",
        stop_reason=StopReason.ERROR,
        error=EpisodeError(kind="EnvError", message="down"),
    )
    found = batch_statistics([group(solved, cut, late), group(broken, uid="h")])
    assert found == {
        "batch/trajectories": 4,
        "batch/counted": 2,
        "reward/unscored": 0,
        "reward/mean": 0.75,  # 1.5 and 0
        "reward/success_share": 0.5,
        "reward/component/outcome": 0.5,
        "reward/component/format": 0.25,
        "episode/steps": 1.5,
        "episode/steps_max": 2,
        "episode/prompt_tokens": 4.5,  # 2 + 5, 2
        "episode/action_tokens": 3.5,  # 2 + 1 and 4
        "episode/env_s": 3.0,
        "step/action_tokens": 2.75,  # 1.5 and 4
        "step/prompt_tokens": 2.75,  # 3.5 and 2
        "step/prompt_tokens_max": 5,
        "step/length_share": 0.5,  # 0 and 1
        "calls/per_episode": 1.0,
        "calls/malformed_share": 0.5,
        "calls/none_share": 0.5,
        "calls/repeated_share": 0.0,  # only "solved" has a second action
        "stop/terminated": 0.25,
        "stop/max_steps": 0.25,
        "stop/context_full": 0.0,
        "stop/deadline": 0.25,
        "stop/aborted": 0.0,
        "stop/error": 0.25,
        "stop/truncated_share": 0.5,
        "groups/count": 2,
        "groups/zero_variance_share": 0.0,
        "errors/total": 1,
        "errors/by_agent": 0,
        "errors/EnvError": 1,
        "tokens/total": 17,  # 1 2 3 4, 1 2 3 4 5 6 7, 1 2 3 9 9 9
        "tokens/unique": 10,
        "tokens/unique_share": 10 / 17,
    }


def test_a_long_episode_has_one_vote() -> None:
    long = trajectory("long", *(step([1], [2], rewards={"outcome": 0.0}) for _ in range(9)))
    short = trajectory("short", step([1], [2, 3, 4], rewards={"outcome": 1.0}))
    found = batch_statistics([group(long, short)])
    assert found["reward/mean"] == 0.5
    assert found["reward/success_share"] == 0.5
    assert found["step/action_tokens"] == 2.0


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], None),
        ([0.0], False),
        ([1.0], True),
        ([0.1] * 10, True),
        ([0.5, 0.4], False),
        ([2.0, -1.5], False),
    ],
)
def test_success_is_an_outcome_of_one_or_more_in_sum(outcomes: list[float], expected: bool | None) -> None:
    steps = [
        step([1], [2], rewards={"format": 5.0}),
        *(step([1], [2], rewards={"outcome": o}) for o in outcomes),
    ]
    assert success(trajectory("a", *steps)) is expected


def test_no_outcome_component_means_no_success_share() -> None:
    assert "reward/success_share" not in batch_statistics(
        [group(trajectory("a", step([1], [2], rewards={"x": 1.0})))]
    )


def test_a_trajectory_that_could_not_be_scored_is_no_failure() -> None:
    scored = trajectory("a", step([1], [2], rewards={"outcome": 1.0}))
    unscored = trajectory("b", step([1], [2], reward=None))
    found = batch_statistics([group(scored, unscored)])
    assert found["reward/mean"] == 1.0
    assert found["reward/success_share"] == 1.0
    assert found["reward/unscored"] == 1
    assert "groups/zero_variance_share" not in found  # one score has no variance to speak of


def test_zero_variance_is_equality_of_rewards() -> None:
    def pair(uid: str, *rewards: float) -> TrajectoryGroup:
        members = [
            trajectory(f"{uid}{i}", step([1], [2], reward=reward), group=uid)
            for i, reward in enumerate(rewards)
        ]
        return group(*members, uid=uid)

    found = batch_statistics(
        [pair("a", 0.1, 0.1), pair("b", 0.1, 0.1 + 1e-12), pair("c", 1.0), pair("d", 1, 0)]
    )
    assert found["groups/zero_variance_share"] == pytest.approx(1 / 3)


def test_an_empty_batch_has_counts_and_no_shares() -> None:
    assert batch_statistics([]) == {
        "batch/trajectories": 0,
        "batch/counted": 0,
        "reward/unscored": 0,
        "groups/count": 0,
        "errors/total": 0,
        "errors/by_agent": 0,
        "tokens/total": 0,
        "tokens/unique": 0,
    }


def test_an_episode_without_steps_counts_where_it_can() -> None:
    found = batch_statistics([group(trajectory("a"), trajectory("b", step([1, 2], [3])))])
    assert found["episode/steps"] == 0.5
    assert found["step/prompt_tokens"] == 2.0
    assert found["step/prompt_tokens_max"] == 2


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8))
def test_unique_tokens_are_the_nodes_of_the_trie(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    assert unique_tokens([step(row[:1], row[1:]) for row in rows]) == len(prefixes)


def test_unique_tokens_do_not_depend_on_how_ids_are_stored() -> None:
    ids = [1, 256, 65_536, 2**31 - 1]  # one byte each in another place
    rows = [[a, b] for a in ids for b in ids]
    order = np.random.default_rng(0).permutation(len(rows))
    assert unique_tokens([step([rows[i][0]], [rows[i][1]]) for i in order]) == 4 + 16


def test_float_residue_does_not_make_rewards_differ() -> None:
    a = trajectory("a", step([1], [2], rewards={"outcome": -0.3}))
    b = trajectory("b", step([1], [2], rewards={"outcome": -0.1 - 0.2}))
    group = TrajectoryGroup(group_uid="g", task_id="t", trajectories=(a, b))
    assert a.reward != b.reward
    assert batch_statistics([group])["groups/zero_variance_share"] == 1.0


def test_an_error_counts_whatever_the_stop_reason_and_the_agents_own_train() -> None:
    def broken(uid: str, kind: str, reason: StopReason) -> Trajectory:
        error = EpisodeError(kind=kind, message="m")
        return trajectory(uid, step([1], [2]), stop_reason=reason, error=error)

    found = batch_statistics(
        [
            group(
                broken("a", "OSError", StopReason.ERROR),
                broken("b", "OSError", StopReason.TERMINATED),
                broken("c", "DeadlineError", StopReason.DEADLINE),
                trajectory("d", step([1], [2])),
            )
        ]
    )
    assert (found["errors/total"], found["errors/by_agent"]) == (3, 1)
    assert (found["errors/OSError"], found["errors/DeadlineError"]) == (2, 1)
    assert found["batch/counted"] == 2  # b and d


def called(*values: object) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(name="f", arguments={"x": value}, id=f"call_{i}") for i, value in enumerate(values))


@pytest.mark.parametrize(
    ("actions", "share"),
    [
        ([step([1], [2, 3]), step([1], [2, 3]), step([1], [2])], 0.5),  # the same tokens, then others
        ([step([1], [2], calls=called(1)), step([1], [3], calls=called(1))], 1.0),  # whatever is said around
        ([step([1], [2], calls=called(1)), step([1], [2], calls=called(2))], 0.0),
        ([step([1], [2], calls=called(1)), step([1], [2], calls=called(1, 1))], 0.0),
        ([step([1], [2], calls=called(1)), step([1], [2])], 0.0),
        ([step([1], [2], calls=(BAD,)), step([1], [3], calls=(BAD,))], 1.0),
        ([step([1], [2]), step([1], [9], kind="summary"), step([1], [2])], 1.0),  # a summary is no action
        ([step([1], [2], agent="a"), step([1], [2], agent="b"), step([1], [3], agent="a")], 0.0),
        ([step([1], [2])], None),
    ],
)
def test_an_action_repeats_the_same_agents_action_before_it(actions: list[Step], share: float | None) -> None:
    assert batch_statistics([group(trajectory("t", *actions))]).get("calls/repeated_share") == share


def test_repetitions_have_one_vote_per_trajectory() -> None:
    looping = trajectory("looping", *(step([1], [2]) for _ in range(9)))
    varied = trajectory("varied", step([1], [2]), step([1], [3]))
    short = trajectory("short", step([1], [2]))
    assert batch_statistics([group(looping, varied, short)])["calls/repeated_share"] == 0.5
