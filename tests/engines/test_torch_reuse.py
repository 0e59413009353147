"""What the torch engine does not compute again: exact counts of prefilled tokens.

That reuse changes no result is shown beside the other exactness tests.
"""

from __future__ import annotations

import asyncio

from tiny_engine import ask, ask_all, words
from tiny_model import tiny_llama

from steprl.engines.torch_engine import TorchEngine
from steprl.types import Sampling
from steprl.weights.source import FullWeights

FOUR = Sampling(max_tokens=4)


def engine(slots: int, prefill_tokens: int = 2048) -> TorchEngine:
    return TorchEngine(tiny_llama(), slots=slots, max_context=256, prefill_tokens=prefill_tokens)


def prefilled(served: TorchEngine, session: str, prompt: list[int], sampling: Sampling = FOUR) -> int:
    """How many tokens of the prompt run through the model when this session asks."""
    before = served.stats.prefilled_tokens
    asyncio.run(ask(served, prompt, sampling, session=session))
    return served.stats.prefilled_tokens - before


def test_the_next_prompt_of_a_session_pays_for_what_is_new() -> None:
    served = engine(slots=2)
    prompt = words(0, 50)
    for turn in range(3):
        before = served.stats.prefilled_tokens
        action = asyncio.run(ask(served, prompt, FOUR, seed=turn)).ids.tolist()
        # the last token of an action has not been through the model when the action ends
        assert served.stats.prefilled_tokens - before == (50 if turn == 0 else 1 + 7)
        prompt = [*prompt, *action, *words(turn + 1, 7)]


def test_a_prompt_asked_again_runs_its_last_token_only() -> None:
    served = engine(slots=1)
    assert [prefilled(served, "a", words(0, 50)) for _ in range(3)] == [50, 1, 1]


def test_a_rewritten_context_is_reused_up_to_the_first_change() -> None:
    served, prompt = engine(slots=1), words(0, 50)
    changed = [*prompt[:30], (prompt[30] + 1) % 64, *prompt[31:]]
    assert [prefilled(served, "a", p) for p in (prompt, changed, prompt[:20])] == [50, 20, 1]


def test_a_group_that_asks_together_runs_its_prompt_once() -> None:
    for prefill_tokens in (2048, 50):
        served = engine(slots=8, prefill_tokens=prefill_tokens)
        ask_all(served, [words(0, 100)] * 8, FOUR)
        assert served.stats.prompt_tokens == 800
        assert served.stats.prefilled_tokens == 100 + 7


def test_a_group_larger_than_the_slots_runs_its_prompt_once() -> None:
    served = engine(slots=3)
    ask_all(served, [words(0, 100)] * 8, FOUR)
    assert served.stats.prefilled_tokens == 100 + 7


def test_other_prompts_do_not_wait_for_a_shared_prefix() -> None:
    served = engine(slots=4, prefill_tokens=10)
    finished: list[str] = []

    async def one(session: str, prompt: list[int]) -> None:
        await ask(served, prompt, FOUR, session=session)
        finished.append(session)

    async def all_of_them() -> None:
        long = words(0, 200)
        await asyncio.gather(one("a", long), one("b", long), one("short", words(1, 5)))

    asyncio.run(all_of_them())
    assert finished == ["short", "a", "b"]


def test_a_prefix_of_another_session_is_copied() -> None:
    served, shared = engine(slots=3), words(0, 60)
    assert prefilled(served, "a", [*shared, *words(1, 10)]) == 70
    assert prefilled(served, "b", [*shared, *words(2, 10)]) == 10
    # and the donor has lost nothing
    assert prefilled(served, "a", [*shared, *words(1, 10), 5]) == 1


def test_a_short_shared_prefix_is_computed_again() -> None:
    served, shared = engine(slots=2), words(0, 10)
    assert prefilled(served, "a", shared) == 10
    assert prefilled(served, "b", [*shared, 1]) == 11


def test_the_session_that_was_idle_for_longest_loses_its_slot() -> None:
    served = engine(slots=3)
    prompts = {name: words(seed, 40) for seed, name in enumerate("abcd")}
    for name in "abca":
        prefilled(served, name, prompts[name])
    assert prefilled(served, "d", prompts["d"]) == 40  # in place of b
    assert [prefilled(served, name, prompts[name]) for name in "acd"] == [1, 1, 1]
    assert prefilled(served, "b", prompts["b"]) == 40


def test_a_released_slot_goes_first_and_serves_others_until_then() -> None:
    served = engine(slots=3)
    prompts = {name: words(seed, 40) for seed, name in enumerate("abcde")}
    for name in "abc":
        prefilled(served, name, prompts[name])
    served.release("c")
    assert prefilled(served, "d", prompts["c"]) == 1  # c's slot, with its content
    served.release("d")
    assert prefilled(served, "e", prompts["e"]) == 40
    assert [prefilled(served, name, prompts[name]) for name in "ab"] == [1, 1]


def test_nothing_is_reused_after_new_weights() -> None:
    served, prompt = engine(slots=2), words(0, 50)
    assert prefilled(served, "a", prompt) == 50
    # the version's number does not matter: version 0 may come twice, at the start of a run
    for version in (1, 1, 0):
        asyncio.run(served.sync(FullWeights(tiny_llama()), version))
        assert prefilled(served, "a", prompt) == 50
        assert prefilled(served, "b", prompt) == 1


def test_what_several_weights_computed_serves_nobody_else() -> None:
    served, prompt = engine(slots=2), words(0, 50)

    async def sync_in_flight() -> None:
        running = asyncio.create_task(ask(served, prompt, Sampling(max_tokens=150), session="a"))
        for _ in range(5):
            await asyncio.sleep(0)
        await served.sync(FullWeights(tiny_llama(seed=1)), 1)
        # neither copied nor waited for
        await ask(served, prompt, FOUR, session="b")
        assert not running.done()
        assert served.stats.prefilled_tokens == 100
        await running

    asyncio.run(sync_in_flight())
    served.release("b")
    assert prefilled(served, "c", words(7, 40)) == 40  # in b's slot: its copy of the prompt is gone
    assert prefilled(served, "a", [*prompt, 1]) == 51


def test_an_aborted_prompt_leaves_what_was_computed() -> None:
    served, prompt = engine(slots=1, prefill_tokens=20), words(0, 100)

    async def abort() -> None:
        running = asyncio.create_task(ask(served, prompt, FOUR, session="a"))
        for _ in range(4):
            await asyncio.sleep(0)
        await served.abort("a")
        await running

    asyncio.run(abort())
    done = served.stats.prefilled_tokens
    assert 0 < done < 100
    assert prefilled(served, "a", prompt) == 100 - done
