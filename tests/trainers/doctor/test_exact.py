"""The step trace is exact: random conversations, every published template, every context rule. And the checks
that say so notice what is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import PUBLISHED, published_tokenizer, smollm2_folder
from tiny import CHATML, HEADERS, THINKING, tiny_tokenizer

from steprl.batch import rows
from steprl.context import (
    AppendOnly,
    Evidence,
    LlmSummary,
    SlidingWindow,
    SummaryState,
    ThinkStrip,
    TokenBudget,
)
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.trainers.doctor.conversations import Conversation, How, Turn, conversations, tool_of
from steprl.trainers.doctor.drift import boundaries
from steprl.trainers.doctor.exact import changed, exposed, misplaced
from steprl.trainers.doctor.play import Play, play
from steprl.trainers.doctor.traces import message_trace, sampled_actions, token_trace
from steprl.types import ContextRule, Message

OURS = {"chatml": CHATML, "thinking": THINKING, "headers": HEADERS}
RULES: dict[str, ContextRule] = {
    "append_only": AppendOnly(),
    "sliding_window": SlidingWindow(rounds=1),
    "token_budget": TokenBudget(tokens=60, left_out="[left out]"),
    "think_strip": ThinkStrip(),
    "evidence": Evidence(select="bm25", top=1),
    "summary_state": SummaryState(),
    "llm_summary": LlmSummary(budget=60),
}
ALTERNATING = ("mistral", "gemma")
"""Templates that want user and assistant in turn, so that a rule which adds or drops messages is refused."""


@cache
def renderer(name: str) -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer(OURS[name]) if name in OURS else published_tokenizer(name))


def checked(played: Play, shown: ChatRenderer, *, merge: bool) -> None:
    """Every trained token is a sampled one, in the context it was sampled in; and the sampled ids are the
    model's text and nothing else."""
    made = rows([played.trajectory], merge=merge)
    assert [*misplaced(played.trajectory, made)] == []
    assert [*changed(played)] == []
    assert exposed(played, shown) == 0
    for index, said in zip(played.acts, played.replies, strict=True):
        if not said:
            continue  # cut before its first token: nothing to train
        (row,) = [row for row in made if played.trajectory.key(index) in row.step_keys]
        own = row.action_positions[row.step_index == row.step_keys.index(played.trajectory.key(index))]
        assert shown.decode(row.ids[own].tolist()) == shown.decode(said)


_WORDS = (
    "hello",
    " inhabitants",
    "\n",
    "  ",
    "東京",
    "😀",
    "<think>",
    "</think>",
    "\n\n",
    "<tool_call>",
    "x",
)


def texts(name: str) -> st.SearchStrategy[str]:
    pieces = (*_WORDS, *renderer(name).control_ids)
    return st.lists(st.sampled_from(pieces) | st.text(max_size=4), max_size=6).map("".join)


@st.composite
def random_conversations(draw: st.DrawFn, name: str) -> Conversation:
    how: st.SearchStrategy[How] = st.sampled_from(("literal", "split", "cut"))
    count = draw(st.integers(1, 4))
    turns = [
        Turn(said=draw(texts(name)), how=draw(how), back=(("user", draw(texts(name))),)) for _ in range(count)
    ]
    opening = (Message(role="user", content=draw(texts(name)), mark="state"),)
    return Conversation(name="random", opening=opening, turns=tuple(turns))


@pytest.mark.parametrize("name", [*PUBLISHED, *OURS])
@given(data=st.data())
@settings(deadline=None, max_examples=8)
def test_every_trained_token_is_a_sampled_one_in_its_context(name: str, data: st.DataObject) -> None:
    usable = (
        ("append_only", "sliding_window", "token_budget", "think_strip") if name in ALTERNATING else RULES
    )
    rule = RULES[data.draw(st.sampled_from([*usable]))]
    conversation = data.draw(random_conversations(name))
    shown = renderer(name)
    try:
        played = play(conversation, shown, rule, tool_of(shown))
    except Exception as error:
        # gpt-oss: its template refuses what its own model writes, as its words say
        assert name == "gpt-oss" and "passed a message containing <|channel|> tags" in str(error)
        return
    checked(played, shown, merge=data.draw(st.booleans()))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3.1", *OURS])
def test_the_scripted_conversations_are_exact_under_every_rule(name: str, rule: str) -> None:
    shown = renderer(name)
    for conversation in conversations(shown):
        checked(play(conversation, shown, RULES[rule], tool_of(shown)), shown, merge=True)


def named(shown: ChatRenderer, name: str, rule: ContextRule | None = None) -> Play:
    (one,) = [found for found in conversations(shown) if found.name == name]
    return play(one, shown, rule or AppendOnly(), tool_of(shown))


def test_a_word_that_an_engine_split_keeps_its_ids_through_a_whole_tool_episode() -> None:
    shown = renderer("qwen2.5")
    turns = (
        Turn(calls=("hello inhabitants",), how="split", back=(("tool", "hello"),)),
        Turn(calls=("hello",), how="split", back=(("tool", "hello"),)),
        Turn(said="hello", how="split"),
    )
    played = play(Conversation(name="hello", turns=turns), shown, AppendOnly(), tool_of(shown))
    halves = (*shown.encode("he"), *shown.encode("llo"))
    assert played.replies[2] == (*halves, shown.stop_ids[-1])
    for said in played.replies[:2]:
        assert shown.decode(said) == shown.decode(shown.encode(shown.decode(said)))
        assert said != shown.encode(shown.decode(said))  # another way to write the same text
    (row,) = rows([played.trajectory])
    assert [row.ids[row.action_positions[row.step_index == i]].tolist() for i in range(3)] == [
        [*said] for said in played.replies
    ]
    checked(played, shown, merge=True)
    assert [found.drift for found in boundaries(played, shown)] == ["retokenisation", "retokenisation"]


def test_where_the_template_strips_a_thought_rows_are_apart_and_before_that_they_are_one() -> None:
    shown = renderer("qwen3")
    thought = "<think>\nI look it up.\n</think>\n"
    turns = (
        Turn(said=thought, calls=("Oslo",), back=(("tool", "709000"),)),
        Turn(said="709000", back=(("user", "Sure?"),)),
        Turn(said="Yes."),
    )
    played = play(Conversation(name="thinking", turns=turns), shown, AppendOnly(), tool_of(shown))
    first, second = rows([played.trajectory])
    assert [[key.step for key in row.step_keys] for row in (first, second)] == [[0, 1], [2]]
    assert "I look it up" in shown.decode(first.ids.tolist())
    assert "I look it up" not in shown.decode(second.ids.tolist())
    checked(played, shown, merge=True)
    assert [found.drift for found in boundaries(played, shown)] == ["none", "stripping: thinking"]
    lost = message_trace(played, shown)
    assert lost.actions[0] is None or "look" not in shown.decode(lost.actions[0].action)


@pytest.mark.parametrize(
    ("name", "conversation", "drift", "extends"),
    [
        ("qwen3", "thinking, then the user", "stripping: thinking", False),
        ("qwen3", "thinking, then results", "none", True),
        ("llama3.1", "white space at the edge", "stripping: white space", True),
        ("mistral", "several turns", "template", True),
        ("mistral", "system message", "template", False),
        ("gpt-oss", "several turns", "template", False),
        ("qwen2.5", "split words", "retokenisation", True),
        ("gemma", "several turns", "none", True),
    ],
)
def test_each_drift_has_its_name(name: str, conversation: str, drift: str, extends: bool) -> None:
    found = boundaries(named(renderer(name), conversation), renderer(name))
    assert {boundary.drift for boundary in found} == {drift}
    assert {boundary.extends for boundary in found} == {extends}


def test_what_a_rule_left_out_is_told_apart_from_the_template() -> None:
    found = boundaries(
        named(renderer("chatml"), "several turns", SlidingWindow(rounds=1)), renderer("chatml")
    )
    assert [(one.drift, one.extends) for one in found] == [("none", True), ("context rule", False)]


def test_a_token_string_keeps_the_ids_and_loses_the_context_that_was_stripped() -> None:
    shown = renderer("qwen3")
    played = named(shown, "thinking, then the user")
    sampled, string = sampled_actions(played), token_trace(played, shown).actions
    assert [one.action for one in string if one] == [one.action for one in sampled]
    assert string[0] == sampled[0] and string[1] != sampled[1]
    assert string[1] is not None and "compare" in shown.decode(string[1].context)
    assert "compare" not in shown.decode(sampled[1].context)


def test_messages_and_token_strings_let_a_text_forge_control_tokens() -> None:
    shown = renderer("chatml")
    played = named(shown, "control tokens in texts")
    assert exposed(played, shown) == 0
    assert token_trace(played, shown).forged == 2
    assert message_trace(played, shown).forged == 4  # the model's own quotation as well


# --- the checks notice


def tampered(played: Play, **change: Any) -> list[str]:
    made = rows([played.trajectory])
    return [*misplaced(played.trajectory, [replace(made[0], **change), *made[1:]])]


def test_another_id_another_context_a_missing_and_a_foreign_token_are_noticed() -> None:
    shown = renderer("chatml")
    played = named(shown, "several turns")
    (row,) = rows([played.trajectory])
    at = int(row.action_positions[0])
    ids = row.ids.copy()
    ids[at] += 1
    assert "is trained as id" in tampered(played, ids=ids)[0]
    ids = row.ids.copy()
    ids[0] += 1
    assert "after other ids than it was sampled after" in tampered(played, ids=ids)[0]
    assert "step 0, action token 0 is trained 0 times" in tampered(
        played,
        **{
            name: getattr(row, name)[1:]
            for name in ("action_positions", "step_index", "token_index", "temperature", "engine_logprobs")
        },
    )
    masked = replace(
        played.trajectory.steps[0],
        sampled_mask=np.zeros(len(played.trajectory.steps[0].action_ids), dtype=bool),
        logprobs=None,
    )
    foreign = replace(played.trajectory, steps=(masked, *played.trajectory.steps[1:]))
    assert "was not sampled and is trained" in next(misplaced(foreign, [row]))


def test_another_reply_and_a_forged_control_token_are_noticed() -> None:
    shown = renderer("chatml")
    played = named(shown, "control tokens in texts")
    assert [*changed(replace(played, replies=((1, 2), *played.replies[1:])))] == [
        "action 0 is recorded with other ids than the engine said"
    ]
    allowing = ChatRenderer(tiny_tokenizer(CHATML), allow_control_tokens=True)
    read = named(allowing, "control tokens in texts")
    assert exposed(read, shown) > 0


def test_smollm2_is_exact() -> None:
    shown = ChatRenderer(load_tokenizer(smollm2_folder()))
    for conversation in conversations(shown):
        checked(play(conversation, shown, AppendOnly(), tool_of(shown)), shown, merge=True)
