"""New weights for the torch engine: between two tokens, all or nothing, and on record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from tiny_engine import Asked, ask, assert_exact, words
from tiny_model import tiny_llama

from steprl.engines.torch_engine import TorchEngine
from steprl.errors import EngineError
from steprl.types import Sampling
from steprl.weights.source import FullWeights

PROMPT = words(0, 20)
SAMPLING = Sampling(max_tokens=30)


class Named:
    """A source of the tensors it was given."""

    def __init__(self, tensors: dict[str, Any], kind: Literal["full", "adapter"] = "full") -> None:
        self.kind = kind
        self._tensors = tensors

    def tensors(self) -> Iterator[tuple[str, Any]]:
        yield from self._tensors.items()


def engine(**config: Any) -> TorchEngine:
    return TorchEngine(tiny_llama(**config), slots=2, max_context=128)


def answer(served: TorchEngine) -> Asked:
    completion = asyncio.run(ask(served, PROMPT, SAMPLING))
    return Asked(prompt=tuple(PROMPT), sampling=SAMPLING, completion=completion)


@pytest.mark.parametrize("tied", [False, True])
def test_new_weights_answer_with_their_version(tied: bool) -> None:
    served = engine(tie_word_embeddings=tied)
    assert answer(served).completion.policy_versions.tolist() == [0] * 30
    learner = tiny_llama(seed=5, tie_word_embeddings=tied)
    asyncio.run(served.sync(FullWeights(learner), 3))
    asked = answer(served)
    assert served.version == 3
    assert asked.completion.policy_versions.tolist() == [3] * 30
    assert_exact(learner, [asked])


def test_the_engine_keeps_its_own_copy() -> None:
    served, learner = engine(), tiny_llama(seed=5)
    asyncio.run(served.sync(FullWeights(learner), 1))
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.zero_()
    assert_exact(tiny_llama(seed=5), [answer(served)])


def test_weights_are_taken_in_the_engines_precision() -> None:
    served = TorchEngine(tiny_llama(dtype=torch.bfloat16), slots=1, max_context=64)
    asyncio.run(served.sync(FullWeights(tiny_llama(seed=5)), 1))
    weights = served._model.state_dict()["model.norm.weight"]
    assert weights.dtype == torch.bfloat16


def test_a_request_in_flight_records_both_versions() -> None:
    served = engine()

    async def sync_in_flight() -> Asked:
        running = asyncio.create_task(ask(served, PROMPT, SAMPLING))
        for _ in range(8):
            await asyncio.sleep(0)
        await served.sync(FullWeights(tiny_llama(seed=5)), 1)
        return Asked(prompt=tuple(PROMPT), sampling=SAMPLING, completion=await running)

    asked = asyncio.run(sync_in_flight())
    versions = asked.completion.policy_versions.tolist()
    before = versions.count(0)
    assert versions == [0] * before + [1] * (30 - before) and 0 < before < 30
    # up to then it is the old model's; then new weights over old keys, which no single model can tell
    head = Asked(prompt=asked.prompt, sampling=SAMPLING, completion=asked.completion)
    old = answer(engine()).completion
    assert head.ids[:before] == old.ids[:before].tolist()
    assert head.ids[before:] != old.ids[before:].tolist()


def full() -> dict[str, torch.Tensor]:
    return dict(FullWeights(tiny_llama(seed=5)).tensors())


def without(name: str) -> dict[str, torch.Tensor]:
    return {other: tensor for other, tensor in full().items() if other != name}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Named(full(), kind="adapter"), "full weights, got 'adapter'"),
        (Named({**full(), "model.norm.weight": torch.ones(33)}), r"'model.norm.weight' \(33,\).*\(32,\)"),
        (Named({**full(), "visual.weight": torch.ones(2)}), r"'visual.weight' \(2,\).*no such tensor"),
        (Named(without("lm_head.weight")), "lack 1 of .*'lm_head.weight'"),
        (
            Named(without("model.layers.1.mlp.up_proj.weight")),
            "lack 1 of .*'model.layers.1.mlp.up_proj.weight'",
        ),
        (Named({}), "lack 21 of"),
    ],
)
def test_weights_that_do_not_fit_are_refused_whole(source: Named, message: str) -> None:
    served = engine(tie_word_embeddings=False)
    with pytest.raises(EngineError, match=message):
        asyncio.run(served.sync(source, 1))
    asked = answer(served)
    assert asked.completion.policy_versions.tolist() == [0] * 30
    assert_exact(tiny_llama(), [asked])
