"""Whole weights as a source: complete, current, and tied ones once."""

from __future__ import annotations

import pytest
import torch
from tiny_model import tiny_llama

from steprl.weights.source import FullWeights


@pytest.mark.parametrize("tied", [False, True])
def test_everything_once(tied: bool) -> None:
    model = tiny_llama(tie_word_embeddings=tied)
    tensors = dict(FullWeights(model).tensors())
    assert ("lm_head.weight" in tensors) is not tied
    assert tensors.keys() == {name for name, _ in model.named_parameters()}
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_a_source_gives_the_weights_of_now() -> None:
    model = tiny_llama()
    source = FullWeights(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(3.0)
    assert (dict(source.tensors())["model.norm.weight"] == 3.0).all()
    assert source.kind == "full"


def test_another_model_can_take_them() -> None:
    giver, taker = tiny_llama(tie_word_embeddings=True), tiny_llama(seed=1, tie_word_embeddings=True)
    taker.load_state_dict(dict(FullWeights(giver).tensors()), strict=False)
    for name, tensor in giver.state_dict().items():
        assert torch.equal(taker.state_dict()[name], tensor), name
