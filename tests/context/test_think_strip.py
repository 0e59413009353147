"""Thinking left out of what the model sees next, and out of nothing else."""

from __future__ import annotations

import pytest
from histories import HISTORIES, Meter, everything, history, shown
from hypothesis import given

from steprl.context import ThinkStrip
from steprl.types import History, Message


def said(text: str, **options: str) -> Message:
    (message,) = shown(ThinkStrip(**options), history((text, [])))[2:]  # type: ignore[arg-type]
    return message


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>Hm.</think>Yes.", "Yes."),
        ("<think>\nHm.\n</think>\n\nYes.", "Yes."),
        ("First. <think>Hm.</think> Second.", "First.  Second."),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("the prompt has opened it</think>Yes.", "Yes."),
        ("<think>cut at the length limit", ""),
        ("Yes.<think>and on", "Yes."),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think></think>", ""),
    ],
)
def test_thoughts_go_with_their_tags_and_the_ids_with_them(text: str, left: str) -> None:
    assert said(text) == Message(role="assistant", content=left)


@pytest.mark.parametrize("text", ["Yes.", " spaces stay \n", "", "a < b, think about it"])
def test_without_thinking_an_action_keeps_its_ids(text: str) -> None:
    assert said(text) == Message(role="assistant", content=text, token_ids=(0, 1))


def test_tags_are_those_of_the_model() -> None:
    text = "[[Hm. <think>]]Yes."
    assert said(text, opening="[[", closing="]]").content == "Yes."
    assert said("<think>", opening="[[", closing="]]").token_ids == (0, 1)


@given(HISTORIES)
def test_nothing_but_actions_changes_and_no_thought_is_left(past: History) -> None:
    for before, after in zip(everything(past), shown(ThinkStrip(), past), strict=True):
        if before != after:
            assert before.role == "assistant" and "think>" in before.content
            assert after.token_ids is None
        if after.role == "assistant":
            assert "<think>" not in after.content and "</think>" not in after.content


@given(HISTORIES)
def test_the_newest_thoughts_may_stay(past: History) -> None:
    found = shown(ThinkStrip(keep_last=2), past)
    kept = sum(1 + len(r.feedback) for r in past.rounds[-2:])
    assert not past.rounds or found[-kept:] == everything(past)[-kept:]
    older = History(opening=past.opening, rounds=past.rounds[:-2])
    assert found[: len(found) - kept] == shown(ThinkStrip(), older, Meter())
