"""Messages, observations, actions, transitions, histories: what may pass between agent and environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from steprl.types import (
    Action,
    History,
    Message,
    Observation,
    Round,
    Summary,
    Task,
    ToolSpec,
    Transition,
    finite,
)

USER = Message(role="user", content="hi")


def test_an_observation_is_exactly_one_of_three() -> None:
    for given in ({"text": ""}, {"messages": ()}, {"token_ids": ()}):
        assert Observation(**given)  # empty is given, too
    with pytest.raises(ValueError, match="exactly one of text, messages, token_ids; got none"):
        Observation()
    with pytest.raises(ValueError, match=r"got \['text', 'token_ids'\]"):
        Observation(text="a", token_ids=(1,))


def test_an_action_becomes_the_assistant_message_with_its_exact_ids() -> None:
    message = Action(text="hello", token_ids=(7, 8, 2)).message()
    assert message == Message(role="assistant", content="hello", token_ids=(7, 8, 2))


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_only_assistant_messages_carry_sampled_ids(role: Any) -> None:
    with pytest.raises(
        ValueError, match=f"only assistant messages carry sampled token ids, got role '{role}'"
    ):
        Message(role=role, content="x", token_ids=(1,))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None, np.array([1.0])])
def test_rewards_of_a_transition_are_finite_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="reward 'outcome' must be a finite number"):
        Transition(rewards={"outcome": value})


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1.0), np.int64(1), np.array(1.0)])
def test_numbers_of_numpy_are_numbers(value: Any) -> None:
    assert finite(value, "x") == 1.0 and type(finite(value, "x")) is float


def test_terminated_is_not_truncated() -> None:
    assert Transition(terminated=True) and Transition(truncated=True)
    with pytest.raises(ValueError, match="terminated or truncated, not both"):
        Transition(terminated=True, truncated=True)


def test_a_history_grows_by_making_a_new_one() -> None:
    first = History(opening=(USER,))
    action = Action(text="a", token_ids=(1,))
    second = first.then(action, (USER,))
    assert first.rounds == ()
    assert second == History(opening=(USER,), rounds=(Round(action=action, feedback=(USER,)),))


def test_a_summary_says_how_many_rounds_there_were_and_stays() -> None:
    action, summary = Action(text="a", token_ids=(1,)), Action(text="s", token_ids=(2,))
    past = History(opening=(USER,)).then(action, ()).summarised(summary).then(action, (USER,))
    assert past.summaries == (Summary(action=summary, rounds=1),) and len(past.rounds) == 2
    assert past.opening == (USER,)


def test_a_mark_is_one_that_context_rules_know() -> None:
    assert Message(role="tool", content="", mark="evidence").mark == "evidence"
    with pytest.raises(ValueError, match="mark must be one of evidence, state, or None; got 'proof'"):
        Message(role="tool", content="", mark="proof")  # type: ignore[arg-type]


def test_a_tool_spec_is_an_openai_function() -> None:
    spec = ToolSpec(name="add", description="Add.", parameters={"type": "object"})
    assert spec.to_json() == {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}},
    }


@pytest.mark.parametrize(
    "made", [lambda: USER, lambda: Task(id="t"), lambda: Observation(text="x"), lambda: Transition()]
)
def test_values_are_frozen_and_have_no_other_fields(made: Callable[[], Any]) -> None:
    value = made()
    field = next(iter(type(value).__dataclass_fields__))
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, None)
    assert not hasattr(value, "__dict__")
    with pytest.raises(TypeError):
        type(value)("positional")
