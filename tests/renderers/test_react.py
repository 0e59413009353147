"""What the ReAct format reads as an action, what it refuses, and what becomes of a turn that goes on."""

from __future__ import annotations

from typing import Any

import pytest
from formats import executed, malformed, reasons
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.renderers import ReactFormat

F = ReactFormat({"search": "query"})
GOOD = 'Action: f\nAction Input: {"x": 1}'
CALLED = ("f", {"x": 1})


def test_reads_an_action_and_where_it_stands() -> None:
    (parsed,) = F.parse(f"Thought: I look.\n{GOOD}\n", "stop")
    assert (parsed.start, parsed.end) == (17, 17 + len(GOOD))
    assert executed(F, f"Thought: I look.\n{GOOD}\n") == [CALLED]


@pytest.mark.parametrize(
    "text", ["who?", "two\nlines\n\nand a third", "a: b", "[1]", '"quoted"', "Then Action: x"]
)
def test_bare_text_is_the_argument_of_a_tool_that_has_one(text: str) -> None:
    assert executed(F, f"Action: search\nAction Input: {text}\n") == [("search", {"query": text})]
    assert executed(F, f"Action: search\nAction Input:\n{text}\nThought: so") == [("search", {"query": text})]


def test_a_json_object_is_one_for_every_tool() -> None:
    assert executed(F, 'Action: search\nAction Input: {"query": "who?", "n": 2}') == [
        ("search", {"query": "who?", "n": 2})
    ]


def test_lines_in_a_json_string_are_text() -> None:
    input_ = '{"x": "a\\nAction: rm\\nAction Input: {}<think>"}'
    assert executed(F, f"Action: f\nAction Input: {input_}") == [
        ("f", {"x": "a\nAction: rm\nAction Input: {}<think>"})
    ]


@pytest.mark.parametrize("end", ["\nObservation:", "\nObservation: ", "\nObservation:\n", "\n\nObservation:"])
def test_a_turn_may_end_where_the_environment_writes_on(end: str) -> None:
    assert executed(F, GOOD + end) == [CALLED]
    assert reasons(F, GOOD + end) == ["f"]


def test_who_writes_the_observation_is_stopped_there() -> None:
    made_up = f"Observation: 3\nThought: so\n{GOOD}\nObservation:"
    first, second = F.parse(f"{GOOD}\n{made_up}", "stop")
    assert executed(F, f"{GOOD}\n{made_up}") == [CALLED]
    assert (second.start, second.end) == (first.end + 1, first.end + 1 + len(made_up))
    assert reasons(F, made_up) == [
        "Observation: is written by the environment, never by you: stop after Action Input:"
    ]


@pytest.mark.parametrize("text", ["42", "Thought: done\nFinal Answer: 42", f"Final Answer: I wrote\n{GOOD}"])
def test_an_answer_holds_no_call(text: str) -> None:
    assert F.parse(text, "stop") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Action: search[x]", "must be followed by the name of a tool and nothing else"),
        ('Action: search("x")\nAction Input: {}', "must be followed by the name of a tool and nothing else"),
        ("Action:\nAction Input: {}", "must be followed by the name of a tool and nothing else"),
        ("Action: `f`\nAction Input: {}", "must be followed by the name of a tool and nothing else"),
        ("Action: f", "the line after Action: must be Action Input:"),
        ("Action: f\nInput: {}", "the line after Action: must be Action Input:"),
        ("Action: f\nThought: x\nAction Input: {}", "the line after Action: must be Action Input:"),
        ("Action Input: {}", "Action Input: stands without Action: before it"),
        ("Action 1: f\nAction Input 1: {}", "'Action 1:' is not Action:"),
        ("**Action:** f\n**Action Input:** {}", "'**Action:**' is not Action:"),
        ("Action: f\nAction Input: x", "must be one JSON object, got 'x'"),
        ("Action: f\nAction Input: [1]", "must be one JSON object, got '[1]'"),
        ("Action: f\nAction Input:", "must be one JSON object, got ''"),
        ("Action: search\nAction Input:\n", "Action Input: is empty"),
        ("Action: f\nAction Input: {'x': 1}", "Python literal"),
        ('Action: f\nAction Input: {"x": 1,}', "trailing comma"),
        ('Action: f\nAction Input: {"x": "a\nb"}', "raw line break"),
        ('Action: f\nAction Input: {"x": 1', "the JSON ends too early"),
        ('Action: search\nAction Input: {"x', "the JSON is not valid"),
        ('Action: f\nAction Input: {"x": 1, "x": 2}', "'x' stands twice"),
        ('Action: f\nAction Input: {"x": 1} please', "nothing may follow the JSON object"),
    ],
)
def test_malformed_actions_say_what_to_change(text: str, reason: str) -> None:
    call = malformed(F, text)
    assert reason in call.reason and "Write two lines, Action: tool_name and Action Input: {" in call.reason
    assert call.raw.strip() == text.strip()


def test_nothing_behind_a_malformed_action_is_run() -> None:
    assert executed(F, f"{GOOD}\nAction: f(1)\n{GOOD}") == [CALLED]
    raw_line_break = 'Action: f\nAction Input: {"x": "say\nAction: rm\nAction Input: {}"}'
    assert reasons(F, raw_line_break)[0].startswith("a string holds a raw line break")
    assert executed(F, raw_line_break) == []


@pytest.mark.parametrize("cut", range(len("Action:"), len(GOOD)))
def test_an_action_cut_at_max_tokens_is_flagged(cut: int) -> None:
    assert malformed(F, GOOD[:cut], "length").reason.startswith("cut at max tokens")


def test_bare_text_that_is_cut_is_not_run_and_json_that_is_whole_is() -> None:
    assert malformed(F, "Action: search\nAction Input: who", "length").reason.startswith("cut at max tokens")
    assert executed(F, GOOD, "length") == [CALLED]
    assert "name of a tool" in malformed(F, "Action: f(1)\nAction Input: {", "length").reason


def test_the_input_is_written_bare_where_it_can_be() -> None:
    assert F.write("", [("search", {"query": "who?"})]) == "Action: search\nAction Input: who?"
    for text in ("", " x", "{x}", "a\nAction: b", "a <think> b", "x\nObservation: y"):
        written = F.write("Thought: hm", [("search", {"query": text})])
        assert "Action Input: {" in written and executed(F, written) == [("search", {"query": text})]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(("f", "search", "look_up", "größe"))


@given(
    st.lists(st.tuples(NAMES, st.dictionaries(st.text() | st.just("query"), JSON, max_size=3)), max_size=3)
)
@settings(deadline=None)
def test_any_arguments_are_read_back(calls: list[tuple[str, Any]]) -> None:
    assert executed(F, F.write("Thought: so", calls)) == calls


@pytest.mark.parametrize("text", [GOOD, "Observation: 3", "Action: x"])
def test_a_text_that_would_be_read_as_an_action_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        F.write(text, [])


def test_bare_names_arguments() -> None:
    wrong: Any = {"search": 3}
    with pytest.raises(ConfigError, match="bare maps tools to arguments"):
        ReactFormat(wrong)
