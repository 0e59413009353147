"""What the JSON format of Llama 3.1 takes for calls, for malformed ones, and for prose."""

from __future__ import annotations

import json
from typing import Any

import pytest
from formats import executed, malformed, reasons
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.renderers import Llama3JsonFormat

F = Llama3JsonFormat()
GOOD = '{"name": "f", "parameters": {"x": 1}}'
CALLED = ("f", {"x": 1})


def test_the_whole_text_is_the_call() -> None:
    assert executed(F, GOOD) == [CALLED]
    assert executed(F, f" \n{GOOD}\n") == [CALLED]
    (parsed,) = F.parse(f"\n{GOOD}\n", "stop")
    assert (parsed.start, parsed.end) == (1, 1 + len(GOOD))


def test_the_python_tag_belongs_to_the_call_and_the_end_of_message_does_not() -> None:
    text = f"<|python_tag|>{GOOD}<|eom_id|>"
    (parsed,) = F.parse(text, "stop")
    assert text[parsed.start : parsed.end] == f"<|python_tag|>{GOOD}"
    assert executed(F, text) == [CALLED]


@pytest.mark.parametrize("between", [";", "; ", "\n;\n", "; <|python_tag|>"])
def test_a_semicolon_separates_calls(between: str) -> None:
    text = f"{GOOD}{between}{GOOD}"
    assert executed(F, text) == [CALLED, CALLED]
    assert F.parse(text, "stop")[1].end == len(text)


def test_a_semicolon_or_brace_in_a_string_is_text() -> None:
    call = json.dumps({"name": "f", "parameters": {"x": f"; {GOOD} }} <think>"}})
    assert executed(F, call) == [("f", {"x": f"; {GOOD} }} <think>"})]


@pytest.mark.parametrize(
    "text",
    [
        "42",
        f"Sure: {GOOD}",
        f"```json\n{GOOD}\n```",
        '{"answer": 42}',
        '{"type": "circle"}',
        "{}",
        "[1, 2]",
        "{x",
        "<think>hm</think> The answer is {name}",
        "",
    ],
)
def test_any_other_text_is_prose(text: str) -> None:
    assert F.parse(text, "stop") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "f"}', "the key 'parameters' is missing; without arguments write {}"),
        ('{"name": "f", "arguments": {}}', "the key 'parameters' is missing (found 'arguments')"),
        ('{"name": "f", "parameters": {}, "id": 1}', "unknown key 'id': a call has only name and parameters"),
        ('{"parameters": {}}', "the key 'name' is missing"),
        ('{"name": "f", "parameters": "{}"}', "'parameters' must be a JSON object, not a string"),
        ('{"type": "function", "name": "f", "parameters": {}}', "unknown key 'type'"),
        ("{'name': 'f', 'parameters': {}}", "Python literal"),
        ('{name: "f"}', "the JSON is not valid"),
        ('{"name": "f", "parameters": {"x": 1,}}', "trailing comma"),
        ('{"name": "f", "name": "g", "parameters": {}}', "'name' stands twice"),
        ('{"name": "f", "parameters": {}', "the JSON ends too early"),
        (f"[{GOOD}]", "a call must be one JSON object with the keys name and parameters"),
        (f"{GOOD} I hope this helps.", "a call is the whole text, so nothing may follow it but ;"),
        (f"{GOOD};", "a call is the whole text, so nothing may follow it but ;"),
        (f"{GOOD}\n{GOOD}", "a call is the whole text, so nothing may follow it but ;"),
        ('<|python_tag|>brave_search.call(query="x")', "the JSON is not valid"),
        ("<|python_tag|>", "the JSON ends too early"),
    ],
)
def test_malformed_calls_say_what_to_change(text: str, reason: str) -> None:
    call = malformed(F, text)
    assert reason in call.reason and 'Write {"name": ' in call.reason
    assert call.raw == text


def test_the_call_before_a_malformed_one_is_run() -> None:
    assert reasons(F, f'{GOOD}; {{"name": "g"}}')[0] == "f"
    assert "'parameters' is missing" in reasons(F, f'{GOOD}; {{"name": "g"}}; {GOOD}')[1]
    assert executed(F, f'{GOOD}; {{"name": "g"}}; {GOOD}') == [CALLED, CALLED]
    assert executed(F, f"{GOOD}; {{'name': {GOOD}") == [CALLED]


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_a_call_cut_at_max_tokens_is_flagged_from_its_first_brace_on(cut: int) -> None:
    assert malformed(F, GOOD[:cut], "length").reason.startswith("cut at max tokens")


def test_what_is_cut_between_two_calls_leaves_the_first_as_it_is() -> None:
    for between in ("", ";", "; ", "; <|python_tag|>"):
        assert executed(F, GOOD + between, "length") == [CALLED]
    assert "nothing may follow" in malformed(F, f"{GOOD}; I", "length").reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3)), max_size=3))
@settings(deadline=None)
def test_any_calls_are_read_back(calls: list[tuple[str, Any]]) -> None:
    assert executed(F, F.write("", calls)) == calls
    assert executed(F, F.write("<think>hm</think>", calls)) == calls


def test_text_and_calls_are_one_or_the_other() -> None:
    assert F.write("42", []) == "42"
    with pytest.raises(
        ConfigError, match="would be read as 0 tool calls, and 1 are meant. Calls are the whole"
    ):
        F.write("Let me look.", [CALLED])
    with pytest.raises(ConfigError, match="would be read as 1 tool calls, and 0 are meant"):
        F.write(GOOD, [])
