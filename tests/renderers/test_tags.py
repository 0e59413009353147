"""What the tags of Search-R1 are read as, and what becomes of those that do not match."""

from __future__ import annotations

from typing import Any

import pytest
from formats import executed, malformed, reasons
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.renderers import TagsFormat

F = TagsFormat({"search": "query", "look-up": "name"})
GOOD = "<search>who?</search>"
CALLED = ("search", {"query": "who?"})


def test_reads_a_call_and_where_it_stands() -> None:
    (parsed,) = F.parse(f"I look.\n{GOOD} ok", "stop")
    assert (parsed.start, parsed.end) == (8, 8 + len(GOOD))
    assert executed(F, f"{GOOD}<look-up>Ada</look-up>") == [CALLED, ("look-up", {"name": "Ada"})]


def test_the_white_space_around_the_argument_is_not_part_of_it() -> None:
    assert executed(F, "<search> \n who \n is?\t</search>") == [("search", {"query": "who \n is?"})]


def test_other_tags_are_text() -> None:
    assert executed(F, "<search>a <b>x</b> < c</search><find>y</find>") == [
        ("search", {"query": "a <b>x</b> < c"})
    ]
    assert F.parse("<searching>x</searching> <Search>y</Search>", "stop") == ()


def test_an_answer_holds_no_call() -> None:
    assert F.parse(f"<answer>write {GOOD}</answer>", "stop") == ()
    assert executed(F, f"{GOOD}<answer>x</answer>{GOOD}") == [CALLED, CALLED]
    assert executed(F, f"I will write <answer> in the end. {GOOD}") == [CALLED]  # a word, and no answer


@pytest.mark.parametrize("end", ["<information>", "\n<information>\n", "</information>"])
def test_a_turn_may_end_where_the_environment_writes_on(end: str) -> None:
    assert reasons(F, GOOD + end) == ["search"]


def test_who_writes_the_information_is_stopped_there() -> None:
    made_up = f"<information>Ada</information>{GOOD}<answer>Ada</answer>"
    first, second = F.parse(GOOD + made_up, "stop")
    assert (first.end, second.end) == (second.start, len(GOOD + made_up))
    assert reasons(F, made_up) == [
        "<information> is written by the environment, never by you: stop after your call"
    ]


@pytest.mark.parametrize(
    ("text", "raw", "reason"),
    [
        ("<search>who?", "<search>who?", "<search> is not closed by </search>."),
        (
            "<search>who?</look-up>",
            "<search>who?</look-up>",
            "by </search> before </look-up>: tags hold text",
        ),
        ("<search>a<answer>b</answer>", "<search>a<answer>b</answer>", "before <answer>"),
        ("<search>a <look-up>b</look-up></search>", None, "before <look-up>"),
        ("<search></search>", None, "nothing stands in <search>"),
        ("<search> \n </search>", None, "nothing stands in <search>"),
        ("who?</search>", "</search>", "</search> stands without <search> before it"),
        ('<search query="who?"/>', None, "is not <search>"),
        ('<search n="2">who?</search>', None, "'<search n=\"2\">' is not <search>"),
        ("<search/>", None, "'<search/>' is not <search>"),
    ],
)
def test_malformed_calls_say_what_to_change(text: str, raw: str | None, reason: str) -> None:
    call = malformed(F, text)
    assert reason in call.reason and "Write <search>query</search>" in call.reason
    assert call.raw == (raw or text)


def test_nothing_inside_a_broken_call_is_run() -> None:
    assert executed(F, f"<search>what does {GOOD} do</search>") == []
    assert executed(F, f"<search n=2>what does {GOOD} do</search>") == []
    assert executed(F, f"<search><look-up>b</look-up></search> {GOOD}") == [CALLED]


@pytest.mark.parametrize("cut", range(len("<search>"), len(GOOD)))
def test_a_call_cut_at_max_tokens_is_flagged(cut: int) -> None:
    assert malformed(F, GOOD[:cut], "length").reason.startswith("cut at max tokens")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<")).map(str.strip).filter(bool))
@settings(deadline=None)
def test_any_text_without_outer_white_space_is_read_back(text: str) -> None:
    assert executed(F, F.write("So:", [("search", {"query": text})])) == [("search", {"query": text})]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            [("find", {"query": "x"})],
            r"has no tag; those that do: search\(query: text\), look-up\(name: text\)",
        ),
        ([("search", {"name": "x"})], "has no tag"),
        ([("search", {"query": "x", "n": 2})], "has no tag"),
        ([("search", {"query": 3})], "has no tag"),
        ([("search", {"query": " x"})], "would be read as"),
        ([("search", {"query": ""})], "nothing stands in <search>"),
        ([("search", {"query": GOOD})], "cannot be read as a call"),
    ],
)
def test_what_would_not_be_read_back_is_refused(calls: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        F.write("", calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": {}}, "tools maps each tool to its argument"),
        ({"tools": {"search": 1}}, "tools maps each tool to its argument"),
        ({"tools": {"a b": "x"}}, "'a b' cannot be a tag"),
        ({"tools": {"think": "x"}}, "'think' cannot be a tag"),
        ({"tools": {"answer": "x"}}, "the tag 'answer' stands for two things"),
        ({"answer": "information"}, "the tag 'information' stands for two things"),
    ],
)
def test_tags_that_cannot_be_told_apart_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TagsFormat(**options)


def test_the_tags_of_answers_and_results_are_options() -> None:
    other = TagsFormat({"search": "query"}, answer="result", information="result-of-search")
    assert executed(other, f"<result>{GOOD}</result>") == []
    assert reasons(other, "<result-of-search>x")[0].startswith("<result-of-search> is written by the env")
    assert other.feedback("x") == "<result-of-search>x</result-of-search>"
    assert executed(other, f"<answer>{GOOD}</answer>") == [CALLED]
