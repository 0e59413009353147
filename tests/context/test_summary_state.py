"""State in place of history: the newest, and the rounds that it cannot tell of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from histories import HISTORIES, OPENING, contents, everything, history, shown
from hypothesis import given
from hypothesis import strategies as st
from playing import Recorder, only, play, renderer

from steprl.context import SummaryState
from steprl.envs import Env
from steprl.errors import ConfigError
from steprl.types import Action, History, Message, StopReason, Task, Transition


def state(content: str) -> Message:
    return Message(role="user", content=content, mark="state")


ROUNDS = [("a", ["1", state("A")]), ("b", ["2", state("B")]), ("c", ["3", state("C")])]
TOLD = contents(OPENING)


@pytest.mark.parametrize(
    ("rounds", "seen"),
    [
        (0, ["C"]),
        (1, ["c", "3", "C"]),
        (2, ["b", "2", "c", "3", "C"]),
        (9, ["a", "1", "b", "2", "c", "3", "C"]),
    ],
)
def test_opening_last_rounds_and_the_newest_state(rounds: int, seen: list[str]) -> None:
    assert contents(shown(SummaryState(rounds=rounds), history(*ROUNDS))) == TOLD + seen


def test_a_state_of_the_opening_is_shown_until_there_is_another() -> None:
    opening = [*OPENING, state("start")]
    rule = SummaryState(rounds=0)
    assert contents(shown(rule, history(opening=opening))) == [*TOLD, "start"]
    assert contents(shown(rule, history(*ROUNDS, opening=opening))) == [*TOLD, "C"]


@pytest.mark.parametrize("rounds", [0, 1])
def test_rounds_since_the_newest_state_are_shown_however_many(rounds: int) -> None:
    past = history(*ROUNDS[:2], ("c", ["3"]), ("d", ["4"]))
    assert contents(shown(SummaryState(rounds=rounds), past)) == [*TOLD, "B", "c", "3", "d", "4"]


def test_an_environment_without_a_state_is_refused() -> None:
    assert shown(SummaryState(), history()) == list(OPENING)
    with pytest.raises(ConfigError, match="there is none in the opening and the first round"):
        shown(SummaryState(), history(("a", ["1"])))


@given(HISTORIES, st.integers(0, 3))
def test_one_state_the_newest_and_no_round_after_it_is_lost(past: History, rounds: int) -> None:
    past = History(opening=(*OPENING, state("start")), rounds=past.rounds)
    found = shown(SummaryState(rounds=rounds), past)
    states = [m for m in everything(past) if m.mark == "state"]
    assert [m for m in found if m.mark == "state"] == states[-1:]
    stated = [n for n, r in enumerate(past.rounds) if any(m.mark == "state" for m in r.feedback)]
    since = stated[-1] + 1 if stated else 0
    first = min(since, max(0, len(past.rounds) - rounds))
    whole = everything(History(opening=OPENING, rounds=past.rounds[first:]))
    assert [m for m in found if m.mark != "state"] == [m for m in whole if m.mark != "state"]


class Counter(Env):
    """Counts, and says in its state how far it has come."""

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        self.number = 0
        return [Message(role="user", content=task.prompt), state("The number is 0.")]

    async def step(self, action: Action) -> Transition:
        self.number += 1
        said = Message(role="user", content="Counted.")
        return Transition(
            feedback=(said, state(f"The number is {self.number}.")), terminated=self.number == 4
        )


def test_an_episode_with_a_state_has_prompts_of_one_length_and_a_record_of_everything() -> None:
    t = only(play(Counter, Recorder(["up"] * 4), context=SummaryState()))
    assert t.stop_reason is StopReason.TERMINATED
    assert len({len(step.prompt_ids) for step in t.steps[1:]}) == 1
    prompts = [renderer().decode(step.prompt_ids.tolist()) for step in t.steps]
    assert all(prompt.count("The number is") == 1 for prompt in prompts)
    assert all(f"The number is {number}." in prompt for number, prompt in enumerate(prompts))
    assert [len(step.feedback) for step in t.steps] == [2] * 4
