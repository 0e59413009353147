"""Sampling, prompts, completions; credits, rows, samples, mini-batches: checked where they are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.types import Completion, Credits, MiniBatch, Prompt, Row, Sample, Sampling, StepKey

KEY = StepKey("a", 0)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("temperature", -0.1, "0 (greedy) or above"),
        ("temperature", float("inf"), "0 (greedy) or above"),
        ("temperature", float("nan"), "0 (greedy) or above"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", 1.1, "in (0, 1]"),
        ("top_k", -1, "0 (off) or above"),
        ("max_tokens", 0, "at least 1"),
        ("stop", ("a", ""), "not be empty"),
    ],
)
def test_sampling_out_of_range_is_refused(option: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError) as caught:
        Sampling(**{option: value})
    assert allowed in str(caught.value)


def test_sampling_is_neutral_by_default_and_temperature_keeps_it_so() -> None:
    assert Sampling().neutral and Sampling(temperature=0.7).neutral
    assert not Sampling(top_p=0.9).neutral and not Sampling(top_k=5).neutral


def test_a_prompt_has_tokens_and_keeps_its_own_copy() -> None:
    ids = np.array([1, 2], dtype=np.int32)
    prompt = Prompt(ids=ids)
    ids[0] = 9
    assert prompt.ids.tolist() == [1, 2] and not prompt.ids.flags.writeable
    with pytest.raises(ValueError, match="at least one token"):
        Prompt(ids=[])  # type: ignore[arg-type]


def test_what_an_engine_answers_is_checked() -> None:
    made: dict[str, Any] = {
        "ids": [1, 2],
        "logprobs": [-1.0, -2.0],
        "policy_versions": [0, 0],
        "finish": "stop",
    }
    assert Completion(**{**made, "logprobs": None}).logprobs is None
    with pytest.raises(ValueError, match="logprobs must have length 2, got 1"):
        Completion(**{**made, "logprobs": [-1.0]})
    with pytest.raises(ValueError, match="policy_versions must have length 2"):
        Completion(**{**made, "policy_versions": [0]})
    with pytest.raises(ValueError, match="logprobs of sampled tokens must be finite"):
        Completion(**{**made, "logprobs": [-1.0, float("nan")]})


def test_credits_name_the_same_steps_with_finite_numbers_where_it_counts() -> None:
    mask = np.array([True, False])
    assert Credits(advantages={KEY: np.array([1.0, np.nan])}, loss_mask={KEY: mask})
    with pytest.raises(ValueError, match="same steps"):
        Credits(advantages={KEY: np.zeros(2)}, loss_mask={})
    with pytest.raises(ValueError, match=r"advantages \(3,\) and loss_mask \(2,\) differ"):
        Credits(advantages={KEY: np.zeros(3)}, loss_mask={KEY: mask})
    with pytest.raises(ValueError, match="advantage of a trained token is not finite"):
        Credits(advantages={KEY: np.array([np.nan, 1.0])}, loss_mask={KEY: mask})


def row(**changes: Any) -> Row:
    """Five tokens of which the last three were sampled, with changes."""
    made: dict[str, Any] = {
        "ids": [1, 2, 3, 4, 5],
        "action_positions": [2, 3, 4],
        "step_keys": (KEY,),
        "step_index": [0, 0, 0],
        "token_index": [0, 1, 2],
        "temperature": [1.0, 1.0, 1.0],
        "engine_logprobs": [-1.0, np.nan, -1.0],
    }
    return Row(**{**made, **changes})


@pytest.mark.parametrize("positions", [[0, 1, 2], [2, 3, 5]])
def test_an_action_position_has_a_token_before_it_and_lies_in_the_row(positions: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must lie in 1 … L-1"):
        row(action_positions=positions)


def test_action_positions_increase() -> None:
    for positions in ([2, 2, 3], [3, 2, 4]):
        with pytest.raises(ValueError, match="must increase"):
            row(action_positions=positions)


@pytest.mark.parametrize("name", ["step_index", "token_index", "temperature", "engine_logprobs"])
def test_arrays_of_a_row_stand_beside_its_action_positions(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must have length 3, got 2"):
        row(**{name: getattr(row(), name)[:2]})


def sample(**changes: Any) -> Sample:
    """A sample whose second token does not train, with changes."""
    made: dict[str, Any] = {
        "row": row(),
        "advantages": [1.0, 1.0, 1.0],
        "old_logprobs": [-1.0, -1.0, -1.0],
        "loss_mask": [True, False, True],
        "weights": [0.5, 0.0, 0.5],
    }
    return Sample(**{**made, **changes})


def test_a_token_outside_the_loss_has_weight_zero() -> None:
    assert sample().weights.tolist() == [0.5, 0.0, 0.5]
    with pytest.raises(ValueError, match="outside the loss mask must have weight 0"):
        sample(weights=[0.5, 0.1, 0.5])


@pytest.mark.parametrize("name", ["advantages", "old_logprobs", "weights", "loss_mask", "ref_logprobs"])
def test_arrays_of_a_sample_stand_beside_its_action_positions(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must have length 3, got 2"):
        sample(**{name: [False, False] if name == "loss_mask" else [0.0, 0.0]})


def test_what_a_critic_learns_from_comes_together() -> None:
    assert sample(value_positions=[1, 4], returns=[0.0, 1.0], value_weights=[0.5, 0.5])
    with pytest.raises(ValueError, match="returns must have length 2, got 1"):
        sample(value_positions=[1, 4], returns=[0.0], value_weights=[0.5, 0.5])


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4), st.integers(0, 4))
def test_every_sample_stands_in_exactly_one_micro_batch(cuts: list[list[int]], n: int) -> None:
    micro_batches = tuple(map(tuple, cuts))
    samples = tuple(sample() for _ in range(n))
    if sorted(i for cut in cuts for i in cut) == list(range(n)):
        assert MiniBatch(samples=samples, micro_batches=micro_batches).micro_batches == micro_batches
    else:
        with pytest.raises(ValueError, match="exactly one micro-batch"):
            MiniBatch(samples=samples, micro_batches=micro_batches)
