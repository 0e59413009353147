"""Steps, trajectories, groups: the checks at construction that everything after rollout relies on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from episodes import rewarded, step, trajectory
from hypothesis import given
from hypothesis import strategies as st

from steprl.types import (
    EpisodeError,
    MalformedCall,
    Sampling,
    Step,
    StepKey,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)

NAN = float("nan")


def fields(**changes: Any) -> dict[str, Any]:
    """A valid step of two sampled tokens and a forced one, with changes."""
    return {
        "prompt_ids": [1, 2],
        "action_ids": [3, 4, 5],
        "sampled_mask": [True, True, False],
        "logprobs": [-1.0, -2.0, NAN],
        "policy_versions": [0, 0, 0],
        "sampling": Sampling(),
        **changes,
    }


@pytest.mark.parametrize(
    ("name", "value", "dtype"),
    [
        ("prompt_ids", np.array([1, 2]), np.int32),
        ("action_ids", np.array([3, 4, 5], dtype=np.uint8), np.int32),
        ("sampled_mask", np.array([True, True, False]), np.bool_),
        ("logprobs", np.array([-1.0, -2.0, NAN]), np.float32),
        ("policy_versions", np.array([0, 0, 0]), np.int32),
    ],
)
def test_arrays_are_read_only_copies_of_the_declared_kind(name: str, value: Any, dtype: Any) -> None:
    array = getattr(Step(**fields(**{name: value})), name)
    assert array.dtype == dtype
    assert not np.shares_memory(array, value)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    value[0] = value[1]  # the caller's own array stays writeable


def test_an_array_of_the_right_kind_already_is_copied_too() -> None:
    given_ids = np.array([1, 2], dtype=np.int32)
    made = Step(**fields(prompt_ids=given_ids))
    given_ids[0] = 99
    assert made.prompt_ids.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["sampled_mask", "logprobs", "policy_versions"])
def test_lengths_agree_with_the_action(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must have length 3, got 2"):
        Step(**fields(**{name: fields()[name][:2]}))


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("prompt_ids", [1.0, 2.0], "int32"),
        ("action_ids", [True, False, True], "int32"),
        ("sampled_mask", [1, 1, 0], "bool"),
        ("logprobs", ["a", "b", "c"], "float32"),
        ("policy_versions", [0.0, 0.0, 0.0], "int32"),
    ],
)
def test_a_value_of_another_kind_is_refused_not_converted(name: str, value: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must hold {kind}"):
        Step(**fields(**{name: value}))


def test_shapes_and_ranges_are_checked() -> None:
    with pytest.raises(ValueError, match=r"prompt_ids must have one dimension, got shape \(1, 2\)"):
        Step(**fields(prompt_ids=[[1, 2]]))
    with pytest.raises(ValueError, match="prompt_ids holds 2147483648, outside int32"):
        Step(**fields(prompt_ids=[1, 2**31]))
    with pytest.raises(ValueError, match="prompt of at least one token"):
        Step(**fields(prompt_ids=[]))
    assert len(step([1], []).action_ids) == 0  # an aborted action may be empty


@pytest.mark.parametrize("hole", [NAN, float("inf"), -float("inf")])
def test_a_sampled_token_has_a_finite_logprob(hole: float) -> None:
    with pytest.raises(ValueError, match="every sampled token needs a finite log-probability"):
        Step(**fields(logprobs=[-1.0, hole, NAN]))


@pytest.mark.parametrize("number", [-1.0, 0.0, float("inf"), -float("inf")])
def test_a_token_that_was_not_sampled_has_none(number: float) -> None:
    with pytest.raises(ValueError, match=r"not sampled has no log-probability \(use NaN\)"):
        Step(**fields(logprobs=[-1.0, -2.0, number]))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6))
def test_logprobs_are_nan_exactly_where_nothing_was_sampled(tokens: list[tuple[bool, bool]]) -> None:
    mask = [sampled for sampled, _ in tokens]
    logprobs = [-1.0 if number else NAN for _, number in tokens]
    given_fields = fields(
        action_ids=[3] * len(tokens),
        sampled_mask=mask,
        logprobs=logprobs,
        policy_versions=[0] * len(tokens),
    )
    if all(sampled == number for sampled, number in tokens):
        assert np.isnan(Step(**given_fields).logprobs).tolist() == [not sampled for sampled in mask]
    else:
        with pytest.raises(ValueError, match="log-probability"):
            Step(**given_fields)


def test_an_engine_without_logprobs_is_none_not_zeros() -> None:
    assert Step(**fields(logprobs=None)).logprobs is None


@pytest.mark.parametrize("reward", [NAN, float("inf"), "1", True])
def test_a_reward_is_a_finite_number_or_none(reward: Any) -> None:
    with pytest.raises(ValueError, match="reward must be a finite number"):
        Step(**fields(reward=reward))
    with pytest.raises(ValueError, match="reward 'style' must be a finite number"):
        Step(**fields(rewards={"style": reward}))
    assert Step(**fields(reward=None)).reward is None
    assert type(Step(**fields(reward=np.float32(0.5))).reward) is float


@pytest.mark.parametrize("span", [(0, 4), (2, 1), (-1, 2)])
def test_the_span_of_a_call_lies_in_the_action(span: tuple[int, int]) -> None:
    assert Step(**fields(calls=(MalformedCall(raw="", reason="", span=(0, 3)),)))
    with pytest.raises(ValueError, match="lies outside the action's 3 tokens"):
        Step(**fields(calls=(MalformedCall(raw="", reason="", span=span),)))


def test_a_parent_is_an_earlier_step() -> None:
    with pytest.raises(ValueError, match="index of an earlier step, got -1"):
        step([1], [2], parent=-1)
    assert trajectory("a", [step([1], [2]), step([1], [2], parent=0)])
    with pytest.raises(ValueError, match="step 1 has parent 1, which is not an earlier step"):
        trajectory("a", [step([1], [2]), step([1], [2], parent=1)])


def test_stop_reasons_say_what_trains_and_what_bootstraps() -> None:
    trains = {reason.value for reason in StopReason if reason.trains}
    bootstraps = {reason.value for reason in StopReason if reason.bootstraps}
    assert trains == {"terminated", "max_steps", "context_full"}
    assert bootstraps == {"max_steps", "context_full"}
    assert {reason.value for reason in StopReason} == trains | {"deadline", "aborted", "error"}


def test_an_error_is_a_value_that_goes_with_its_stop_reason() -> None:
    made: dict[str, Any] = {"uid": "a", "group_uid": "g", "task_id": "t", "task_hash": "h", "seed": 0}
    error = EpisodeError(kind="EnvError", message="broken")
    assert Trajectory(**made, steps=(), stop_reason=StopReason.ERROR, error=error)
    for reason in (StopReason.TERMINATED, StopReason.DEADLINE):  # the agent's doing; what was waited for
        assert Trajectory(**made, steps=(), stop_reason=reason, error=error).error is error
    with pytest.raises(ValueError, match="'error' needs an EpisodeError"):
        Trajectory(**made, steps=(), stop_reason=StopReason.ERROR)
    for reason in (StopReason.MAX_STEPS, StopReason.CONTEXT_FULL, StopReason.ABORTED):
        with pytest.raises(ValueError, match=f"deadline, error, terminated, not '{reason}'"):
            Trajectory(**made, steps=(), stop_reason=reason, error=error)


def test_the_reward_of_a_trajectory_is_the_sum_or_unknown() -> None:
    scored = [step([1], [2], reward=0.5), step([1], [2], reward=-0.25)]
    assert trajectory("a", scored).reward == 0.25
    assert trajectory("a", []).reward == 0.0
    assert trajectory("a", [*scored, step([1], [2], reward=None)]).reward is None
    assert trajectory("a", scored).key(1) == StepKey("a", 1) == ("a", 1)


def test_the_final_prompt_is_frozen_too() -> None:
    ids = np.array([1, 2], dtype=np.int32)
    made = Trajectory(
        uid="a",
        group_uid="g",
        task_id="t",
        task_hash="h",
        seed=0,
        steps=(),
        stop_reason=StopReason.MAX_STEPS,
        final_prompt_ids=ids,
    )
    ids[0] = 9
    assert made.final_prompt_ids is not None and made.final_prompt_ids.tolist() == [1, 2]


def test_a_group_holds_its_own_trajectories_once() -> None:
    one, other = rewarded("a", 1.0), rewarded("b", 1.0, group="other")
    with pytest.raises(ValueError, match="trajectory b belongs to group other, not g"):
        TrajectoryGroup(group_uid="g", task_id="g", trajectories=(one, other))
    with pytest.raises(ValueError, match="group g holds a trajectory twice"):
        TrajectoryGroup(group_uid="g", task_id="g", trajectories=(one, one))
