"""Where a template rewrites some of what was sampled, all else stands in the prompt as it was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import published_tokenizer
from tiny import THINKING, tiny_tokenizer

from steprl.renderers import ChatRenderer, extends
from steprl.types import Action, Message

USER = Message(role="user", content="How many live in Oslo?")
RESULT = Message(role="tool", content="709000")
THOUGHT = "<think>\nI ask.\n</think>\n\nOs~lo"
OPENED = THINKING.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")


@cache
def renderer(template: str) -> ChatRenderer:
    return ChatRenderer(published_tokenizer("qwen3") if template == "qwen3" else tiny_tokenizer(template))


both = pytest.mark.parametrize("template", [THINKING, "qwen3"], ids=["thinking", "qwen3"])


def acted(shown: ChatRenderer, marked: str) -> Action:
    """A text sampled in pieces, as the tokenizer would not write it."""
    ids = tuple(i for piece in marked.split("~") for i in shown.encode(piece))
    assert ids != shown.encode(marked.replace("~", ""))
    return shown.parse((*ids, shown.stop_ids[-1]), "stop")


def holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[at : at + len(part)]) == tuple(part) for at in range(len(ids) - len(part) + 1))


@both
def test_messages_after_one_that_is_rewritten_keep_their_ids_and_prompts_extend(template: str) -> None:
    shown = renderer(template)
    messages = [USER, acted(shown, THOUGHT).message(), USER]
    prompt = shown.render(messages)
    for said in ("inhabi~tants", "an~swer"):
        action = acted(shown, said)
        messages += [action.message(), USER]
        following = shown.render(messages)
        assert extends(prompt, action.token_ids, following)
        assert shown.decode(following) == shown.text(messages)
        prompt = following
    assert "I ask" not in shown.decode(prompt)


@both
def test_messages_before_and_between_rewritten_ones_keep_their_ids(template: str) -> None:
    shown = renderer(template)
    plain, thought = acted(shown, "inhabi~tants"), acted(shown, THOUGHT)
    said = [plain, thought, acted(shown, "an~swer"), thought, acted(shown, "num~ber")]
    messages = [message for action in said for message in (USER, action.message())]
    prompt = shown.render([*messages, USER])
    for action in said:
        assert holds(prompt, action.token_ids) == (action is not thought)
    assert shown.decode(prompt) == shown.text([*messages, USER])


@both
def test_of_two_thoughts_the_one_that_is_kept_is_exact(template: str) -> None:
    shown = renderer(template)
    old, new = acted(shown, THOUGHT), acted(shown, "<think>\nThe inhabi~tants.\n</think>\n\n2")
    first = [USER, old.message(), USER]
    following = shown.render([*first, new.message(), RESULT])
    assert extends(shown.render(first), new.token_ids, following)
    assert "I ask" not in shown.decode(following)


def test_a_thought_that_the_prompt_opened_is_exact_while_it_is_kept() -> None:
    shown = renderer(OPENED)
    action = acted(shown, "The inhabi~tants.\n</think>\n\n2")
    prompt = shown.render([USER])
    assert shown.decode(prompt).endswith("<think>\n")
    assert extends(prompt, action.token_ids, shown.render([USER, action.message(), RESULT]))
    assert "inhabitants" not in shown.decode(shown.render([USER, action.message(), USER]))


@pytest.mark.parametrize(
    "around",
    [
        "{{ m.content | length }} {{ m.content }}",  # a mark has another length
        "{{ m.content }} {{ m.content }}",
        "{{ m.content }}{% if 'inhabitants' in m.content %}!{% endif %}",
    ],
)
def test_where_text_around_marks_is_not_the_text_around_contents_nothing_is_placed(around: str) -> None:
    shown = renderer(f"{{% for m in messages %}}{around}{{{{ eos_token }}}}{{% endfor %}}")
    action = acted(shown, "inhabi~tants")
    prompt = shown.render([USER, action.message(), USER])
    assert prompt == shown.encode(shown.text([USER, action.message(), USER]))
    assert not holds(prompt, action.token_ids)


def test_a_message_that_is_quoted_is_placed_where_it_was_said() -> None:
    shown = renderer("qwen3")
    action = acted(shown, "inhabi~tants")
    quoted = Message(role="user", content="inhabitants")
    prompt = shown.render([quoted, action.message(), quoted])
    assert extends(shown.render([quoted]), action.token_ids, prompt)
    # and one that is rewritten is not placed in a quotation of it
    thought = acted(shown, THOUGHT)
    quoted = Message(role="user", content=thought.text)
    prompt = shown.render([quoted, thought.message(), quoted])
    assert shown.decode(prompt) == shown.text([quoted, thought.message(), quoted])
    assert not holds(prompt, thought.token_ids)


@both
def test_a_thought_that_is_thought_again_is_placed_where_it_is_kept(template: str) -> None:
    shown = renderer(template)
    thought, between = acted(shown, THOUGHT), acted(shown, "inhabi~tants")
    first = [USER, thought.message(), USER, between.message(), USER]
    following = shown.render([*first, thought.message(), RESULT])
    assert extends(shown.render(first), thought.token_ids, following)
    assert holds(following[: len(shown.render(first))], between.token_ids)


@both
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_a_prompt_is_the_templates_text_and_messages_without_thoughts_are_exact(
    template: str, data: st.DataObject
) -> None:
    shown = renderer(template)
    thoughts = st.sampled_from(
        ("", "<think>\nI ask.\n</think>\n\n", "<think>a</think>", "</think>", "<think>")
    )
    words = st.lists(
        st.sampled_from(("inhabitants", " ", "\n", "東京", "a")) | st.text(max_size=3), max_size=4
    )
    messages = [USER]
    for _ in range(data.draw(st.integers(1, 4))):
        said = data.draw(thoughts) + "".join(data.draw(words))
        ids = (*(i for letter in said for i in shown.encode(letter)), shown.stop_ids[-1])
        messages += [shown.parse(ids, "stop").message(), data.draw(st.sampled_from((USER, RESULT)))]
        prompt = shown.render(messages)
        # but for white space around messages, which is as it was sampled
        assert "".join(shown.decode(prompt).split()) == "".join(shown.text(messages).split())
        for message in messages:
            if message.token_ids and "</think>" not in message.content:
                assert holds(prompt, message.token_ids)
