"""The renderer's promises, on a real tokenizer: exact ids, prompts that extend, and the template's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CHATML, HEADERS, THINKING, tiny_tokenizer

from steprl.errors import ConfigError
from steprl.renderers import ChatRenderer, extends
from steprl.types import Action, Message, Role, ToolSpec

TOOL = ToolSpec(
    name="population", description="Inhabitants.", parameters={"type": "object", "properties": {}}
)
SYSTEM = Message(role="system", content="Be brief.")
USER = Message(role="user", content="How many live in Oslo?")
RESULT = Message(role="tool", content="709000", name="population", tool_call_id="call_0")
THOUGHT = "<think>\nI ask.\n</think>\n\nOslo"
BRACKETS = (
    "{{ bos_token }}{% if tools %}[TOOLS] {{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ ' ' + m.content | trim + ' ' + eos_token }}"
    "{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}"
)
APPEND_ONLY = {"chatml": CHATML, "headers": HEADERS, "brackets": BRACKETS}


@cache
def renderer(template: str = CHATML) -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer(template))


def acted(text: str, *, stop: bool = True, template: str = CHATML) -> Action:
    ids = renderer(template).encode(text)
    return renderer(template).parse((*ids, renderer(template).stop_ids[-1]) if stop else ids, "stop")


def template_text(messages: Sequence[Message], tools: Sequence[ToolSpec] = (), template: str = CHATML) -> Any:
    """What the tokenizer itself writes, without this project."""
    return tiny_tokenizer(template).apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        tools=[tool.to_json() for tool in tools] or None,
        tokenize=False,
        add_generation_prompt=True,
    )


# --- stop tokens, encode, decode


def test_stop_ids_are_end_of_sequence_and_the_templates_end_of_turn() -> None:
    assert [renderer().decode([i]) for i in renderer().stop_ids] == ["<|endoftext|>", "<|im_end|>"]
    assert [renderer(HEADERS).decode([i]) for i in renderer(HEADERS).stop_ids] == [
        "<|endoftext|>",
        "<|eot_id|>",
    ]


def test_a_template_that_ends_turns_with_end_of_sequence_has_one_stop_id() -> None:
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m.content }} {{ eos_token }}\n{% endfor %}")
    assert ChatRenderer(tokenizer).stop_ids == (tokenizer.eos_token_id,)


def test_nothing_to_stop_at_is_refused() -> None:
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="nothing to stop at"):
        ChatRenderer(tokenizer)


@given(st.text())
@settings(deadline=None)
def test_decode_gives_back_what_was_encoded(text: str) -> None:
    assert renderer().decode(renderer().encode(text)) == text


def test_decode_keeps_control_tokens_and_spaces_and_encode_adds_nothing() -> None:
    text = "<|im_start|>a , b .<|im_end|> do n't"
    assert renderer().decode(renderer().encode(text)) == text
    assert renderer().encode("") == ()
    assert renderer().decode(np.array(renderer().encode(text), dtype=np.int32).tolist()) == text


# --- the template's text


@pytest.mark.parametrize("template", [CHATML, THINKING, HEADERS])
@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_without_sampled_messages_the_prompt_is_the_templates_text(
    template: str, tools: tuple[ToolSpec, ...]
) -> None:
    messages = (SYSTEM, USER, Message(role="assistant", content="Wait."), RESULT)
    prompt = renderer(template).render(messages, tools)
    assert prompt == renderer(template).encode(template_text(messages, tools, template))


def test_tool_messages_carry_name_and_call_id() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }} {{ m.tool_call_id }}\n"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    text = renderer(template).decode(renderer(template).render((USER, RESULT)))
    assert "<|im_start|>tool population call_0\n709000<|im_end|>" in text


def test_template_options_reach_the_template() -> None:
    quiet = ChatRenderer(tiny_tokenizer(THINKING), template_options={"enable_thinking": False})
    assert quiet.decode(quiet.render((USER,))).endswith("assistant\n<think>\n\n</think>\n\n")


# --- refusals


def test_no_chat_template() -> None:
    with pytest.raises(ConfigError, match="no chat template.*set tokenizer.chat_template"):
        ChatRenderer(tiny_tokenizer(None))


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'hermes'"):
        ChatRenderer(tiny_tokenizer(), "herms")


def test_what_a_template_refuses_is_told_in_its_own_words() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    with pytest.raises(ConfigError, match=r"refuses messages of the roles \[system, user\].*System role not"):
        renderer(template).render((SYSTEM, USER))
    with pytest.raises(ConfigError, match="empty conversation"):
        renderer(template).render(())


def test_a_template_that_ignores_tools_is_refused_when_tools_are_given() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    assert renderer(template).render((USER,))
    with pytest.raises(ConfigError, match="ignores tools.*population"):
        renderer(template).render((USER,), (TOOL,))


def test_a_template_that_drops_a_role_is_refused() -> None:
    template = "{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ eos_token }}{% endfor %}"
    with pytest.raises(ConfigError, match="leaves out messages of the role 'tool'"):
        renderer(template).render((USER, RESULT))


def test_a_content_that_is_not_what_was_sampled_is_refused() -> None:
    rewritten = replace(acted("I will ask.").message(), content="Summary: asked.")
    with pytest.raises(ValueError, match="must drop its token_ids"):
        renderer().render((USER, rewritten, RESULT))


# --- exact ids


def test_a_sampled_stop_token_stands_once_and_a_cut_action_gets_the_end_of_turn() -> None:
    stopped, cut = acted("Hm").message(), acted("Hm", stop=False).message()
    prompt = renderer().render((USER, stopped, USER))
    assert prompt == renderer().render((USER, cut, USER))
    assert renderer().decode(prompt) == template_text((USER, stopped, USER))


def test_another_stop_token_stays_before_the_end_of_turn() -> None:
    ids = (*renderer().encode("Hm"), renderer().stop_ids[0])
    text = renderer().decode(renderer().render((USER, renderer().parse(ids, "stop").message(), USER)))
    assert "Hm<|endoftext|><|im_end|>\n<|im_start|>user" in text


def test_space_before_the_end_of_turn_is_not_added_to_what_was_sampled() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }} {{ eos_token }}\n{% endfor %}[assistant] "
    )
    action = acted("Hm", template=template)
    first = renderer(template).render((USER,))
    second = renderer(template).render((USER, action.message(), USER))
    assert extends(first, action.token_ids, second)
    assert "[assistant] Hm<|endoftext|>\n[user]" in renderer(template).decode(second)


def test_a_content_that_a_template_writes_twice_gives_the_templates_text() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ m.content }}{{ eos_token }}{% endfor %}"
    messages = (USER, acted("Hm", template=template).message(), USER)
    assert renderer(template).decode(renderer(template).render(messages)).count("HmHm") == 1


def test_non_canonical_ids_are_kept() -> None:
    letters = tuple(i for letter in "inhabitants" for i in renderer().encode(letter))
    assert letters != renderer().encode("inhabitants")
    message = renderer().parse(letters, "length").message()
    first, second = renderer().render((USER,)), renderer().render((USER, message, USER))
    assert extends(first, letters, second)
    assert renderer().decode(second) == template_text((USER, message, USER))


@pytest.mark.parametrize("content", ["  Oslo \n", "", " \n "])
def test_white_space_that_a_template_trims_keeps_the_exact_ids(content: str) -> None:
    action = acted(content, template=HEADERS)
    first = renderer(HEADERS).render((USER,))
    assert extends(first, action.token_ids, renderer(HEADERS).render((USER, action.message(), USER)))


def test_a_rewritten_message_is_the_templates_text() -> None:
    action = acted(THOUGHT, template=THINKING)
    messages = (USER, action.message(), USER)
    prompt = renderer(THINKING).render(messages)
    assert prompt == renderer(THINKING).encode(template_text(messages, (), THINKING))
    assert "I ask" not in renderer(THINKING).decode(prompt)
    assert not extends(renderer(THINKING).render((USER,)), action.token_ids, prompt)


def test_thoughts_that_the_template_keeps_are_kept_exactly() -> None:
    action = acted(THOUGHT, template=THINKING)
    first = renderer(THINKING).render((USER,))
    assert extends(first, action.token_ids, renderer(THINKING).render((USER, action.message(), RESULT)))


def test_a_thought_that_the_template_lays_out_anew_is_rewritten() -> None:
    messages = (USER, acted("<think>I ask.</think>Oslo", template=THINKING).message(), RESULT)
    prompt = renderer(THINKING).render(messages)
    assert prompt == renderer(THINKING).encode(template_text(messages, (), THINKING))


def test_a_content_that_looks_like_a_mark_changes_nothing() -> None:
    letters = (i for letter in "@@steprl-0-0@@ @@steprl-1-0@@ answer" for i in renderer().encode(letter))
    message = renderer().parse(tuple(letters), "stop").message()
    prompt = renderer().render((USER, message, replace(USER, content="@@steprl-0-1@@"), message, USER))
    assert extends(renderer().render((USER,)), message.token_ids or (), prompt)
    assert renderer().decode(prompt).count("@@steprl-0-1@@") == 1


text_chunks = st.lists(
    st.text(max_size=4) | st.sampled_from(("inhabitants", "\n", " ", "東京😀")), max_size=6
)


@st.composite
def rounds(draw: st.DrawFn, template: str) -> tuple[Action, tuple[Message, ...]]:
    """An action of arbitrary ids (odd splits, halves of characters, with or without stop), and feedback."""
    ids: list[int] = []
    for chunk in draw(text_chunks):
        ids.extend(renderer(template).encode(chunk))
    ids.extend(draw(st.lists(st.integers(7, 400), max_size=3)))
    if draw(st.booleans()):
        ids.append(draw(st.sampled_from(renderer(template).stop_ids)))
    roles: list[Role] = draw(st.lists(st.sampled_from(("user", "tool")), min_size=1, max_size=2))
    feedback = tuple(Message(role=role, content="".join(draw(text_chunks))) for role in roles)
    return renderer(template).parse(ids, draw(st.sampled_from(("stop", "length")))), feedback


@pytest.mark.parametrize("name", APPEND_ONLY)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_prompts_of_append_only_templates_extend(name: str, data: st.DataObject) -> None:
    template = APPEND_ONLY[name]
    tools = data.draw(st.sampled_from(((), (TOOL,))))
    messages = [
        *data.draw(st.sampled_from(((), (SYSTEM,)))),
        Message(role="user", content=data.draw(st.text())),
    ]
    prompt = renderer(template).render(messages, tools)
    for action, feedback in data.draw(st.lists(rounds(template), min_size=1, max_size=4)):
        messages += [action.message(), *feedback]
        following = renderer(template).render(messages, tools)
        assert extends(prompt, action.token_ids, following)
        prompt = following
