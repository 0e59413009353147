"""Guestbook: its rules word for word, its reader, and what it is for: a context rule decides how often anyone
can be right."""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl import check_env
from steprl.context import AppendOnly, Evidence, LlmSummary, SlidingWindow, TokenBudget
from steprl.envs.guestbook import (
    ENTRIES,
    GUESTS,
    LAST,
    LENGTHS,
    REMARKS,
    ROOMS,
    THIEVES,
    Guestbook,
    book,
    guestbook_tasks,
)
from steprl.envs.guestbook_demos import Reader
from steprl.errors import ConfigError, EnvError, TaskError
from steprl.tasks import task_hash
from steprl.trainers.imitation.demonstrate import demonstrate
from steprl.types import Action, ContextRule, Message, StopReason, Task, ToolCall, Transition

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import context_calibration as calibration

TASK = Task(
    id="t",
    prompt="Red Moon: which two thieves slept there?",
    answer="Owl, Fox",
    data={"pages": 3, "entries": [21, 27], "thieves": {"Owl": 0, "Fox": 2}, "noise": 5},
)
TURN = Action(text="", token_ids=(1,), tool_calls=(ToolCall(name="turn", arguments={}, id="call_0"),))


def say(text: str) -> Action:
    return Action(text=text, token_ids=(1,))


def steps(*actions: Action, task: Task = TASK) -> list[Transition]:
    async def episode() -> list[Transition]:
        env = Guestbook()
        await env.reset(task, seed=0)
        return [await env.step(action) for action in actions]

    return asyncio.run(episode())


def reward(answer: str, turns: int = 4) -> float:
    *_, last = steps(*[TURN] * turns, say(answer))
    assert last.terminated
    return last.rewards["outcome"]


# --- the environment ----------------------------------------------------------------------------------


def test_an_episode_word_for_word():
    opening = asyncio.run(Guestbook().reset(TASK, seed=0))
    assert [(message.role, message.content) for message in opening] == [
        ("system", "Turn every page, then answer."),
        ("user", "Red Moon: which two thieves slept there?"),
    ]
    *turned, end, again, answered = steps(*[TURN] * 5, say("Fox, Owl"))
    told = [transition.feedback[0].content for transition in turned]
    assert told == list(book(TASK))
    assert [text.split(" ", 2)[:2] for text in told] == [["Page", "1."], ["Page", "2."], ["Page", "3."]]
    assert end.feedback == again.feedback
    assert end.feedback[0].content == "The end. Answer: Thieves: name, name." == LAST
    assert answered.rewards == {"outcome": 1.0} and answered.terminated


def test_what_matters_is_marked_and_nothing_else():
    marks = [transition.feedback[0].mark for transition in steps(*[TURN] * 5)]
    assert marks == ["evidence", None, "evidence", "evidence", "evidence"]
    wrong = Action(text="", token_ids=(1,), tool_calls=(ToolCall(name="back", arguments={}, id="call_0"),))
    (refused,) = steps(wrong)
    assert refused.feedback[0].content.startswith("Error: unknown tool 'back'")
    assert refused.feedback[0].mark is None


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("Fox, Owl", 1.0),
        ("Thieves: Owl, Fox.", 1.0),
        ("Fox\nOwl", 1.0),
        ("Fox, Rat", 0.0),
        ("Fox, Fox", 0.0),
        ("Fox, Owl, Rat", 0.0),
        ("Fox", 0.0),
        ("", 0.0),
    ],
)
def test_an_answer_names_both_thieves_and_nothing_else(answer, worth):
    assert reward(answer) == worth


@pytest.mark.parametrize(("turns", "worth"), [(0, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)])
def test_an_answer_counts_once_every_page_was_turned(turns, worth):
    assert reward("Fox, Owl", turns) == worth


def test_the_anchor_is_how_far_the_book_was_read_and_what_was_told():
    anchors = [transition.anchor for transition in steps(*[TURN] * 5)]
    assert anchors[:4] == [f"{n} | {text}" for n, text in enumerate([*book(TASK), LAST], start=1)][:3] + [
        f"3 | {LAST}"
    ]
    assert anchors[3] == anchors[4]


def test_the_checker_finds_nothing_wrong():
    report = check_env(Guestbook, Guestbook.tasks("eval"), resets=20, episodes=4)
    assert {check.name: check.status for check in report.checks if check.status != "passed"} == {
        "stop_flags": "warned"  # who turns pages for ever is left to the run's own limit
    }
    assert report.scores["oracle"].mean == 1.0 and report.scores["random"].mean < 0.2


# --- its tasks ----------------------------------------------------------------------------------------


def test_the_task_sets():
    train, evaluation = Guestbook.tasks("train"), Guestbook.tasks("eval")
    assert (len(train), len(evaluation)) == (4096, 240)
    assert Counter(task.data["pages"] for task in evaluation) == dict.fromkeys(LENGTHS, 48)
    assert len({task.id for task in (*train, *evaluation)}) == 4096 + 240
    assert evaluation == Guestbook.tasks("eval")
    short, short_eval = Guestbook.tasks("short"), Guestbook.tasks("short_eval")
    assert Counter(task.data["pages"] for task in short_eval) == {4: 48, 5: 96, 6: 96}
    assert {task.data["pages"] for task in short} == {4, 5, 6}
    primer = Guestbook.tasks("primer")
    guests = {text.count(",") + 1 for task in primer for text in book(task)}
    assert guests == set(range(1, 28)) and {task.data["pages"] for task in primer} == {2, 3, 4}
    asked = [{frozenset(task.data["thieves"]) for task in tasks} for tasks in (train, short, primer)]
    held_out = {frozenset(task.data["thieves"]) for task in (*evaluation, *short_eval)}
    assert not held_out & set().union(*asked)
    with pytest.raises(TaskError, match="unknown Guestbook task set 'evl'. Did you mean 'eval'?"):
        Guestbook.tasks("evl")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.lists(st.integers(2, 9), min_size=1, max_size=4))
def test_splits_share_no_two_thieves_whatever_the_seeds(one, other, lengths):
    train = guestbook_tasks("train", count=40, seed=one, lengths=lengths)
    evaluation = guestbook_tasks("eval", count=40, seed=other, lengths=lengths)
    assert not {frozenset(t.data["thieves"]) for t in train} & {
        frozenset(t.data["thieves"]) for t in evaluation
    }
    assert len({task_hash(task) for task in (*train, *evaluation)}) == 80
    for index, task in enumerate(train):
        thieves = task.data["thieves"]
        one, two = thieves
        assert task.data["pages"] == lengths[index % len(lengths)]
        assert thieves[one] < thieves[two]
        assert re.fullmatch(r"[A-Z]\w+ [A-Z]\w+: which two thieves slept there\?", task.prompt)
        assert task.answer == f"{one}, {two}"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([ENTRIES, (1, 1), (3, 60)]))
def test_a_book_names_the_two_thieves_once_each_where_the_task_says(seed, entries_of_a_page):
    (task,) = guestbook_tasks("train", count=1, seed=seed, entries=entries_of_a_page)
    fewest, most = entries_of_a_page
    pages = book(task)
    assert len(pages) == task.data["pages"] and pages == book(task)
    for name, page in task.data["thieves"].items():
        assert [n for n, text in enumerate(pages) if re.search(rf"\b{name}\b", text)] == [page]
        assert re.search(rf"\bthief {name} \d\b", pages[page])
    assert sum(text.count("thief") for text in pages) == 2
    for text in pages:
        found = re.fullmatch(r"Page \d+\. (.+?\.) Rooms: (.+?)\. (.+?\.)", text)
        entries = [entry.removeprefix("thief ").split(" ") for entry in found[2].split(", ")]
        assert {found[1], found[3]} <= set(REMARKS) and fewest <= len(entries) <= most
        assert all(guest in (*GUESTS, *THIEVES) and int(room) in ROOMS for guest, room in entries)
        assert len({guest for guest, _ in entries}) == len(entries)


def test_the_pages_that_matter_lie_anywhere():
    places = Counter(
        page
        for task in guestbook_tasks("train", count=2000, lengths=(10,))
        for page in task.data["thieves"].values()
    )
    assert set(places) == set(range(10)) and all(300 < count < 500 for count in places.values()), places


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"split": "test"}, "unknown Guestbook split 'test'"),
        ({"lengths": ()}, "lengths must be"),
        ({"lengths": (9, 1)}, r"from 2 up, got \[9, 1\]"),
        ({"count": 0}, "count must be at least 1"),
        ({"entries": (0, 9)}, r"1 to 60; got \(0, 9\)"),
        ({"entries": (9, 61)}, r"1 to 60; got \(9, 61\)"),
        ({"entries": (9, 8)}, r"1 to 60; got \(9, 8\)"),
    ],
)
def test_tasks_that_cannot_be_made_are_refused(arguments, reason):
    with pytest.raises(TaskError, match=reason):
        guestbook_tasks(**{"split": "train", "count": 1, **arguments})


# --- its reader ---------------------------------------------------------------------------------------


def shown(*told: str) -> list[Message]:
    pages = [Message(role="tool", content=text) for text in told]
    return [Message(role="user", content=TASK.prompt), *pages]


def test_the_reader_turns_pages_to_the_end_and_answers_with_what_it_is_shown():
    reader = Reader(seed=0)
    page = "Page 1. Rooms: Zoe 2, thief Fox 4, Tom 9, thief Owl 7."
    assert reader.act(shown()).calls == reader.act(shown(page)).calls == (("turn", {}),)
    assert reader.act(shown(page, LAST)).text == "Thieves: Fox, Owl"
    summary = Message(role="user", content="So far:\nThieves: Fox. The end.")
    assert re.fullmatch(r"Thieves: Fox, [A-Z][a-z]+", reader.act([*shown(), summary]).text)
    assert reader.act([*shown(), summary, *shown("Rooms: thief Owl 7.")[1:]]).text == "Thieves: Fox, Owl"


def test_what_it_is_not_shown_it_guesses_any_name_as_often():
    answers = [Reader(seed=seed).act(shown("Rooms: thief Fox 4.", LAST)).text for seed in range(2300)]
    guessed = Counter(answer.removeprefix("Thieves: Fox, ") for answer in answers)
    assert set(guessed) == set(THIEVES) - {"Fox"} and all(60 < count < 145 for count in guessed.values())


def test_its_summary_is_one_line_of_what_it_knows():
    reader = Reader(seed=0)
    assert reader.summarise(shown()) == "Thieves: none"
    assert reader.summarise(shown("Rooms: Otto 3, thief Owl 7, Adam 2.")) == "Thieves: Owl"
    assert reader.summarise(shown("Thieves: Owl", "Rooms: Ada 2.")) == "Thieves: Owl"
    told = shown("Thieves: Fox", "Rooms: thief Owl 7.", LAST)
    assert reader.summarise(told) == "Thieves: Fox, Owl. The end."


def test_a_forgetful_reader_leaves_out_and_a_careless_one_misnames():
    told = shown("Rooms: thief Fox 4, thief Owl 7.")
    summaries = [Reader(seed=seed, forgetful=0.3).summarise(told) for seed in range(400)]
    assert 0.2 < sum("Fox" not in line for line in summaries) / 400 < 0.4
    assert 0.4 < summaries.count("Thieves: Fox, Owl") / 400 < 0.58
    answers = [Reader(seed=seed, careless=0.3).act([*told, *shown(LAST)[1:]]).text for seed in range(400)]
    assert 0.2 < sum("Fox" not in line for line in answers) / 400 < 0.4
    assert all(re.fullmatch(r"Thieves: [A-Z][a-z]+, [A-Z][a-z]+", line) for line in answers)


def test_the_reader_refuses_what_it_cannot_do():
    with pytest.raises(EnvError, match="no message asks for two thieves"):
        Reader(seed=0).act([Message(role="user", content=f"Hello. {LAST}")])
    with pytest.raises(ConfigError, match="forgetful is a probability, from 0 to 1, got 1.5"):
        Reader(seed=0, forgetful=1.5)


# --- the claim ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def renderer():
    return calibration.make_renderer(calibration.read(guestbook_tasks("train", count=20)))


WINDOWS = {"whole": (10, 19, 20, 21), "short": (3, 4, 5, 6)}
"""Rounds of sliding windows; the best is the third."""


@pytest.fixture(scope="module", params=list(WINDOWS))
def scale(request):
    return request.param


@pytest.fixture(scope="module")
def success(renderer, scale):
    """Success of the perfect reader by rule, over 300 books of the evaluation's kind."""
    lengths, max_context = calibration.SCALES[scale]
    books = calibration.read(guestbook_tasks("eval", count=300, lengths=lengths))
    rules: dict[str, ContextRule] = {
        "append_only": AppendOnly(),
        "evidence": Evidence(),
        "llm_summary": LlmSummary(**calibration.RECIPE.context.args),
        **{f"window {rounds}": SlidingWindow(rounds=rounds) for rounds in WINDOWS[scale]},
    }
    prompts = calibration.Prompts(renderer)
    return {name: calibration.measure(rule, books, prompts, max_context) for name, rule in rules.items()}


def test_evidence_and_summaries_are_enough(success, scale):
    assert success["evidence"]["success"] >= 0.9
    assert success["llm_summary"]["success"] >= 0.9
    tokens = success["llm_summary"]["prompt_tokens"] / success["append_only"]["prompt_tokens"]
    assert tokens <= (0.25 if scale == "whole" else 0.9)


def test_append_only_runs_out_of_context_on_more_than_half_of_the_books(success):
    assert success["append_only"]["success"] <= 0.5 <= success["append_only"]["truncated"]
    assert success["append_only"]["success"] > 0.0  # the shortest fit


def test_no_window_holds_what_matters(success, scale):
    """A smaller window sees less; a larger one no longer fits."""
    windows = {name: figures for name, figures in success.items() if name.startswith("window")}
    best = max(windows, key=lambda name: windows[name]["success"])
    least, less, most, wider = (windows[f"window {rounds}"] for rounds in WINDOWS[scale])
    assert windows[best] is most and most["success"] <= 0.75
    assert least["success"] < less["success"] < most["success"]
    assert wider["truncated"] >= 0.5


@pytest.mark.parametrize(
    "rule",
    [
        AppendOnly(),
        SlidingWindow(rounds=18),
        TokenBudget(tokens=1000),
        Evidence(),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_the_calibration_counts_what_episodes_are(rule: ContextRule, renderer):
    """The same books through the session of a rollout: the same successes, ends and prompts."""
    tasks: Sequence[Task] = guestbook_tasks("eval", count=4, seed=3)
    _, max_context = calibration.SCALES["whole"]
    groups = demonstrate(
        Guestbook,
        lambda _: calibration.READER,
        tasks,
        renderer=renderer,
        context=rule,
        max_context=max_context,
        max_steps=calibration.RECIPE.rollout.max_steps,
    )
    played = [group.trajectories[0] for group in groups]
    found = calibration.measure(rule, calibration.read(tasks), calibration.Prompts(renderer), max_context)
    assert found == {
        "success": sum(t.reward == 1.0 for t in played) / 4,
        "truncated": sum(t.stop_reason is StopReason.CONTEXT_FULL for t in played) / 4,
        "prompt_tokens": sum(len(step.prompt_ids) for t in played for step in t.steps) / 4,
    }
