"""Evidence: what is selected of older rounds, by mark, by likeness, or by a function of the user's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from histories import OPENING, contents, history, shown
from hypothesis import given
from hypothesis import strategies as st
from playing import Guess, Recorder, call, guesses, members, only, play, renderer

from steprl.context import Evidence
from steprl.context._bm25 import bm25
from steprl.envs import ToolEnv
from steprl.errors import ConfigError, EnvError
from steprl.tools import tool
from steprl.types import History, Message, StopReason, Task


def found(content: str, **fields: Any) -> Message:
    return Message(role="tool", content=content, **fields)


PAST = history(
    ("a", [found("Ada is out.", mark="evidence"), found("noise")]),
    ("b", [found("snow")]),
    ("c", [found("Ben is in.", name="search")]),
    ("d", [found("last")]),
)
TOLD = contents(OPENING)


def seen(**options: Any) -> list[str]:
    messages = contents(shown(Evidence(**options), PAST))
    assert messages[:2] == TOLD
    return messages[2:]


def test_marked_messages_are_kept_with_the_actions_they_answer() -> None:
    assert seen() == ["a", "Ada is out.", "d", "last"]


def test_results_of_named_tools_are_evidence_too() -> None:
    assert seen(tools=["search"]) == ["a", "Ada is out.", "c", "Ben is in.", "d", "last"]


def test_of_the_last_rounds_nothing_is_left_out() -> None:
    assert seen(keep_last=3) == ["a", "Ada is out.", "b", "snow", "c", "Ben is in.", "d", "last"]


def test_bm25_keeps_what_shares_most_with_the_task() -> None:
    assert OPENING[1].content == "Where is Ada?"
    assert seen(select="bm25", top=1) == ["a", "Ada is out.", "d", "last"]
    assert seen(select="bm25") == ["a", "Ada is out.", "c", "Ben is in.", "d", "last"]  # "is"


def test_of_equal_likeness_the_newest_is_kept() -> None:
    past = history(("a", ["Ada here"]), ("b", ["Ada there"]), ("c", []))
    assert contents(shown(Evidence(select="bm25", top=1), past))[2:] == ["b", "Ada there", "c"]


class Library(ToolEnv):
    """Pages to look at, of which only what a page says is worth keeping."""

    @tool(evidence=True)
    def look(self, page: str) -> str:
        """Look at a page."""
        return {"a": "Ada is out.", "c": "Cleo is in."}[page]

    @tool
    def turn(self) -> str:
        """Turn a page."""
        return "a rustle"

    tools = (look, turn)

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == "Cleo")


def test_what_an_evidence_tool_returns_stays_in_the_prompt_and_its_errors_go() -> None:
    replies = [call("look", page="a"), call("look", page="b"), call("turn"), call("look", page="c"), "Cleo"]
    t = only(play(Library, Recorder(replies), context=Evidence()))
    assert t.reward == 1.0 and t.steps[0].feedback[0].mark == "evidence"
    last = renderer().decode(t.steps[-1].prompt_ids.tolist())
    told = ("Ada is out.", "KeyError", "a rustle", "Cleo is in.")
    assert [text in last for text in told] == [True, False, False, True]
    assert "evidence" not in last
    # an error is seen while it is new
    assert "KeyError" in renderer().decode(t.steps[2].prompt_ids.tolist())


# --- the scorer ---------------------------------------------------------------------------------------


def test_scores_are_those_of_the_formula() -> None:
    scores = bm25("Ada ran", ["ada ran home", "Ada sat", "the cat sat on the mat"])
    # worked by hand: N = 3, mean length 11/3, k1 = 1.5, b = 0.75
    ada, ran = np.log(1 + 1.5 / 2.5), np.log(1 + 2.5 / 1.5)
    first = 2.5 / (1 + 1.5 * (0.25 + 0.75 * 9 / 11))
    second = 2.5 / (1 + 1.5 * (0.25 + 0.75 * 6 / 11))
    assert scores == pytest.approx([(ada + ran) * first, ada * second, 0.0])


TEXTS = st.lists(st.text(alphabet="ab ", max_size=8), max_size=5)


@given(st.text(alphabet="ab ", max_size=8), TEXTS)
def test_a_score_is_above_zero_exactly_for_shared_words(query: str, texts: list[str]) -> None:
    for text, score in zip(texts, bm25(query, texts), strict=True):
        assert (score > 0) == bool(set(query.split()) & set(text.split()))


# --- a function of the user's -------------------------------------------------------------------------


def about_ben(message: Message, past: History) -> bool:
    return "Ben" in message.content and len(past.rounds) == 4


def numpys(message: Message, past: History) -> Any:
    return np.float64(len(message.content)) > 8


def broken(message: Message, past: History) -> bool:
    if "snow" in message.content:
        raise KeyError("cold")
    return False


def undecided(message: Message, past: History) -> Any:
    return "maybe"


async def waiting(message: Message, past: History) -> bool:
    return True


def test_a_function_selects() -> None:
    assert seen(select=f"{__name__}:about_ben") == ["c", "Ben is in.", "d", "last"]
    assert seen(select=numpys) == ["a", "Ada is out.", "c", "Ben is in.", "d", "last"]


@pytest.mark.parametrize(
    ("select", "place", "message"),
    [
        (f"{__name__}:broken", "message 0 of round 1 (tool : 'snow')", "it raised KeyError: 'cold'"),
        (f"{__name__}:undecided", "message 0 of round 0", "it returned 'maybe', which is not a bool"),
    ],
)
def test_its_errors_are_told_as_its_own(select: str, place: str, message: str) -> None:
    with pytest.raises(EnvError) as caught:
        seen(select=select)
    assert select in str(caught.value)
    assert place in str(caught.value) and message in str(caught.value)


def test_one_that_waits_is_refused() -> None:
    with pytest.raises(ConfigError, match="an async function; it must be a plain one"):
        Evidence(select=f"{__name__}:waiting")


def failing(message: Message, past: History) -> bool:
    raise ValueError("no idea")


def test_its_error_is_an_error_of_the_episode_and_nobodys_reward() -> None:
    engine = Recorder([call("hint"), call("hint"), "0"])
    rule = Evidence(select=f"{__name__}:failing")
    t = members(play(Guess, engine, guesses(1), context=rule, beside_a_good_one=True))[0]
    assert t.stop_reason is StopReason.ERROR and t.reward is None
    assert t.error is not None and f"{__name__}:failing" in t.error.message
