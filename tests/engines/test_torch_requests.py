"""How requests to the torch engine end: stops, limits, aborts, cancellation, failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_engine import Asked, ask, ask_all, assert_exact, words
from tiny_model import tiny_llama

from steprl.engines.torch_engine import TorchEngine
from steprl.errors import ConfigError, EngineError
from steprl.types import Completion, Prompt, Sampling

PROMPT = [3, 1, 4, 1, 5]
LONG = Sampling(max_tokens=10_000)


def decode(ids: Sequence[int]) -> str:
    """Every token is one character."""
    return "".join(chr(ord("0") + i) for i in ids)


def engine(**settings: Any) -> TorchEngine:
    return TorchEngine(tiny_llama(), **{"slots": 2, "max_context": 128, "decode": decode, **settings})


def free_run(count: int) -> list[int]:
    """What the model says to PROMPT with seed 0 when nothing stops it."""
    (completion,) = ask_all(engine(), [PROMPT], Sampling(max_tokens=count))
    return completion.ids.tolist()


def counting(size: int, decode: Callable[[Sequence[int]], str]) -> TorchEngine:
    """An engine whose greedy policy counts: id n is followed by id n + 1."""
    model = tiny_llama(vocab=size)
    served = TorchEngine(model, slots=1, max_context=64, decode=decode)
    seen: list[torch.Tensor] = []

    def look(_: torch.nn.Module, ids_1N: tuple[torch.Tensor]) -> None:
        seen[:] = ids_1N

    def count(_: torch.nn.Module, __: Any, logits_1BV: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(seen[0] + 1, logits_1BV.shape[-1]).to(logits_1BV.dtype)

    model.get_input_embeddings().register_forward_pre_hook(look)
    model.get_output_embeddings().register_forward_hook(count)
    return served


# --- stopping -----------------------------------------------------------------------------------------


def test_a_stop_id_ends_the_action_and_belongs_to_it() -> None:
    free = free_run(30)
    for stop_ids in [(free[7],), (free[12], free[7]), (free[7], free[7])]:
        first = min(free.index(i) for i in stop_ids)
        (completion,) = ask_all(engine(), [PROMPT], Sampling(max_tokens=30, stop_ids=stop_ids))
        assert completion.ids.tolist() == free[: first + 1]
        assert completion.finish == "stop"


def test_an_end_token_that_is_also_the_padding_is_an_action_token() -> None:
    end = 7
    served, plain = (tiny_llama(eos_token_id=end, pad_token_id=end) for _ in range(2))
    sampling = Sampling(max_tokens=400, stop_ids=(end,))
    prompts = [PROMPT, [end, end, 9]]
    completions = ask_all(TorchEngine(served, slots=2, max_context=512), prompts, sampling)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.finish == "stop" and completion.ids.tolist().index(end) == len(completion.ids) - 1
        assert_exact(plain, [Asked(prompt=tuple(prompt), sampling=sampling, completion=completion)])


def test_the_models_own_end_token_means_nothing_unless_it_is_a_stop_id() -> None:
    free = free_run(30)
    model = tiny_llama(eos_token_id=free[3])
    (completion,) = ask_all(TorchEngine(model, slots=1, max_context=64), [PROMPT], Sampling(max_tokens=30))
    assert completion.ids.tolist() == free and completion.finish == "length"


def test_a_stop_id_at_the_last_permitted_token_is_a_stop() -> None:
    free = free_run(6)
    place = free.index(free[5])
    sampling = Sampling(max_tokens=place + 1, stop_ids=(free[5],))
    (completion,) = ask_all(engine(), [PROMPT], sampling)
    assert (completion.ids.tolist(), completion.finish) == (free[: place + 1], "stop")


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_may_span_tokens(length: int) -> None:
    free = free_run(30)
    stop = decode(free[10 : 10 + length])
    text = [decode(free[: n + 1]) for n in range(30)]
    first = next(n for n in range(30) if stop in text[n])
    (completion,) = ask_all(engine(), [PROMPT], Sampling(max_tokens=30, stop=("not said", stop)))
    assert completion.ids.tolist() == free[: first + 1]
    assert completion.finish == "stop"


def test_a_stop_string_of_long_characters_is_found_in_single_bytes() -> None:
    said = "ab" + "🌍🌍🌍🌍" + "cd"
    script = list(said.encode())

    def from_script(ids: Sequence[int]) -> str:
        # the engine hands over the last few ids of the action; here each id is a place in the script
        return bytes(script[i] for i in ids).decode("utf-8", errors="replace")

    sampling = Sampling(temperature=0, max_tokens=len(script) - 1, stop=("🌍🌍🌍🌍",))
    (completion,) = ask_all(counting(len(script), from_script), [[0]], sampling)
    assert completion.finish == "stop"
    assert from_script([0, *completion.ids.tolist()]) == "ab🌍🌍🌍🌍"


def test_stop_strings_need_a_decoder() -> None:
    with pytest.raises(EngineError, match="decoder"):
        ask_all(engine(decode=None), [PROMPT], Sampling(stop=("x",)))


# --- limits -------------------------------------------------------------------------------------------


def test_max_tokens_is_a_length_end() -> None:
    for count in (1, 7):
        (completion,) = ask_all(engine(), [PROMPT], Sampling(max_tokens=count))
        assert (len(completion.ids), completion.finish) == (count, "length")


def test_a_full_context_is_a_length_end() -> None:
    prompts = [words(1, 31), words(2, 20)]
    completions = ask_all(engine(max_context=32), prompts, LONG)
    assert [(len(c.ids), c.finish) for c in completions] == [(1, "length"), (12, "length")]


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(EngineError, match=r"32 tokens.*context of 32.*raise engine\.max_context"):
        ask_all(engine(max_context=32), [words(1, 32)], LONG)


@pytest.mark.parametrize("ids", [[1, 64], [-1, 3]])
def test_ids_that_the_model_does_not_know_are_refused_alone(ids: list[int]) -> None:
    served = engine()

    async def both() -> list[Completion | BaseException]:
        return await asyncio.gather(
            ask(served, PROMPT, Sampling(max_tokens=4), session="good"),
            ask(served, ids, Sampling(max_tokens=4), session="bad"),
            return_exceptions=True,
        )

    good, bad = asyncio.run(both())
    assert isinstance(good, Completion) and len(good.ids) == 4
    assert isinstance(bad, EngineError) and "0 to 63" in str(bad)


def test_media_is_refused() -> None:
    prompt = Prompt(ids=np.array(PROMPT), media=("picture",))
    with pytest.raises(EngineError, match="media"):
        asyncio.run(engine().generate(prompt, LONG, session_id="s", seed=0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 0}, "slots"),
        ({"prefill_tokens": 0}, "prefill_tokens"),
        ({"max_context": 1}, "max_context"),
        ({"max_context": 513}, "own limit 512, got 513"),
    ],
)
def test_sizes_out_of_range_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine(**settings)


# --- abort and cancellation ---------------------------------------------------------------------------


async def turns(count: int) -> None:
    """Let the engine take some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_abort_returns_what_there_is() -> None:
    served = engine(slots=1)

    async def abort() -> list[Completion]:
        running = asyncio.create_task(ask(served, PROMPT, LONG, session="a"))
        waiting = asyncio.create_task(ask(served, PROMPT, LONG, session="b"))
        await turns(10)
        await served.abort("a")
        await served.abort("b")
        await served.abort("nobody")
        return await asyncio.gather(running, waiting)

    running, waiting = asyncio.run(abort())
    assert running.finish == waiting.finish == "abort"
    assert 5 < len(running.ids) < 12 and len(waiting.ids) == 0
    assert running.ids.tolist() == free_run(len(running.ids))
    asked = Asked(prompt=tuple(PROMPT), sampling=LONG, completion=running)
    assert_exact(tiny_llama(), [asked])


def test_cancelling_whoever_awaits_frees_the_slot() -> None:
    served = engine(slots=1)

    async def cancel() -> Completion:
        cancelled = [asyncio.create_task(ask(served, PROMPT, LONG, session=str(i))) for i in range(3)]
        await turns(5)
        last = asyncio.create_task(ask(served, PROMPT, Sampling(max_tokens=3), session="last"))
        for task in cancelled:
            task.cancel()
        results = await asyncio.gather(*cancelled, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        return await asyncio.wait_for(last, timeout=20)

    assert asyncio.run(cancel()).ids.tolist() == free_run(3)
    assert served.stats.sampled_tokens < 15


# --- failure ------------------------------------------------------------------------------------------


def test_a_failing_model_is_everyones_error_and_the_engine_works_again() -> None:
    served = engine(slots=2)
    head = served._model.get_output_embeddings()

    async def fail(hook: Any) -> list[Completion | BaseException]:
        requests = [
            asyncio.create_task(ask(served, words(i, 20), LONG, session=f"s{i}", seed=i)) for i in range(5)
        ]
        await turns(6)
        handle = head.register_forward_hook(hook)
        results = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), timeout=20)
        handle.remove()
        return results

    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    def not_a_number(_: torch.nn.Module, __: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits * float("nan")

    for hook, message in ((broken, "out of memory"), (not_a_number, "not finite")):
        results = asyncio.run(fail(hook))
        assert all(isinstance(r, EngineError) and message in str(r) for r in results), results
        prompts, sampling = [words(0, 20), words(1, 25), PROMPT], Sampling(max_tokens=8)
        again, expected = ask_all(served, prompts, sampling), ask_all(engine(), prompts, sampling)
        assert [c.ids.tolist() for c in again] == [c.ids.tolist() for c in expected]


def test_keys_of_a_failed_pass_poison_nobody() -> None:
    served = engine(slots=2)
    layer = served._model.model.layers[0].self_attn.v_proj.weight
    good = layer.clone()
    layer.data.fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        ask_all(served, [words(1, 60), words(2, 60)], LONG)
    layer.data.copy_(good)
    prompts = [PROMPT, words(3, 50)]
    completions = ask_all(served, prompts, Sampling(max_tokens=5))
    for prompt, completion in zip(prompts, completions, strict=True):
        asked = Asked(prompt=tuple(prompt), sampling=Sampling(max_tokens=5), completion=completion)
        assert_exact(tiny_llama(), [asked])


# --- event loops --------------------------------------------------------------------------------------


def test_one_engine_serves_several_event_loops_in_succession() -> None:
    served = engine()
    answers = [asyncio.run(ask(served, PROMPT, Sampling(max_tokens=5))).ids.tolist() for _ in range(3)]
    assert answers == [free_run(5)] * 3


def test_a_loop_that_ends_with_requests_in_flight_leaves_none_behind() -> None:
    served = engine(slots=1)

    async def walk_away() -> None:
        for i in range(3):
            asyncio.get_running_loop().create_task(ask(served, PROMPT, LONG, session=str(i)))
        await turns(4)

    asyncio.run(walk_away())
    assert asyncio.run(ask(served, PROMPT, Sampling(max_tokens=5))).ids.tolist() == free_run(5)
