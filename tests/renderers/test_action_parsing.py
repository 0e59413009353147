"""From sampled ids to an action: its text, its calls, and the tokens that wrote each call."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CHATML, tiny_tokenizer

from steprl.renderers import ChatRenderer, HermesFormat
from steprl.types import Action, MalformedCall, Message, ToolCall

USER = Message(role="user", content="How many live in Oslo?")


@cache
def renderer(template: str = CHATML) -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer(template))


def test_text_leaves_out_the_stop_token_and_ids_keep_it() -> None:
    ids = (*renderer().encode("Oslo"), renderer().stop_ids[1])
    assert renderer().parse(ids, "stop") == Action(text="Oslo", token_ids=ids, finish="stop")
    assert renderer().parse((), "abort") == Action(text="", token_ids=(), finish="abort")


def test_an_unknown_finish_is_refused() -> None:
    with pytest.raises(ValueError, match="stop, length, abort"):
        renderer().parse((), "eos")


def test_a_cut_call_is_malformed() -> None:
    (call,) = renderer().parse(renderer().encode('a <tool_call>{"name": "f'), "length").tool_calls
    assert isinstance(call, MalformedCall)
    assert call.reason.startswith("cut at max tokens")


def test_a_format_can_be_given_as_an_object() -> None:
    given_format = ChatRenderer(tiny_tokenizer(), HermesFormat())
    ids = given_format.encode('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert given_format.parse(ids, "stop").tool_calls == (
        ToolCall(name="f", arguments={}, id="call_0", span=(0, len(ids))),
    )


def test_a_thought_opened_by_the_prompt_hides_calls_until_it_is_closed() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    opened = renderer(CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n<think>\\n'"))
    assert opened.decode(opened.render((USER,))).endswith("<think>\n")
    assert opened.parse(opened.encode(f"I try {call}"), "length").tool_calls == ()
    draft = opened.encode(f"I try {call}</think>")
    (found,) = opened.parse((*draft, *opened.encode(call)), "stop").tool_calls
    assert found.span == (len(draft), len(draft) + len(opened.encode(call)))


CALL = '<tool_call>{"name": "f", "arguments": {"x": "東😀é"}}</tool_call>'


@given(st.text(max_size=8), st.text(max_size=8), st.data())
@settings(deadline=None)
def test_token_spans_cover_the_call_and_nothing_more(before: str, after: str, data: st.DataObject) -> None:
    text = before.replace("<", "") + CALL + after.replace("<", "")
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    chunks = [renderer().encode(text[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    ids = tuple(i for chunk in chunks for i in chunk)
    (call,) = renderer().parse(ids, "stop").tool_calls
    start, end = call.span
    assert CALL in renderer().decode(ids[start:end])
    assert CALL not in renderer().decode(ids[start + 1 : end])
    assert CALL not in renderer().decode(ids[start : end - 1])


def test_a_token_that_also_writes_the_space_before_a_call_belongs_to_it() -> None:
    ids = renderer().encode(f"a {CALL}")
    (call,) = renderer().parse(ids, "stop").tool_calls
    assert renderer().decode(ids[call.span[0] :]) == f" {CALL}"  # the space and "<" are one token


def test_a_span_next_to_half_characters_is_exact() -> None:
    letter = renderer().encode("鬱")
    assert len(letter) > 1  # split over tokens
    call = renderer().encode(CALL)
    (found,) = renderer().parse((*letter, letter[0], *call, letter[0]), "length").tool_calls
    assert found.span == (len(letter) + 1, len(letter) + 1 + len(call))


@given(st.lists(st.integers(0, 416), max_size=40), st.sampled_from(("stop", "length", "abort")))
@settings(deadline=None, max_examples=150)
def test_parse_takes_any_ids(ids: list[int], finish: str) -> None:
    opening = renderer().encode('<tool_call>{"')
    action = renderer().parse((*opening, *ids), finish)
    assert action.token_ids == (*opening, *ids)
    for call in action.tool_calls:
        assert 0 <= call.span[0] < call.span[1] <= len(action.token_ids)
