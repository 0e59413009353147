"""HotpotQA: an episode in two formats through the real session, its rewards, anchors and marks, its corpora
and its oracle."""

import asyncio
import inspect
import os
import re
import tomllib
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import Recorder, call, members, only, play, renderer
from questions import BAMBOOGLE, HOTPOT, MUSIQUE, OWN, WIKI2, lines_of
from tiny import tiny_tokenizer

from steprl import check_env
from steprl.context import AppendOnly, Evidence
from steprl.envs.hotpotqa import HotpotQA
from steprl.envs.hotpotqa_demos import Searcher, names_in, next_query
from steprl.errors import ConfigError, TaskError
from steprl.renderers import ChatRenderer, HermesFormat, TagsFormat
from steprl.trainers.imitation.demonstrate import demonstrate
from steprl.types import Action, Message, StopReason, ToolCall

SHARED = Path(os.environ.get("STEPRL_SHARED", Path(__file__).parents[3] / "shared"))
MINI = SHARED / "data/hotpotqa/hotpotqa_mini.jsonl.xz"
needs_mini = pytest.mark.skipif(not MINI.is_file(), reason="needs the HotpotQA file (STEPRL_SHARED)")

BIT = "1. Otto Bit\nOtto Bit married Ada Byte."
BYTE = "1. Ada Byte\nAda Byte was born in Kappa."


@pytest.fixture
def source(tmp_path):
    return str(lines_of(tmp_path / "questions.jsonl", OWN, HOTPOT, WIKI2, MUSIQUE))


@pytest.fixture
def task(source):
    return HotpotQA.tasks(source)[0]


def say(text):
    return Action(text=text, token_ids=(1,))


def searched(*queries):
    calls = [ToolCall(name="search", arguments={"query": q}, id=f"call_{n}") for n, q in enumerate(queries)]
    return Action(text="", token_ids=(1,), tool_calls=tuple(calls))


def steps(task, *actions, **options):
    async def episode():
        env = HotpotQA(**options)
        await env.reset(task, seed=0)
        return [await env.step(action) for action in actions]

    return asyncio.run(episode())


def contents(transition):
    return [message.content for message in transition.feedback]


# --- episodes -----------------------------------------------------------------------------------------


def test_an_episode_in_tool_calls(task):
    script = [
        call("search", query="married Otto"),
        call("search", query="Ada"),
        "<answer>Kappa Town</answer>",
    ]
    engine = Recorder(script)
    trajectory = only(play(partial(HotpotQA, results=1), engine, [task]))
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert [message.content for step in trajectory.steps for message in step.feedback] == [BIT, BYTE]
    assert trajectory.steps[-1].rewards == {"outcome": 1.0, "f1": 1.0, "format": 1.0}
    assert trajectory.steps[-1].reward == 3.0
    opening = renderer().decode(engine.asked[0][1])
    assert "In which town was the wife of Otto Bit born?" in opening and "search" in opening
    assert "Lambda" not in opening and "supporting" not in renderer().decode(engine.asked[2][1])


def test_an_episode_in_tags(task):
    tags = ChatRenderer(tiny_tokenizer(), TagsFormat())
    script = [
        "Who is she? <search>married Otto</search>",
        "<search>Ada Byte <search>",
        "<search>Ada</search>",
        "So it is <answer>kappa</answer>",
    ]
    engine = Recorder(script)
    trajectory = only(play(partial(HotpotQA, results=1), engine, [task], renderer=tags))
    assert trajectory.stop_reason is StopReason.TERMINATED
    first, broken, second, last = trajectory.steps
    assert [first.feedback[0].content, second.feedback[0].content] == [BIT, BYTE]
    assert broken.feedback[0].content.startswith("Error: malformed tool call: <search> is not closed")
    assert last.rewards == {"outcome": 1.0, "f1": 1.0, "format": 1.0}
    prompts = [tags.decode(ids) for _, ids, _ in engine.asked]
    assert "write <search>query</search> and stop" in prompts[0]
    assert f"<information>{BIT}</information>" in prompts[1]


def test_the_opening_word_for_word(task):
    opening = asyncio.run(HotpotQA().reset(task, seed=0))
    assert [(message.role, message.content) for message in opening] == [
        ("system", HotpotQA.system_prompt),
        ("user", "In which town was the wife of Otto Bit born?"),
    ]
    assert "<answer>answer</answer>" in HotpotQA.system_prompt


def test_what_a_search_without_results_or_words_is_told(task):
    nothing, wordless, answered = steps(task, searched("zyzzyva"), searched(" ?"), say("Kappa"))
    assert contents(nothing) == ["No results for 'zyzzyva'. Try other words, fewer of them, or a name."]
    assert contents(wordless) == [
        "Error: the query ' ?' holds no word. Write what to look for, such as a name."
    ]
    assert answered.terminated


@pytest.mark.parametrize(
    ("text", "outcome", "f1", "format"),
    [
        ("<answer>Kappa</answer>", 1.0, 1.0, 1.0),
        ("<think>Or <answer>Lambda</answer></think>It is <answer>the kappa town.</answer>", 1.0, 1.0, 1.0),
        ("Kappa", 1.0, 1.0, 0.0),
        ("<answer>Lambda</answer> or <answer>Kappa</answer>", 1.0, 1.0, 0.0),
        ("<answer>the town of Kappa</answer>", 0.0, 0.8, 1.0),
        ("It is in Kappa", 0.0, 0.4, 0.0),
        ("<answer>Lambda</answer>", 0.0, 0.0, 1.0),
        ("<answer></answer>", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_rewards(task, text, outcome, f1, format):
    (last,) = steps(task, say(text))
    assert last.terminated
    assert last.rewards == pytest.approx({"outcome": outcome, "f1": f1, "format": format})


def test_a_yes_is_not_a_yes_it_is(source):
    yes = HotpotQA.tasks(source)[2]
    for text, worth in (("Yes.", 1.0), ("yes they were", 0.0), ("no", 0.0)):
        (last,) = steps(yes, say(f"<answer>{text}</answer>"))
        assert (last.rewards["outcome"], last.rewards["f1"]) == (worth, worth)


# --- anchors and marks --------------------------------------------------------------------------------


def test_the_anchor_is_what_has_been_read_whatever_led_there(task):
    one = steps(task, searched("married"), searched("Ada born"), searched("zyzzyva"), results=1)
    other = steps(task, searched("born"), searched("", "Otto Bit"), results=1)
    together = steps(task, searched("born", "Otto"), results=1)
    anchors = [transition.anchor for transition in one]
    assert anchors == ["read: 0 Otto Bit", "read: 0 Otto Bit | 1 Ada Byte", "read: 0 Otto Bit | 1 Ada Byte"]
    assert other[-1].anchor == together[-1].anchor == anchors[-1]
    assert steps(task, searched("zyzzyva"))[0].anchor == "read: "


def test_evidence_is_marked_only_where_it_is_asked_for(task):
    moves = (searched("Lambda", "Ada"), searched("zyzzyva"), searched(""), say("Kappa"))
    plain = steps(task, *moves, results=1)
    assert {message.mark for transition in plain for message in transition.feedback} == {None}
    marked = steps(task, *moves, results=1, mark_evidence=True)
    assert [[message.mark for message in transition.feedback] for transition in marked] == [
        [None, "evidence"],
        [None],
        [None],
        [],
    ]
    assert [contents(transition) for transition in marked] == [contents(transition) for transition in plain]


def test_a_long_result_is_marked_too(tmp_path):
    long = {"title": "Otto Bit", "text": "Otto " * 5000, "supporting": True}
    (task,) = HotpotQA.tasks(str(lines_of(tmp_path / "long.jsonl", {**OWN, "paragraphs": [long]})))
    (transition,) = steps(task, searched("Otto"), mark_evidence=True)
    assert transition.feedback[0].mark == "evidence" and len(transition.feedback[0].content) <= 10_000


def test_the_evidence_rule_keeps_what_is_marked(task):
    script = [call("search", query=q) for q in ("Ada", "Lambda", "far", "zyzzyva")] + [
        "<answer>Kappa</answer>"
    ]
    engine = Recorder(script)
    env = partial(HotpotQA, results=1, mark_evidence=True)
    play(env, engine, [task], context=Evidence(select="marked", keep_last=1))
    shown = renderer().decode(engine.asked[-1][1])
    assert "Ada Byte was born" in shown and "Lambda is a town" not in shown
    play(env, engine := Recorder(script), [task], context=AppendOnly())
    assert "Lambda is a town" in renderer().decode(engine.asked[-1][1])


# --- corpora ------------------------------------------------------------------------------------------


def test_a_corpus_is_shared_by_all_questions(source, tmp_path):
    env = partial(HotpotQA, corpus=source, cache=str(tmp_path / "cache"), results=2)
    own, hotpot, *_ = HotpotQA.tasks(source)
    (alone,) = steps(own, searched("director"))
    assert contents(alone)[0].startswith("No results")
    for task in (own, hotpot):
        (shared,) = steps(task, searched("Danny Cannon director"), **env.keywords)
        assert contents(shared)[0].startswith("1. Danny Cannon\n")
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_many_episodes_search_one_corpus_at_once(source, tmp_path):
    script = [call("search", query="Danny Cannon"), call("search", query="Ada"), "<answer>Kappa</answer>"]
    env = partial(HotpotQA, corpus=source, cache=str(tmp_path / "cache"))
    groups = play(env, Recorder(script), HotpotQA.tasks(source), group_size=16, concurrency=64)
    read = {
        tuple(message.content for step in trajectory.steps for message in step.feedback)
        for trajectory in members(groups)
    }
    assert len(members(groups)) == 64 and len(read) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_questions_without_paragraphs_need_a_corpus(tmp_path):
    (task,) = HotpotQA.tasks(str(lines_of(tmp_path / "bamboogle.jsonl", BAMBOOGLE)))
    with pytest.raises(ConfigError, match=r"comes without paragraphs. Give a corpus to search in"):
        steps(task, say("Otto"))
    wiki = lines_of(tmp_path / "wiki.jsonl", {"title": "Kappa", "text": "Founded in 12 by Otto the First."})
    options = {"corpus": str(wiki), "cache": str(tmp_path / "cache")}
    found, answered = steps(task, searched("founded 12"), say("<answer>Otto the First</answer>"), **options)
    assert contents(found) == ["1. Kappa\nFounded in 12 by Otto the First."]
    assert answered.rewards["outcome"] == 1.0


def test_a_corpus_that_changes_is_read_again(task, tmp_path):
    wiki = lines_of(tmp_path / "wiki.jsonl", {"title": "A", "text": "old"})
    options = {"corpus": str(wiki), "cache": str(tmp_path / "cache")}
    assert contents(steps(task, searched("old"), **options)[0]) == ["1. A\nold"]
    lines_of(wiki, {"title": "A", "text": "newer"})
    assert contents(steps(task, searched("newer"), **options)[0]) == ["1. A\nnewer"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "absent.json"}, "there is no corpus 'absent.json'"),
        ({"results": 0}, "results must be at least 1, got 0"),
        ({"results": 21}, "results must be at most 20, got 21"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        HotpotQA(**options)


@pytest.mark.parametrize("source", ["", "absent/dev.json"])
def test_without_the_file_it_says_where_it_is(source):
    with pytest.raises(TaskError, match=r"hotpot_dev_distractor_v1.json, are linked from hotpotqa.github.io"):
        HotpotQA.tasks(source)


# --- its page -----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "hotpotqa.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_searches():
    page = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)), page)
    (search,) = page["Felines"].tools
    assert asyncio.run(search.run({"query": "spots"})) == "1. Ocelot\nAn ocelot has spots."


def test_the_page_names_every_option():
    options = inspect.signature(HotpotQA).parameters
    recipe = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)[0])
    assert set(recipe["env"]["args"]) <= set(options)
    assert set(re.findall(r"^\| `(\w+)` \| (?:`|\d+ \||false)", PAGE, flags=re.MULTILINE)) == set(options)


# --- the oracle ---------------------------------------------------------------------------------------


def test_the_oracle_searches_for_the_question_then_for_names_and_stops_when_it_has_read_the_answer(task):
    question = Message(role="user", content=task.prompt)
    oracle = HotpotQA.oracle(task)
    first = oracle.act([question])
    assert first.calls == (("search", {"query": task.prompt}),)
    told = Message(role="tool", content=BIT, name="search")
    assert oracle.act([question, told]).calls == (("search", {"query": "Ada Byte"}),)
    both = [question, told, Message(role="tool", content=BYTE, name="search")]
    assert oracle.act(both).text == "<answer>Kappa</answer>" and not oracle.act(both).calls
    assert Searcher(answer="Kappa", searches=1).act([question, told]).text == "<answer>Kappa</answer>"
    with pytest.raises(ConfigError, match="searches must be at least 1, got 0"):
        Searcher(answer="Kappa", searches=0)


def test_what_it_searches_for_does_not_depend_on_the_answer(task):
    question, told = Message(role="user", content=task.prompt), Message(role="tool", content=BIT)
    queries = {
        Searcher(answer=answer).act([question, told]).calls[0][1]["query"] for answer in ("no", "X", "Y")
    }
    assert queries == {"Ada Byte"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Who is Ada Byte?", ["Ada Byte"]),
        ("In the film Kiss and Tell, by S. Sylvan Simon.", ["Kiss and Tell", "S. Sylvan Simon"]),
        ("The Bank of England's head. In 1993 he left.", ["Bank of England"]),
        ("Ada. Ada Byte. Ada", ["Ada", "Ada Byte"]),
        ("nothing here, 12 or 13", []),
        ("", []),
    ],
)
def test_names(text, names):
    assert names_in(text) == names


@given(
    st.text(alphabet="aAbB .'’-12\n", max_size=40), st.lists(st.text("AB ab.\n1", max_size=20), max_size=3)
)
def test_no_text_breaks_the_searcher_and_it_never_searches_twice_for_the_same(question, read):
    queries = [next_query(question, read[:count]) for count in range(len(read) + 1)]
    assert queries[0] == question
    made = [query for query in queries if query is not None]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("format", [HermesFormat(), TagsFormat()], ids=["hermes", "tags"])
def test_the_oracle_demonstrates_in_both_formats(source, format):
    shown = ChatRenderer(tiny_tokenizer(), format)
    tasks = HotpotQA.tasks(source)
    groups = demonstrate(HotpotQA, HotpotQA.oracle, tasks, renderer=shown, context=AppendOnly())
    assert [trajectory.steps[-1].reward for trajectory in members(groups)] == [3.0] * len(tasks)


def test_the_checker_finds_nothing_wrong(source, tmp_path):
    tasks = HotpotQA.tasks(source)
    shared = partial(HotpotQA, corpus=source, cache=str(tmp_path / "cache"), mark_evidence=True)
    for env in (HotpotQA, shared):
        report = check_env(env, tasks, resets=5, episodes=8, max_steps=8)
        warned = {check.name for check in report.checks if check.status != "passed"}
        assert warned <= {"stop_flags"}, report  # it has no horizon of its own
        assert report.scores["oracle"].mean == 3.0 and report.scores["null"].mean == 0.0


@needs_mini
def test_the_checker_finds_nothing_wrong_with_the_real_file(tmp_path):
    tasks = HotpotQA.tasks(str(MINI))
    env = partial(HotpotQA, corpus=str(MINI), cache=str(tmp_path), results=3)
    report = check_env(env, tasks, resets=5, episodes=4)
    assert {check.name for check in report.checks if check.status != "passed"} <= {"stop_flags"}, report
    assert report.scores["oracle"].mean == 3.0
