"""What the Qwen3-Coder format reads as a call, how values get their types, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from formats import executed, malformed, reasons
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.renderers import HermesFormat, Qwen3CoderFormat, TypedFormat
from steprl.types import ToolSpec

F = Qwen3CoderFormat()
GOOD = "<tool_call>\n<function=f>\n<parameter=x>\nOslo\n</parameter>\n</function>\n</tool_call>"
SPEC = ToolSpec(
    name="f",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "whole": {"type": "integer"},
            "real": {"type": "number"},
            "flag": {"type": "boolean"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "rows": {"type": "array", "items": {"type": "integer"}},
            "point": {"$ref": "#/$defs/Point"},
            "unit": {"enum": ["1", "2"]},
            "anything": {},
        },
        "$defs": {"Point": {"type": "object", "properties": {}}},
    },
)


def called(**values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"


def value(key: str, written: str, format: Any = F) -> Any:
    ((_, arguments),) = executed(format, called(**{key: written}))
    return arguments[key]


def test_reads_a_call_and_where_it_stands() -> None:
    (parsed,) = F.parse(f"Let me look.\n{GOOD} done", "stop")
    assert (parsed.start, parsed.end) == (13, 13 + len(GOOD))
    assert executed(F, GOOD) == [("f", {"x": "Oslo"})]


def test_it_is_written_as_the_model_writes_it() -> None:
    assert F.write("", [("f", {"x": "Oslo"})]) == GOOD
    assert F.write("Hm.", [("f", {})]) == "Hm.\n<tool_call>\n<function=f>\n</function>\n</tool_call>"


def test_blanks_between_tags_do_not_matter_and_those_in_values_do() -> None:
    compact = "<tool_call><function=f><parameter=x>Oslo</parameter></function></tool_call>"
    assert executed(F, compact) == executed(F, GOOD)
    assert value("x", "  two\n\nlines ") == "  two\n\nlines "
    assert value("x", "") == ""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("3", 3),
        ("-2.5", -2.5),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": "b"}', {"a": "b"}),
        (" 3 ", 3),
        ("True", "True"),
        ("007", "007"),
        ("1, 2", "1, 2"),
        ("NaN", "NaN"),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('"quoted"', '"quoted"'),
    ],
)
def test_without_a_schema_json_that_is_no_text_is_that_value(written: str, read: Any) -> None:
    assert value("x", written) == read
    assert type(value("x", written)) is type(read)


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("text", "1984", "1984"),
        ("text", "null", "null"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("whole", "3", 3),
        ("whole", "3.5", "3.5"),
        ("whole", "three", "three"),
        ("whole", "true", "true"),
        ("real", "3", 3),
        ("real", "1e3", 1000.0),
        ("flag", "true", True),
        ("flag", "True", "True"),
        ("maybe", "null", None),
        ("maybe", "12", "12"),
        ("either", "12", 12),
        ("either", "twelve", "twelve"),
        ("rows", "[1, 2]", [1, 2]),
        ("rows", '{"a": 1}', '{"a": 1}'),
        ("point", '{"a": 1}', {"a": 1}),
        ("unit", "1", "1"),
        ("anything", "1", 1),
        ("unknown", "1", 1),
    ],
)
def test_the_schema_decides_what_a_value_is(key: str, written: str, read: Any) -> None:
    found = value(key, written, F.typed([SPEC]))
    assert found == read and type(found) is type(read)


def test_it_alone_asks_for_schemas() -> None:
    assert isinstance(F, TypedFormat) and not isinstance(HermesFormat(), TypedFormat)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "f", "arguments": {}}', "must be followed by <function=tool_name>"),
        ("", "must be followed by <function=tool_name>"),
        ("<function=>\n</function>", "must be followed by <function=tool_name>"),
        ('<function="f">\n</function>', "must be followed by <function=tool_name>"),
        ("<function=f>\n", "'</tool_call>' stands where <parameter=key> or </function> must stand"),
        ("<function=f>\nOslo\n</function>", "'Oslo\\n</function>\\n</t' stands where"),
        ("<function=f>\n<parameter>\n1\n</parameter>\n</function>", "stands where <parameter=key>"),
        (
            "<function=f>\n<parameter=x>\n1\n</function>",
            "'x' is not closed by </parameter> before </function>",
        ),
        (
            "<function=f>\n<parameter=x>\n1\n<parameter=y>\n2\n</parameter>\n</function>",
            "'x' is not closed by </parameter> before <parameter=: no value may hold a tag",
        ),
        (
            "<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=x>\n1\n</parameter>\n</function>",
            "the parameter 'x' stands twice",
        ),
        ("<function=f>\n</function>\nok", "</function> must be followed by </tool_call>"),
        (
            "<function=f>\n</function>\n<function=g>\n</function>",
            "</function> must be followed by </tool_call>",
        ),
    ],
)
def test_malformed_calls_say_what_to_change(body: str, reason: str) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    call = malformed(F, text)
    assert reason in call.reason and "Write <tool_call> <function=" in call.reason
    assert call.raw == text
    assert executed(F, f"{GOOD}{text}{GOOD}") == [("f", {"x": "Oslo"})] * 2  # its neighbours are not touched


def test_a_function_outside_of_a_call_is_malformed() -> None:
    inner = GOOD.removeprefix("<tool_call>\n")
    assert "a call must be opened by <tool_call>" in malformed(F, inner).reason


def test_a_missing_closing_tag_ends_at_the_next_call() -> None:
    assert reasons(F, GOOD.removesuffix("</tool_call>") + GOOD)[1:] == ["f"]
    assert executed(F, f"I write <tool_call> and then: {GOOD}") == [("f", {"x": "Oslo"})]


def test_nothing_inside_a_broken_call_is_run() -> None:
    assert executed(F, called(text=f"say {GOOD} ok")) == []
    assert (
        executed(F, f"<tool_call>\n<function=w>\nhm\n<parameter=x>\n{GOOD}\n</parameter>\n</function>") == []
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]\w{0,8}", fullmatch=True), JSON, max_size=3))
@settings(deadline=None)
def test_any_json_but_text_that_looks_like_it_is_read_back(arguments: dict[str, Any]) -> None:
    try:
        written = F.write("", [("f", arguments)])
    except ConfigError:
        # bare text that is JSON, outer \r\n, or a tag
        assert any(isinstance(value, str) for value in arguments.values()) or "<" in str(arguments)
    else:
        assert executed(F, written) == [("f", arguments)]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<\r")))
@settings(deadline=None)
def test_with_a_schema_any_text_without_tags_is_read_back(text: str) -> None:
    typed = F.typed([SPEC])
    assert executed(typed, typed.write("", [("f", {"text": text})])) == [("f", {"text": text})]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([("f", {"x": "1984"})], "would be read as"),
        ([("f", {"x": "</parameter>"})], "cannot be read as a call"),
        ([("f", {"x": GOOD})], "cannot be read as a call: the value of 'x' is not closed"),
        ([("f", {"a b": 1})], "cannot be read as a call"),
        ([("", {})], "cannot be read as a call"),
    ],
)
def test_what_would_not_be_read_back_is_refused(calls: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        F.write("", calls)
