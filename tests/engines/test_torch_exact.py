"""The torch engine computes what the plain model computes, whatever the crowd around a request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import ARCHITECTURES, Asked, ask, ask_all, assert_exact, episode, words
from tiny_model import tiny_llama
from transformers import AutoModelForCausalLM, PreTrainedModel

from steprl.engines.torch_engine import TorchEngine
from steprl.types import Completion, Sampling
from steprl.weights.source import FullWeights

WAYS = [
    Sampling(temperature=1.0, max_tokens=9),
    Sampling(temperature=0.6, max_tokens=4),
    Sampling(temperature=1.0, top_p=0.8, max_tokens=6),
    Sampling(temperature=0.6, top_k=5, max_tokens=12),
    Sampling(temperature=1.3, top_k=20, top_p=0.9, max_tokens=3),
    Sampling(temperature=0.0, max_tokens=7),
]


async def crowd(engine: TorchEngine, episodes: int) -> list[Asked]:
    """Sessions of one to three turns that join at different times, every second one with the same opening."""
    opening = words(999, 25)
    runs = []
    for seed in range(episodes):
        prompt = [*(opening if seed % 2 else []), *words(seed, 1 + seed * 5 % 17)]
        turns = [(WAYS[(seed + turn) % len(WAYS)], 1 + (seed + turn) % 4) for turn in range(1 + seed % 3)]
        runs.append(episode(engine, prompt, turns, seed=seed, delay=seed * 2 % 9))
    return [asked for run in await asyncio.gather(*runs) for asked in run]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logprobs_are_the_plain_models_in_a_ragged_crowd(name: str) -> None:
    # fewer slots than sessions, and a prefill budget that cuts the prompts into pieces
    engine = TorchEngine(ARCHITECTURES[name](), slots=5, max_context=128, prefill_tokens=11)
    asked = asyncio.run(crowd(engine, 14))
    assert {len(a.ids) for a in asked} == {3, 4, 6, 7, 9, 12}
    assert assert_exact(ARCHITECTURES[name](), asked) == engine.stats.sampled_tokens
    assert engine.stats.prefilled_tokens < engine.stats.prompt_tokens


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_is_generate_without_sampling(name: str) -> None:
    prompts = [words(seed, length) for seed, length in enumerate((1, 4, 30, 12, 12))]
    together = ask_all(
        TorchEngine(ARCHITECTURES[name](), slots=8, max_context=128),
        prompts,
        Sampling(temperature=0, max_tokens=15),
    )
    plain = ARCHITECTURES[name]()
    for prompt, completion in zip(prompts, together, strict=True):
        ids = torch.tensor([prompt])
        expected = plain.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=15, use_cache=False
        )
        assert completion.ids.tolist() == expected[0, len(prompt) :].tolist()


def test_a_greedy_token_has_the_models_own_log_probability_whatever_the_filters() -> None:
    sampling = Sampling(temperature=0, top_k=2, top_p=0.1, max_tokens=5)
    (completion,) = ask_all(TorchEngine(tiny_llama(), slots=1, max_context=64), [[1, 2, 3]], sampling)
    neutral = Sampling(max_tokens=5)
    assert_exact(tiny_llama(), [Asked(prompt=(1, 2, 3), sampling=neutral, completion=completion)])


def test_a_context_that_outgrows_the_first_storage_is_exact() -> None:
    # torch fills new memory with NaN in this mode: whoever reads what nobody wrote is found out
    torch.use_deterministic_algorithms(True)
    try:
        engine = TorchEngine(tiny_llama(), slots=4, max_context=512)
        prompts = [words(0, 300), words(1, 5), words(2, 250)]
        short, long = Sampling(max_tokens=20), Sampling(max_tokens=40)

        async def grow() -> list[Asked]:
            ways = [long, short, long]
            runs = [
                # the short one is under way when the long ones make the storage grow
                episode(engine, p, [(way, 3)] * 2, seed=seed, delay=0 if len(p) == 5 else 8)
                for seed, (p, way) in enumerate(zip(prompts, ways, strict=True))
            ]
            return [asked for run in await asyncio.gather(*runs) for asked in run]

        asked = asyncio.run(grow())
    finally:
        torch.use_deterministic_algorithms(False)
    assert_exact(tiny_llama(), asked)


def test_the_same_request_gives_the_same_tokens_alone_and_in_a_crowd() -> None:
    sampling = Sampling(max_tokens=20)
    prompts = [words(seed, 3 + seed) for seed in range(12)]

    def engine() -> TorchEngine:
        return TorchEngine(tiny_llama(), slots=5, max_context=64, prefill_tokens=8)

    async def in_order(order: list[int]) -> dict[int, list[int]]:
        served = engine()
        requests = [ask(served, prompts[i], sampling, session=f"s{i}", seed=i) for i in order]
        answers = await asyncio.gather(*requests)
        return {i: answer.ids.tolist() for i, answer in zip(order, answers, strict=True)}

    alone = {i: asyncio.run(in_order([i]))[i] for i in range(12)}
    assert asyncio.run(in_order(list(range(12)))) == alone
    assert asyncio.run(in_order(list(range(11, -1, -1)))) == alone
    assert len({tuple(ids) for ids in alone.values()}) == 12


def test_the_seed_decides() -> None:
    engine = TorchEngine(tiny_llama(), slots=4, max_context=64)

    async def with_seeds() -> list[Completion]:
        seeds = (1, 1, 2)
        return await asyncio.gather(
            *(
                ask(engine, [5, 6, 7], Sampling(max_tokens=20), session=str(i), seed=s)
                for i, s in enumerate(seeds)
            )
        )

    first, again, other = [c.ids.tolist() for c in asyncio.run(with_seeds())]
    assert first == again != other


@settings(max_examples=10, deadline=None)
@given(
    slots=st.integers(1, 6),
    prefill_tokens=st.integers(1, 40),
    episodes=st.lists(
        st.tuples(
            st.integers(0, 30),  # tokens of a shared opening
            st.integers(1, 20),  # tokens of its own
            st.integers(0, 6),  # when it joins
            st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20)), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_reuse_changes_no_result(
    slots: int, prefill_tokens: int, episodes: list[tuple[int, int, int, list[tuple[int, int]]]]
) -> None:
    engine = TorchEngine(tiny_llama(), slots=slots, max_context=256, prefill_tokens=prefill_tokens)
    opening = words(999, 30)

    async def schedule() -> list[Asked]:
        runs = []
        for seed, (shared, own, delay, turns) in enumerate(episodes):
            ways = [(Sampling(temperature=0.8, max_tokens=most), new) for most, new in turns]
            prompt = [*opening[:shared], *words(seed, own)]
            runs.append(episode(engine, prompt, ways, seed=seed, delay=delay))
        return [asked for run in await asyncio.gather(*runs) for asked in run]

    asked = asyncio.run(schedule())
    alone = TorchEngine(tiny_llama(), slots=1, max_context=256)
    seeds = [
        100 * seed + turn for seed, (_, _, _, turns) in enumerate(episodes) for turn in range(len(turns))
    ]
    for request, seed in zip(asked, seeds, strict=True):
        asyncio.run(alone.sync(FullWeights(tiny_llama()), 0))  # nothing computed before may be used after it
        expected = asyncio.run(ask(alone, request.prompt, request.sampling, seed=seed))
        assert expected.ids.tolist() == request.ids
        np.testing.assert_allclose(request.completion.logprobs, expected.logprobs, atol=1e-4)
    assert alone.stats.prefilled_tokens == alone.stats.prompt_tokens


def test_a_generation_config_in_the_models_folder_changes_nothing(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.3, "top_k": 5}')
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert model.generation_config is not None and model.generation_config.temperature == 0.3
    prompts, sampling = [words(1, 9), words(2, 4)], Sampling(max_tokens=30)
    answers = ask_all(TorchEngine(model, slots=2, max_context=64), prompts, sampling)
    expected = ask_all(TorchEngine(tiny_llama(), slots=2, max_context=64), prompts, sampling)
    assert [a.ids.tolist() for a in answers] == [e.ids.tolist() for e in expected]
    asked = (
        Asked(prompt=tuple(p), sampling=sampling, completion=c) for p, c in zip(prompts, answers, strict=True)
    )
    assert_exact(tiny_llama(), asked)
