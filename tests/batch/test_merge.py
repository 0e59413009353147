"""Rows: which steps share one, what stands where in it, and the way back to the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from episodes import step, trajectory
from hypothesis import given
from hypothesis import strategies as st

from steprl.batch import gather, rows, split_by_step
from steprl.errors import ConfigError
from steprl.types import Row, Sampling, Step, StepKey, Trajectory


def keys(made: Sequence[Row]) -> list[list[int]]:
    """Step indices of each row."""
    return [[key.step for key in row.step_keys] for row in made]


def test_append_only_steps_share_a_row() -> None:
    first = step([1, 2], [3, 4], logprobs=[-0.5, -0.25])
    second = step([1, 2, 3, 4, 9, 9], [5], sampling=Sampling(temperature=0.5))
    (row,) = rows([trajectory("t", [first, second])])
    np.testing.assert_array_equal(row.ids, [1, 2, 3, 4, 9, 9, 5])
    np.testing.assert_array_equal(row.action_positions, [2, 3, 6])
    np.testing.assert_array_equal(row.step_index, [0, 0, 1])
    np.testing.assert_array_equal(row.token_index, [0, 1, 0])
    np.testing.assert_array_equal(row.temperature, [1.0, 1.0, 0.5])
    np.testing.assert_array_equal(row.engine_logprobs, [-0.5, -0.25, np.nan])
    assert row.step_keys == (StepKey("t", 0), StepKey("t", 1))


def test_one_step_one_row_when_not_asked_to_merge() -> None:
    steps = [step([1, 2], [3, 4]), step([1, 2, 3, 4, 9], [5])]
    assert keys(rows([trajectory("t", steps)], merge=False)) == [[0], [1]]


@pytest.mark.parametrize(
    "later",
    [
        [1, 2, 3, 7, 9],  # the action was rewritten: not the tokens that were sampled
        [8, 2, 3, 4, 9],  # the prompt was rewritten
        [1, 2, 3],  # cut inside the action
        [2, 3, 4, 9],  # a sliding window
    ],
)
def test_a_rewritten_context_starts_a_new_row(later: list[int]) -> None:
    steps = [step([1, 2], [3, 4]), step(later, [5]), step([*later, 5], [6])]
    assert keys(rows([trajectory("t", steps)])) == [[0], [1, 2]]


def test_agents_do_not_share_rows() -> None:
    steps = [
        step([1], [2], agent="solver"),
        step([1, 2], [3], agent="critic"),
        step([1, 2, 3], [4], agent="solver"),
    ]
    assert keys(rows([trajectory("t", steps)])) == [[0, 2], [1]]


def test_trajectories_do_not_share_rows() -> None:
    made = rows([trajectory("a", [step([1], [2])]), trajectory("b", [step([1, 2], [3])])])
    assert [row.step_keys for row in made] == [(StepKey("a", 0),), (StepKey("b", 0),)]


def test_tokens_that_were_not_sampled_are_context() -> None:
    first = step([1], [2, 3, 4], sampled=[True, False, True], logprobs=[-1.0, np.nan, -2.0])
    (row,) = rows([trajectory("t", [first, step([1, 2, 3, 4], [5])])])
    np.testing.assert_array_equal(row.action_positions, [1, 3, 4])
    np.testing.assert_array_equal(row.token_index, [0, 2, 0])
    np.testing.assert_array_equal(row.engine_logprobs, [-1.0, -2.0, np.nan])


def test_an_empty_action_inside_a_row_is_no_gap() -> None:
    steps = [step([1], [2]), step([1, 2, 9], []), step([1, 2, 9, 8], [3])]
    (row,) = rows([trajectory("t", steps)])
    np.testing.assert_array_equal(row.action_positions, [1, 4])
    np.testing.assert_array_equal(row.step_index, [0, 2])


def test_a_row_without_a_sampled_token_is_left_out() -> None:
    steps = [step([1], [2], sampled=[False]), step([7], []), step([8], [9])]
    assert keys(rows([trajectory("t", steps)])) == [[2]]
    assert rows([trajectory("t", [])]) == []


@pytest.mark.parametrize("filtered", [Sampling(top_p=0.9), Sampling(top_k=20)])
def test_filtered_sampling_is_refused(filtered: Sampling) -> None:
    with pytest.raises(ConfigError, match="step 0 of trajectory t.*top_p = 1 and top_k = 0"):
        rows([trajectory("t", [step([1], [2], sampling=filtered)])])


def test_back_to_the_steps() -> None:
    first = step([1], [2, 3], sampled=[True, False])
    steps = [first, step([7], []), step([1, 2, 3], [4])]
    one = trajectory("t", steps)
    made = rows([one])
    assert keys(made) == [[0], [2]]
    back = split_by_step([one], made, [np.array([0.5]), np.array([0.25])])
    np.testing.assert_array_equal(back[StepKey("t", 0)], [0.5, np.nan])
    np.testing.assert_array_equal(back[StepKey("t", 1)], [])
    np.testing.assert_array_equal(back[StepKey("t", 2)], [0.25])


@st.composite
def episodes(draw: st.DrawFn) -> Trajectory:
    """Steps that sometimes continue the last one and sometimes rewrite it, over a small alphabet."""
    token = st.integers(0, 2)
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, 6))):
        agent = draw(st.sampled_from(["a", "b"]))
        before = [s for s in steps if s.agent == agent]
        tail = draw(st.lists(token, min_size=1, max_size=3))
        kept = [*before[-1].prompt_ids, *before[-1].action_ids] if before and draw(st.booleans()) else []
        action = draw(st.lists(token, max_size=3))
        sampled = draw(st.lists(st.booleans(), min_size=len(action), max_size=len(action)))
        steps.append(step([*kept, *tail], action, sampled=sampled, agent=agent))
    return trajectory("t", steps)


@given(episodes(), st.booleans())
def test_every_sampled_token_stands_in_one_row_behind_its_own_context(one: Trajectory, merge: bool) -> None:
    seen: list[tuple[int, int]] = []
    for row in rows([one], merge=merge):
        for n, position in enumerate(row.action_positions):
            index, j = row.step_keys[row.step_index[n]].step, int(row.token_index[n])
            origin = one.steps[index]
            seen.append((index, j))
            assert row.ids[position] == origin.action_ids[j]
            context = [*origin.prompt_ids, *origin.action_ids[:j]]
            np.testing.assert_array_equal(row.ids[:position], context)
    assert sorted(seen) == [
        (i, int(j)) for i, s in enumerate(one.steps) for j in np.flatnonzero(s.sampled_mask)
    ]


@given(episodes(), st.booleans())
def test_gather_and_split_are_inverse(one: Trajectory, merge: bool) -> None:
    per_step = {
        one.key(i): np.where(s.sampled_mask, np.arange(len(s.action_ids)) + 10.0 * i, np.nan).astype(
            np.float32
        )
        for i, s in enumerate(one.steps)
    }
    made = rows([one], merge=merge)
    back = split_by_step([one], made, [gather(row, per_step) for row in made])
    assert back.keys() == per_step.keys()
    for key, values in per_step.items():
        np.testing.assert_array_equal(back[key], values)
