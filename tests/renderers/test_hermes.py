"""What the Hermes format reads as a call, what it refuses with which words, and what it never sees."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.registry import resolve
from steprl.renderers import HermesFormat, ParsedCall
from steprl.types import MalformedCall, ToolCall

TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
GOOD = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def parse(text: str, finish: Any = "stop") -> tuple[ParsedCall, ...]:
    return HermesFormat().parse(text, finish)


def executed(text: str, finish: Any = "stop") -> list[tuple[str, Any]]:
    return [(p.call.name, p.call.arguments) for p in parse(text, finish) if isinstance(p.call, ToolCall)]


def malformed(text: str, finish: Any = "stop") -> MalformedCall:
    (parsed,) = parse(text, finish)
    assert isinstance(parsed.call, MalformedCall), parsed
    assert parsed.call.raw == text[parsed.start : parsed.end]
    return parsed.call


def test_it_is_the_registered_format() -> None:
    assert resolve("format", "hermes") is HermesFormat


def test_reads_a_call_and_where_it_stands() -> None:
    text = f"Let me look.\n{GOOD} done"
    assert parse(text) == (
        ParsedCall(ToolCall(name="f", arguments={"x": 1}, id="call_0"), 13, 13 + len(GOOD)),
    )


def test_two_calls_in_one_turn_have_their_own_ids() -> None:
    calls = [p.call for p in parse(GOOD + "<tool_call>{bad}</tool_call>" + GOOD)]
    assert [call.id for call in calls if isinstance(call, ToolCall)] == ["call_0", "call_1"]
    assert isinstance(calls[1], MalformedCall)


@pytest.mark.parametrize("inside", [*TAGS, "}", '"}}</tool_call>', "<think><tool_call>{}", "\\", "a\nb"])
def test_tags_and_braces_in_a_json_string_are_text(inside: str) -> None:
    for given_arguments in ({"x": inside}, {"deep": [{inside: [inside]}]}):
        call = json.dumps({"name": "f", "arguments": given_arguments})
        assert executed(f"<tool_call>{call}</tool_call> {GOOD}") == [("f", given_arguments), ("f", {"x": 1})]


@pytest.mark.parametrize(
    "text",
    [
        f"<think>{GOOD}</think>",
        f"<think>{GOOD}",
        f"{GOOD}</think>",
        f"<think>a</think><think>{GOOD}",
        f"<think>{GOOD}</think>{GOOD}</think>",
        "<think><tool_call>{broken</think>",
        "<tool_call>{broken</think>",
        '<tool_call>{"name": "x\n</think>',
        '<think><tool_call>{"name": "f", "arguments": {"x": "</think>"}}</tool_call></think>',
        "no call at all, <tool_cal",
    ],
)
def test_thinking_is_neither_run_nor_reported(text: str) -> None:
    assert parse(text, "stop") == ()
    assert parse(text, "length") == ()


@pytest.mark.parametrize(
    "thought",
    [
        f"<think>{GOOD}</think>",
        f"draft {GOOD}</think>",
        "draft <tool_call>{</think>",
        'a <tool_call>{"name": "f\n</think>',
        'a <tool_call>{"name": "f </think>\nNow',
        'draft <tool_call>{"name": "x" </think>',
    ],
)
def test_a_call_after_the_thought_is_run(thought: str) -> None:
    (parsed,) = parse(f"{thought} {GOOD}")
    assert isinstance(parsed.call, ToolCall)
    assert parsed.start == len(thought) + 1
    assert parsed.call.id == "call_0"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "f", "arguments": {"x": 1,}}', "trailing comma"),
        ('{"name": "f", "arguments": {"x": [1, ]}}', "trailing comma"),
        ('{"name": "f", "arguments": {},}', "trailing comma"),
        ('{"name": "f"}', "'arguments' is missing"),
        ('{"name": "f", "parameters": {}}', "'arguments' is missing (found 'parameters')"),
        ('{"name": "f", "arguments": null}', "must be a JSON object, got null"),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', "not a string"),
        ('{"name": "f", "arguments": [1]}', "must be a JSON object, got [1]"),
        ('{"arguments": {}}', "'name' is missing"),
        ('{"name": null, "arguments": {}}', "'name' must be"),
        ('{"name": 3, "arguments": {}}', "'name' must be"),
        ('{"name": "", "arguments": {}}', "'name' must be"),
        ('{"name": "f", "arguments": {}, "id": 1}', "unknown key 'id'"),
        ('{"name": "f", "name": "g", "arguments": {}}', "'name' stands twice"),
        ('{"name": "f", "arguments": {"x": 1, "x": 1}}', "'x' stands twice"),
        ('{"name": "f", "arguments": {"x": NaN}}', "NaN is not JSON"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "-Infinity is not JSON"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "out of range"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", "out of range"),
        ('{"name": "f", "arguments": {"x": "\\ud83d"}}', "surrogate"),
        ("{'name': 'f', 'arguments': {}}", "Python literal"),
        ('{"name": "f", "arguments": {"x": True}}', "Python literal"),
        ('{"name": "f", "arguments": {"x": "a\nb"}}', "raw line break"),
        ('{"name": "f", "arguments": {"x": "\\d"}}', "not valid"),
        ('{"name": "f", "arguments": {}', "brace or bracket is missing"),
        ('{"name": "f", "arguments": {}}}', "followed by </tool_call>"),
        ('{"name": "f", "arguments": {}} please', "followed by </tool_call>"),
        ('{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}', "followed by </tool_call>"),
        ('[{"name": "f", "arguments": {}}]', "one JSON object"),
        ('"f"', "one JSON object"),
        ("", "brace or bracket is missing"),
        ("f(x=1)", "not valid"),
        ("[" * 5000, "nested too deeply"),
        ('{"name": "f", "arguments": {"x": ' + "[" * 200 + "]" * 200 + "}}", "nested too deeply"),
    ],
)
def test_malformed_calls_say_what_to_change(body: str, reason: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    call = malformed(text)
    assert reason in call.reason
    assert "Write <tool_call>{" in call.reason or "deeply" in call.reason
    if not body.startswith('{"name": "f", "arguments": {"x": "a'):
        assert call.raw == text
    assert executed(f"{GOOD}{text}{GOOD}") == [("f", {"x": 1})] * 2  # its neighbours are not touched


def test_a_missing_closing_tag_ends_at_the_next_call_or_thought() -> None:
    whole = GOOD.removesuffix("</tool_call>")
    assert "followed by </tool_call>" in malformed(whole).reason
    first, second = parse(whole + GOOD)
    assert isinstance(first.call, MalformedCall)
    assert isinstance(second.call, ToolCall)
    assert (first.end, second.start) == (len(whole), len(whole))
    (only,) = parse(f"{whole}<think>{GOOD}</think></tool_call>")
    assert only.end == len(whole)


def test_nothing_inside_a_broken_call_is_run() -> None:
    quoted = '<tool_call>{"name": "write", "arguments": {"text": "say "' + GOOD + '" ok"}}</tool_call>'
    assert executed(quoted) == []
    assert executed('<tool_call>{"name": "w", "arguments": {"text": "' + GOOD.replace('"', '\\"')) == []


def test_a_tag_named_in_prose_does_not_hide_the_call_after_it() -> None:
    assert executed(f"I write <tool_call> and then: {GOOD}") == [("f", {"x": 1})]


@pytest.mark.parametrize("cut", range(len("<tool_call>"), len(GOOD)))
def test_a_call_cut_at_max_tokens_is_flagged_and_not_run(cut: int) -> None:
    assert malformed(GOOD[:cut], "length").reason.startswith("cut at max tokens")
    first, second = parse(GOOD + GOOD[:cut], "length")
    assert isinstance(first.call, ToolCall)
    assert isinstance(second.call, MalformedCall)
    assert second.call.raw == GOOD[:cut]
    assert malformed(GOOD[:cut], "abort").reason.startswith("cut by an abort")
    assert "cut" not in malformed(GOOD[:cut], "stop").reason


def test_an_ordinary_mistake_before_the_cut_keeps_its_own_reason() -> None:
    assert "trailing comma" in malformed('<tool_call>{"name": "f",}</tool_call> and so', "length").reason


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
strings = st.text() | st.lists(st.sampled_from((*TAGS, '"', "\\", "{", "}", "é😀")) | st.text()).map("".join)
values = st.recursive(
    scalars | strings, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3)
)
arguments = st.dictionaries(strings, values, max_size=3)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, tuple[str, Any]]:
    name, given_arguments = draw(strings.filter(bool)), draw(arguments)
    blank = st.text(alphabet=" \n\t", max_size=2)
    body = json.dumps(
        {"name": name, "arguments": given_arguments},
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.none() | st.just(1)),
    )
    return f"<tool_call>{draw(blank)}{body}{draw(blank)}</tool_call>", (name, given_arguments)


prose = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<"))
broken = st.sampled_from(
    ("<tool_call>{]</tool_call>", "<tool_call>{'a': 1}</tool_call>", "<tool_call></tool_call>")
)
drafts = st.lists(prose | calls().map(lambda c: c[0]) | broken | st.just("<tool_call>")).map(
    lambda parts: "<think>" + "".join(parts).replace("</think>", "") + "</think>"
)


@given(st.lists(calls() | (prose | drafts | broken).map(lambda text: (text, None))))
@settings(deadline=None, max_examples=60)
def test_executed_are_exactly_the_well_formed_ones_outside_thinking(parts: list[tuple[str, Any]]) -> None:
    text = "".join(part for part, _ in parts)
    expected, at = [], 0
    for part, call in parts:
        if call is not None:
            expected.append((call, at, at + len(part)))
        at += len(part)
    found = [p for p in parse(text) if isinstance(p.call, ToolCall)]
    assert [((p.call.name, p.call.arguments), p.start, p.end) for p in found] == expected  # type: ignore[union-attr]
    assert [p.call.id for p in found] == [f"call_{i}" for i in range(len(found))]  # type: ignore[union-attr]
    # what the prompt's own thought holds is not run, and the rest is read as before
    assert executed(f"{text}</think>{GOOD}") == [("f", {"x": 1})]


@given(calls(), st.data())
@settings(deadline=None, max_examples=60)
def test_any_cut_of_any_call_is_one_cut_call(call: tuple[str, Any], data: st.DataObject) -> None:
    text = call[0][: data.draw(st.integers(len("<tool_call>"), len(call[0]) - 1))]
    assert malformed(text, "length").reason.startswith("cut at max tokens")


fragments = st.sampled_from(
    (
        *TAGS,
        '{"name": "f", "arguments": {',
        '{"name": "f", "arguments": {}}',
        "}",
        '"',
        "\\",
        "[",
        ",",
        "'",
        "1e999",
    )
)


@given(
    st.lists(st.text(max_size=5) | fragments, max_size=30).map("".join),
    st.sampled_from(("stop", "length", "abort")),
)
@settings(deadline=None, max_examples=300)
def test_no_text_makes_it_raise_and_spans_are_in_order(text: str, finish: str) -> None:
    end = 0
    for parsed in parse(text, finish):
        assert end <= parsed.start < parsed.end <= len(text)
        end = parsed.end
        written = text[parsed.start : parsed.end]
        if isinstance(parsed.call, ToolCall):
            assert written.startswith("<tool_call>")
            assert written.endswith("</tool_call>")
            body = json.loads(written.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            assert body == {"name": parsed.call.name, "arguments": parsed.call.arguments}
        else:
            assert parsed.call.raw == written
            assert parsed.call.reason


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call>x",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "<tool_call>{'a': 1}</tool_call>",
        '<tool_call>{"a": }</tool_call>\n',
    ],
)
def test_many_calls_are_read_in_a_moment(unit: str) -> None:
    started = time.process_time()
    parsed = parse(unit * 8_000)
    assert time.process_time() - started < 4
    assert len(parsed) == 8_000


def test_calls_are_numbered_from_the_last_thought_on() -> None:
    text = f"{GOOD}{GOOD}</think>{GOOD}<tool_call>x</tool_call>{GOOD}"
    assert [p.call.id for p in parse(text) if isinstance(p.call, ToolCall)] == ["call_0", "call_1"]


def test_an_object_with_many_keys_and_one_twice_is_refused_in_a_moment() -> None:
    keys = ", ".join(f'"k{i}": 0' for i in range(50_000))
    started = time.process_time()
    call = malformed(f'<tool_call>{{{keys}, "k49999": 0}}</tool_call>')
    assert time.process_time() - started < 10
    assert "'k49999' stands twice" in call.reason


# --- writing ------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3)), max_size=3)


def test_a_call_is_written_as_it_always_was() -> None:
    assert HermesFormat().write("", [("f", {"x": 1})]) == GOOD
    assert HermesFormat().write("Let me look.", [("f", {"x": 1})] * 2) == f"Let me look.\n{GOOD}\n{GOOD}"
    assert HermesFormat().write("größer", [("f", {"x": "größer"})]).count("größer") == 2
    assert HermesFormat().write("", []) == "" and HermesFormat().write("42", ()) == "42"


@given(st.text(), CALLS)
def test_what_is_written_is_read_back(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    written = HermesFormat().write(text, calls)
    assert executed(written) == calls and len(parse(written)) == len(calls)
    assert written.startswith(text)


@given(st.lists(st.sampled_from([*TAGS, GOOD, "\n", "word", '"'])).map("".join), CALLS)
def test_what_is_written_is_read_back_or_refused(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    try:
        written = HermesFormat().write(text, calls)
    except ConfigError:
        assert any(tag in text for tag in TAGS)
    else:
        assert executed(written) == calls and len(parse(written)) == len(calls)


@pytest.mark.parametrize(
    ("text", "calls", "message"),
    [
        ("", [("f", {"x": float("nan")})], "cannot be written as JSON: Out of range float values"),
        ("", [("f", {"x": object()})], "cannot be written as JSON: Object of type object"),
        ("", [("", {})], "cannot be read as a call: 'name' must be the name of a tool"),
        ("", [("f", {"x": "\ud800"})], "half of a surrogate pair"),
        ("", [("f", {1: "a", "1": "b"})], "the key '1' stands twice"),
        (GOOD, [], "would be read as 1 tool calls, and 0 are meant"),
        ("<think>", [("f", {})], "would be read as 0 tool calls, and 1 are meant"),
    ],
)
def test_what_would_not_be_read_back_is_refused(text: str, calls: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HermesFormat().write(text, calls)
    assert message in str(caught.value)


def test_the_reason_of_broken_json_reads_as_a_sentence() -> None:
    (found,) = HermesFormat().parse('<tool_call>{"name": "look</tool_call>', "stop")
    assert isinstance(found.call, MalformedCall)
    assert "Unterminated string starting at '\"look" in found.call.reason
