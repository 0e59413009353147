"""Mixture: one of several rules per task, the same throughout an episode."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from histories import HISTORIES, Meter, contents, history, shown
from hypothesis import given
from hypothesis import strategies as st

from steprl.context import AppendOnly, Mixture, SlidingWindow
from steprl.errors import ConfigError
from steprl.types import History, Message

WINDOW = {"id": "sliding_window", "args": {"rounds": 1}}
MIXTURE = Mixture(rules=[{"id": "append_only"}, WINDOW])


def asked(question: str, past: History) -> History:
    return replace(past, opening=(Message(role="user", content=question),))


@given(HISTORIES, st.text(max_size=9))
def test_an_episode_is_seen_through_one_of_the_rules_from_its_beginning_to_its_end(
    past: History, question: str
) -> None:
    told = asked(question, past)
    parts = [replace(told, rounds=told.rounds[:n]) for n in range(len(told.rounds) + 1)]
    seen = [shown(MIXTURE, part) for part in parts]
    whole = [shown(AppendOnly(), part) for part in parts]
    assert seen in (whole, [shown(SlidingWindow(rounds=1), part) for part in parts])


def test_rules_are_equally_likely_over_tasks_and_one_that_is_named_twice_is_twice_as_likely() -> None:
    past = history(("one", ["1"]), ("two", ["2"]))
    uneven = Mixture(rules=[{"id": "append_only"}, WINDOW, WINDOW])
    for rule, share in ((MIXTURE, 1 / 2), (uneven, 1 / 3)):
        seen = Counter(len(shown(rule, asked(f"Task {n}?", past))) for n in range(900))
        assert set(seen) == {5, 3}  # all of it, and one round
        assert abs(seen[5] / 900 - share) < 0.06  # more than three standard errors


def test_the_choice_is_the_same_on_every_machine() -> None:
    past = history(("one", ["1"]), ("two", ["2"]))
    windowed = [len(shown(MIXTURE, asked(f"Task {n}?", past))) == 3 for n in range(12)]
    assert windowed == [int(sha256(b"Task %d?" % n).hexdigest()[:16], 16) % 2 == 1 for n in range(12)]


def test_a_rule_of_the_mixture_may_ask_for_summaries() -> None:
    summing = {"id": "llm_summary", "args": {"budget": 1, "keep_last": 0}}
    rule, past = Mixture(rules=[summing, summing]), history(("one", ["1"]))
    assert contents(shown(rule, past, Meter("So far 1.")))[-1].endswith("So far 1.")


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([], "a list of two rules or more"),
        ([WINDOW], "a list of two rules or more"),
        ("append_only", "a list of two rules or more"),
        (WINDOW, "a list of two rules or more"),
        (["append_only", "append_only"], "a rule is a table with its id"),
        ([WINDOW, {"args": {}}], "a rule is a table with its id"),
        ([WINDOW, {"id": "append_only", "rounds": 2}], "a rule is a table with its id"),
        ([WINDOW, {"id": "append_onyl"}], "append_only"),
        ([WINDOW, {"id": "append_only", "args": {"rounds": 2}}], "does not take these options"),
        ([WINDOW, {"id": "sliding_window", "args": {"rounds": 0}}], "rounds is 0"),
        ([WINDOW, {"id": "mixture", "args": {"rules": [WINDOW, WINDOW]}}], "is a mixture itself"),
    ],
)
def test_what_is_no_mixture_is_refused(rules: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Mixture(rules=rules)
