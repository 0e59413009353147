"""Token budget: the oldest outputs go first, and only as many as have to."""

from __future__ import annotations

from dataclasses import replace

from histories import HISTORIES, OPENING, Meter, contents, everything, history, shown
from hypothesis import given
from hypothesis import strategies as st

from steprl.context import TokenBudget
from steprl.types import History

THREE = history(("a", ["x" * 50, "y" * 50]), ("b", ["z" * 50]), ("c", ["w" * 50]))
FULL = Meter().count(everything(THREE))


def outputs(tokens: int, **options: object) -> list[str]:
    """What is left of the outputs of ``THREE``, by its first characters."""
    rule = TokenBudget(tokens=tokens, left_out="-", **options)  # type: ignore[arg-type]
    return [m.content[:3] for m in shown(rule, THREE) if m.role == "tool"]


def test_the_oldest_outputs_are_replaced_until_the_prompt_fits() -> None:
    assert outputs(FULL) == ["xxx", "yyy", "zzz", "www"]
    assert outputs(FULL - 1) == ["-", "yyy", "zzz", "www"]
    assert outputs(FULL - 49) == ["-", "yyy", "zzz", "www"]
    assert outputs(FULL - 50) == ["-", "-", "zzz", "www"]
    assert outputs(FULL - 99) == ["-", "-", "-", "www"]


def test_what_may_not_be_replaced_is_shown_however_long_it_is() -> None:
    assert outputs(1) == ["-", "-", "-", "www"]
    assert outputs(1, keep_last=2) == ["-", "-", "zzz", "www"]
    assert outputs(1, keep_last=9) == ["xxx", "yyy", "zzz", "www"]


def test_the_head_of_an_output_may_stay() -> None:
    assert outputs(1, head=2) == ["xx-", "yy-", "zz-", "www"]


def test_a_replaced_output_answers_the_same_call() -> None:
    (message,) = history(("a", ["x" * 50])).rounds[0].feedback
    called = replace(message, name="search", tool_call_id="call_0")
    past = history(("a", [called]), ("b", ["y"]))
    found = shown(TokenBudget(tokens=1), past)
    assert found[3] == replace(called, content="[output left out]")


def test_an_output_shorter_than_what_would_stand_for_it_stays() -> None:
    past = history(("a", ["short"]), ("b", ["y" * 90]), ("c", []))
    assert contents(shown(TokenBudget(tokens=1), past))[3::2] == ["short", "[output left out]"]


@given(HISTORIES, st.integers(1, 400), st.integers(0, 9), st.integers(1, 3))
def test_actions_and_order_stay_and_no_output_goes_without_need(
    past: History, tokens: int, head: int, keep_last: int
) -> None:
    rule = TokenBudget(tokens=tokens, left_out="…", head=head, keep_last=keep_last)
    whole, found = everything(past), shown(rule, past)
    gone = []
    for before, after in zip(whole, found, strict=True):
        if before != after:
            gone.append((before, after))
            assert before.role != "assistant" and before not in OPENING
            assert after == replace(before, content=before.content[:head] + "…")
    newest = sum(1 + len(past.feedback) for past in past.rounds[-keep_last:])
    assert newest == 0 or found[-newest:] == whole[-newest:]
    if gone:  # one less would not have been enough
        before, after = gone[-1]
        assert Meter().count(found) + len(before.content) - len(after.content) > tokens


@given(HISTORIES)
def test_what_does_not_fit_has_nothing_left_to_replace(past: History) -> None:
    found = shown(TokenBudget(tokens=120, left_out=""), past)
    if Meter().count(found) > 120:
        older = History(opening=(), rounds=past.rounds[:-1])
        left = found[len(OPENING) :][: len(everything(older))]
        assert not any(contents([message for message in left if message.role != "assistant"]))
