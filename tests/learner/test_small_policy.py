"""Small policies and their tokenizers: what a size means, which words are one token, what can be written."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import HEADERS

from steprl.errors import ConfigError
from steprl.learner.small_policy import SIZES, PolicySize, make_policy, parameter_count
from steprl.learner.tokenizer import train_tokenizer

CHATML = (files("steprl") / "policies" / "chatml.jinja").read_text("utf-8")
TAGS = ("<tool_call>", "</tool_call>")
TRAINED = train_tokenizer(["Oslo is in Norway. Is Oslo?"] * 9, 400, template=CHATML, tags=TAGS)


def ids(text: str, tokenizer: Any = TRAINED) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


# --- models -------------------------------------------------------------------------------------------


def test_the_quickstart_is_a_small_one() -> None:
    model = make_policy(536, SIZES["small"], pad_id=0, seed=0)
    config = model.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (128, 352, 2)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 4, 32)
    assert (config.initializer_range, config.max_position_embeddings) == (0.09, 1024)
    assert parameter_count(model) == sum(p.numel() for p in model.parameters()) == 536 * 128 + 467_584


def test_every_size_runs_and_follows_its_seed() -> None:
    for size in (*SIZES.values(), PolicySize(hidden=16, layers=1), PolicySize(hidden=96)):
        one, other, third = (make_policy(300, size, pad_id=None, seed=seed) for seed in (0, 0, 1))
        logits = one(torch.tensor([[1, 2, 3]])).logits
        assert logits.shape == (1, 3, 300) and torch.equal(logits, other(torch.tensor([[1, 2, 3]])).logits)
        assert not torch.equal(logits, third(torch.tensor([[1, 2, 3]])).logits)


def test_making_one_leaves_the_callers_random_stream_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    make_policy(300, SIZES["tiny"], pad_id=0, seed=0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 48}, "hidden must be 16, or a multiple of 32; got 48"),
        ({"hidden": 0}, "hidden must be 16, or a multiple of 32; got 0"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"max_context": 0}, "max_context must be at least 1, got 0"),
    ],
)
def test_a_size_that_cannot_be_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PolicySize(**options)


# --- tokenizers ---------------------------------------------------------------------------------------


@given(st.text())
def test_any_text_can_be_written_and_read_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode("utf-8")
    assert TRAINED.decode(ids(text), clean_up_tokenization_spaces=False) == text


def test_a_word_is_the_same_token_wherever_it_stands() -> None:
    (oslo,) = ids("Oslo")
    for text in (" Oslo", '"Oslo"', "\nOslo.", "7Oslo"):
        assert oslo in ids(text)


def test_control_tokens_and_tags_are_one_token_each() -> None:
    for word in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *TAGS, "<tools>", "</tools>"):
        assert len(ids(word)) == 1, word
    assert (TRAINED.eos_token, TRAINED.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert not {*TAGS} & {*TRAINED.all_special_tokens}


def test_a_template_brings_its_own_control_tokens() -> None:
    tokenizer = train_tokenizer((), 300, template=HEADERS, tags=())
    assert len(ids("<|start_header_id|>", tokenizer)) == len(ids("<|eot_id|>", tokenizer)) == 1
    assert tokenizer.eos_token == "<|eot_id|>"
    assert len(ids("<|im_start|>", tokenizer)) > 1


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "puts no control token"),
        ("{% for m in messages %}", "the chat template cannot be run"),
        ("{{ raise_exception('roles!') }}", "the chat template cannot be run: roles!"),
    ],
)
def test_a_template_that_cannot_end_a_turn_is_refused(template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_tokenizer((), 300, template=template, tags=())
