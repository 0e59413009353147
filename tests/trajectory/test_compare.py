"""Two trajectories side by side: what counts as a difference, which comes first, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from episodes import step, trajectory
from hypothesis import given
from hypothesis import strategies as st

from steprl.trajectory.compare import Difference, first_difference
from steprl.types import EpisodeError, Message, StopReason, ToolCall, Trajectory


def decode(ids: Sequence[int]) -> str:
    return "".join(chr(97 + i) for i in ids)


def told(text: str) -> tuple[Message, ...]:
    return (Message(role="tool", name="look", content=text),)


STEPS = (
    step([0, 1], [2], feedback=told("a fine day"), anchor="home", rewards={"tidy": 0.5}, reward=0.5),
    step([0, 1, 2, 3], [4, 5], anchor="away", rewards={"outcome": 1.0}, reward=1.0),
)
RECORDED = trajectory("one", STEPS)


def changed(index: int, **fields: Any) -> Trajectory:
    """``RECORDED`` with other fields in one of its steps."""
    steps = [replace(s, **fields) if i == index else s for i, s in enumerate(STEPS)]
    return trajectory("one", steps)


def test_equal_episodes_have_no_difference_whatever_their_timings() -> None:
    assert first_difference(RECORDED, changed(0, timings={"engine": 9.0}), decode) is None


@pytest.mark.parametrize(
    ("now", "step", "field", "then", "again"),
    [
        (
            changed(1, prompt_ids=[0, 1, 2, 7, 8]),
            1,
            "prompt",
            "token 3 of 4: 'abc', then 'd'",
            "token 3 of 5: 'abc', then 'hi'",
        ),
        (
            changed(1, prompt_ids=[0, 1]),
            1,
            "prompt",
            "token 2 of 4: 'ab', then 'cd'",
            "ends after token 1: 'ab'",
        ),
        (
            changed(0, feedback=told("a grey day")),
            0,
            "feedback",
            "tool look: a fine day",
            "tool look: a grey day",
        ),
        (changed(0, feedback=()), 0, "feedback", "tool look: a fine day", "none"),
        (changed(0, anchor=None), 0, "anchor", "home", "None"),
        (changed(0, rewards={"neat": 0.5}), 0, "reward components", "tidy 0.5", "neat 0.5"),
        (changed(1, reward=2.0), 1, "reward", "1.0", "2.0"),
        (changed(1, reward=None), 1, "reward", "1.0", "None"),
        (trajectory("one", STEPS[:1]), 0, "end", "terminated after 2 steps", "terminated after 1 steps"),
        (
            trajectory("one", STEPS, stop_reason=StopReason.MAX_STEPS),
            1,
            "end",
            "terminated after 2 steps",
            "max_steps after 2 steps",
        ),
        (
            trajectory("one", (), stop_reason=StopReason.ERROR),
            None,
            "end",
            "terminated after 2 steps",
            "error after 0 steps, EnvError: broken",
        ),
    ],
)
def test_a_difference_is_named_and_shown(
    now: Trajectory, step: int | None, field: str, then: str, again: str
) -> None:
    found = first_difference(RECORDED, now, decode)
    assert found == Difference(episode="one", step=step, field=field, recorded=then, now=again)


def test_tool_calls_that_are_read_otherwise_are_a_difference() -> None:
    now = changed(0, calls=(ToolCall(name="look", arguments={"x": 1}, id="call-0", span=(0, 1)),))
    found = first_difference(RECORDED, now, decode)
    assert found is not None and found.field == "tool calls" and found.recorded == "none"
    assert "name='look', arguments={'x': 1}" in found.now


def test_long_texts_are_shown_around_the_first_difference() -> None:
    then, now = changed(0, anchor="x" * 1000 + "A" + "y" * 1000), changed(0, anchor="x" * 1000 + "B")
    found = first_difference(then, now, decode)
    assert found is not None
    assert found.recorded == "…" + "x" * 60 + "A" + "y" * 59 + "…" and found.now == "…" + "x" * 60 + "B"


def test_where_playing_again_ended_at_another_prompt_that_prompt_is_shown() -> None:
    error = EpisodeError(kind="Diverged", message="another prompt")
    now = replace(
        trajectory("one", STEPS[:1], stop_reason=StopReason.ERROR),
        error=error,
        final_prompt_ids=np.asarray([0, 1, 9], dtype=np.int32),
    )
    found = first_difference(RECORDED, now, decode)
    assert found is not None and (found.step, found.field) == (1, "prompt")
    assert found.now == "token 2 of 3: 'ab', then 'j'"


def test_final_prompts_are_compared() -> None:
    def cut(*ids: int) -> Trajectory:
        final = np.asarray(ids, dtype=np.int32)
        return replace(RECORDED, stop_reason=StopReason.CONTEXT_FULL, final_prompt_ids=final)

    assert first_difference(cut(1, 2), cut(1, 2), decode) is None
    found = first_difference(cut(1, 2), cut(1, 3), decode)
    assert found is not None and (found.step, found.field) == (1, "final prompt")


def test_a_broken_episode_has_no_rewards_and_no_last_answer_but_its_error_is_compared() -> None:
    def broken(message: str, reward: float | None, **answer: Any) -> Trajectory:
        steps = [replace(STEPS[0], reward=reward), replace(STEPS[1], reward=reward, **answer)]
        made = trajectory("one", steps, stop_reason=StopReason.ERROR)
        return replace(made, error=EpisodeError(kind="OSError", message=message))

    then = broken("no route", None)
    assert first_difference(then, broken("no route", 1.0, anchor=None), decode) is None
    found = first_difference(RECORDED, then, decode)
    assert found is not None and (found.step, found.field) == (1, "end")
    found = first_difference(broken("no route", None), broken("gone", None), decode)
    assert found is not None and found.field == "end" and found.now == "error after 2 steps, OSError: gone"


@given(at=st.integers(0, 40), length=st.integers(1, 41), data=st.data())
def test_the_token_shown_is_the_first_that_differs(at: int, length: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))
    at = min(at, length - 1)
    other = [*ids[:at], ids[at] + 10, *data.draw(st.lists(st.integers(0, 19), max_size=5))]
    found = first_difference(
        trajectory("one", [step(ids, [1])]), trajectory("one", [step(other, [1])]), decode
    )
    assert found is not None and found.recorded.startswith(f"token {at} of {length}: ")
    assert found.now.startswith(f"token {at} of {len(other)}: ")
