"""What every context rule promises, on random histories."""

from __future__ import annotations

from typing import Any

import pytest
from histories import HISTORIES, OPENING, Meter, everything, history, shown
from hypothesis import given
from hypothesis import strategies as st

from steprl.context import (
    AppendOnly,
    Evidence,
    LlmSummary,
    SlidingWindow,
    SummaryState,
    ThinkStrip,
    TokenBudget,
)
from steprl.errors import ConfigError
from steprl.types import History, Message

STATED = (*OPENING, Message(role="user", content="You are home.", mark="state"))
"""An opening that satisfies the rule which needs a state."""


def short(message: Message, past: History) -> bool:
    """A selector."""
    return len(message.content) < 6


SILENT: list[Any] = [
    AppendOnly(),
    SlidingWindow(rounds=1),
    SlidingWindow(rounds=3),
    TokenBudget(tokens=60),
    TokenBudget(tokens=150, left_out="", head=5, keep_last=2),
    ThinkStrip(),
    ThinkStrip(keep_last=1),
    Evidence(),
    Evidence(tools=["search"], keep_last=2),
    Evidence(select="bm25", top=2),
    Evidence(select=f"{__name__}:short"),
    Evidence(select=short),
    SummaryState(rounds=0),
    SummaryState(rounds=2),
]
"""Rules that ask for nothing."""

LEAVING_OUT = [rule for rule in SILENT if isinstance(rule, SlidingWindow | Evidence | SummaryState)]
"""Rules that show some of the messages as they are, and others not at all."""


def is_subsequence(part: list[Message], whole: list[Message]) -> bool:
    """Whether ``part`` is ``whole`` with messages left out."""
    rest = iter(whole)
    return all(any(message == other for other in rest) for message in part)


def stated(past: History) -> History:
    return History(opening=STATED, rounds=past.rounds)


@given(HISTORIES)
def test_a_rule_is_a_function_of_the_history_and_asks_for_nothing(past: History) -> None:
    for rule in SILENT:
        actor = Meter()
        found = shown(rule, stated(past), actor)
        assert shown(rule, stated(past)) == found and actor.asked == [], rule


@given(HISTORIES)
def test_the_opening_comes_first_and_the_last_feedback_last(past: History) -> None:
    last = [m for m in (past.rounds[-1].feedback if past.rounds else ()) if m.mark != "state"]
    for rule in SILENT:
        found = shown(rule, stated(past))
        kept = OPENING if isinstance(rule, SummaryState) else STATED
        assert found[: len(kept)] == list(kept), rule
        if last and rule != SummaryState(rounds=0):
            assert [m for m in found if m.mark != "state"][-len(last) :] == last, rule


@given(HISTORIES)
def test_the_newest_action_is_seen(past: History) -> None:
    for rule in SILENT:
        said = [message for message in shown(rule, stated(past)) if message.role == "assistant"]
        if rule != SummaryState(rounds=0):
            assert bool(said) == bool(past.rounds), rule
        if said and rule not in (ThinkStrip(), SummaryState(rounds=0)):
            assert said[-1] == past.rounds[-1].action.message(), rule


@given(HISTORIES)
def test_what_is_seen_is_part_of_what_was_said_in_order_with_exact_ids(past: History) -> None:
    whole = everything(stated(past))
    for rule in LEAVING_OUT:
        found = shown(rule, stated(past))
        assert is_subsequence(found, whole), rule
        # no feedback without the action that it answers
        first = next((m for m in found if m not in OPENING and m.mark != "state"), None)
        assert first is None or first.role == "assistant", rule


@given(HISTORIES)
def test_with_room_enough_everything_is_seen(past: History) -> None:
    for rule in (SlidingWindow(rounds=9), TokenBudget(tokens=9999), Evidence(keep_last=9)):
        assert shown(rule, past) == everything(past), rule


@given(HISTORIES, st.integers(1, 7))
def test_a_window_is_its_rounds(past: History, rounds: int) -> None:
    cut = History(opening=OPENING, rounds=past.rounds[-rounds:])
    assert shown(SlidingWindow(rounds=rounds), past) == everything(cut)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            SlidingWindow,
            {"rounds": 0},
            "sliding_window: rounds is 0; it must be a whole number of at least 1",
        ),
        (SlidingWindow, {"rounds": True}, "rounds is True"),
        (SlidingWindow, {"rounds": "4"}, "rounds is '4'"),
        (TokenBudget, {"tokens": 0}, "token_budget: tokens is 0"),
        (
            TokenBudget,
            {"tokens": 9, "keep_last": 0},
            "keep_last is 0; it must be a whole number of at least 1",
        ),
        (TokenBudget, {"tokens": 9, "head": -1}, "head is -1; it must be a whole number of at least 0"),
        (TokenBudget, {"tokens": 9, "left_out": None}, "left_out is None; it must be text"),
        (ThinkStrip, {"opening": ""}, "think_strip: opening is ''; it must be some text"),
        (ThinkStrip, {"closing": 3}, "closing is 3"),
        (ThinkStrip, {"keep_last": -1}, "keep_last is -1"),
        (Evidence, {"select": "bm26"}, 'select is \'bm26\'; it must be "marked" or "bm25", or a function of'),
        (Evidence, {"select": "no_such_module:f"}, "there is no module 'no_such_module'"),
        (Evidence, {"select": f"{__name__}:shrt"}, "Did you mean 'short'?"),
        (Evidence, {"select": f"{__name__}:OPENING"}, "or a function of yours as module:attribute"),
        (Evidence, {"tools": "search"}, "it must be a list of names of tools"),
        (Evidence, {"tools": ["search"], "select": "bm25"}, "tools has no effect with select = 'bm25'"),
        (Evidence, {"top": 3}, "top has no effect with select = 'marked'"),
        (Evidence, {"top": 0, "select": "bm25"}, "top is 0"),
        (Evidence, {"keep_last": 0}, "keep_last is 0"),
        (SummaryState, {"rounds": -1}, "summary_state: rounds is -1"),
        (LlmSummary, {"budget": 0}, "llm_summary: budget is 0"),
        (LlmSummary, {"budget": 9, "keep_last": -1}, "keep_last is -1"),
        (LlmSummary, {"budget": 9, "prompt": ""}, "prompt is ''; it must be some text"),
        (
            LlmSummary,
            {"budget": 9, "writer": "gpt"},
            'it must be one of "policy", "frozen_model", or an async',
        ),
        (LlmSummary, {"budget": 9, "writer_args": {"model": "x"}}, "'policy' takes none"),
        (LlmSummary, {"budget": 9, "writer": "frozen_model"}, "does not take these options"),
        (LlmSummary, {"budget": 9, "writer": f"{__name__}:short"}, "which is no async function"),
    ],
)
def test_options_are_checked_when_a_rule_is_made(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("rule", [TokenBudget(tokens=100), LlmSummary(budget=100)])
def test_a_budget_that_the_context_cannot_hold_is_refused(rule: Any) -> None:
    with pytest.raises(
        ConfigError, match="= 100, but the context holds 100 tokens, and would be full before"
    ):
        shown(rule, history(), Meter(max_context=100))
    assert shown(rule, history(), Meter(max_context=101)) == list(OPENING)
