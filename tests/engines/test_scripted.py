"""The scripted engine: replies in order or from a function, exact ids, limits, aborts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from steprl.engines.scripted import Script, ScriptedEngine
from steprl.errors import EngineError
from steprl.types import Completion, Engine, Prompt, Sampling

END = 0


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def decode(ids: Sequence[int]) -> str:
    return "".join(chr(i) for i in ids)


def engine(script: Script, *, max_context: int = 100, latency: float = 0.0) -> ScriptedEngine:
    return ScriptedEngine(script, encode=encode, decode=decode, max_context=max_context, latency=latency)


async def ask(
    served: Engine,
    prompt: str = "?",
    *,
    session: str = "s",
    max_tokens: int = 50,
    stop_ids: Sequence[int] = (END,),
) -> Completion:
    sampling = Sampling(max_tokens=max_tokens, stop_ids=tuple(stop_ids))
    return await served.generate(Prompt(ids=np.array(encode(prompt))), sampling, session_id=session, seed=0)


def test_a_reply_is_encoded_closed_and_certain() -> None:
    completion = asyncio.run(ask(engine(["hey"])))
    assert completion.ids.tolist() == [*encode("hey"), END]
    assert completion.logprobs is not None and completion.logprobs.tolist() == [0.0] * 4
    assert completion.policy_versions.tolist() == [0] * 4
    assert completion.finish == "stop"


def test_the_first_stop_id_closes_and_without_one_nothing_does() -> None:
    assert asyncio.run(ask(engine(["a"]), stop_ids=(7, 8))).ids.tolist() == [97, 7]
    assert asyncio.run(ask(engine(["a"]), stop_ids=())).ids.tolist() == [97]


def test_every_session_plays_the_list_from_its_start() -> None:
    served = engine(["one", "two"])

    async def interleaved() -> list[str]:
        order = ["a", "b", "b", "a"]
        return [decode((await ask(served, session=s)).ids[:-1].tolist()) for s in order]

    assert asyncio.run(interleaved()) == ["one", "one", "two", "two"]


def test_a_list_that_has_run_out_says_so() -> None:
    served = engine(["one"])
    asyncio.run(ask(served))
    with pytest.raises(EngineError, match="1 replies, this session asks for another"):
        asyncio.run(ask(served))


def test_a_function_sees_the_prompt_and_the_turn() -> None:
    served = engine(lambda prompt, turn: f"{prompt}{turn}")
    replies = [asyncio.run(ask(served, prompt)).ids[:-1].tolist() for prompt in ("x", "y")]
    assert [decode(ids) for ids in replies] == ["x0", "y1"]


@pytest.mark.parametrize("script", [[[5, 6, 7]], lambda prompt, turn: (5, 6, 7)])
def test_exact_ids_get_nothing_added(script: Script) -> None:
    completion = asyncio.run(ask(engine(script)))
    assert (completion.ids.tolist(), completion.finish) == ([5, 6, 7], "stop")


@pytest.mark.parametrize(
    ("max_tokens", "max_context", "ids", "finish"),
    [(3, 100, [97, 98, 99], "length"), (4, 100, [97, 98, 99, END], "stop"), (50, 4, [97, 98], "length")],
)
def test_a_reply_is_cut_where_a_model_would_be(
    max_tokens: int, max_context: int, ids: list[int], finish: str
) -> None:
    served = engine(["abc"], max_context=max_context)
    completion = asyncio.run(ask(served, "??", max_tokens=max_tokens))
    assert (completion.ids.tolist(), completion.finish) == (ids, finish)


def test_a_prompt_that_fills_the_context_is_refused_and_takes_no_turn() -> None:
    served = engine(["one"], max_context=4)
    with pytest.raises(EngineError, match="4 tokens leaves no room in a context of 4"):
        asyncio.run(ask(served, "????"))
    assert asyncio.run(ask(served, "?")).ids.tolist() == encode("one")


def test_answers_with_a_latency_come_side_by_side() -> None:
    served = engine(["a"], latency=0.1)

    async def together() -> None:
        await asyncio.gather(*(ask(served, session=str(i)) for i in range(20)))

    started = time.perf_counter()
    asyncio.run(together())
    assert 0.1 <= time.perf_counter() - started < 1.0


def test_abort_empties_the_requests_in_flight_and_no_later_ones() -> None:
    served = engine(["one", "two"], latency=0.01)

    async def abort() -> list[Completion]:
        running = asyncio.create_task(ask(served, session="a"))
        other = asyncio.create_task(ask(served, session="b"))
        await asyncio.sleep(0)
        await served.abort("a")
        return [await running, await ask(served, session="a"), await other]

    answers = asyncio.run(abort())
    assert [(len(c.ids), c.finish) for c in answers] == [(0, "abort"), (4, "stop"), (4, "stop")]


def test_tokens_carry_the_version_of_the_last_sync() -> None:
    served = engine(["a", "a"])

    class Nothing:
        kind = "full"

        def tensors(self) -> object:
            return iter(())

    asyncio.run(served.sync(Nothing(), 4))  # type: ignore[arg-type]
    assert served.version == 4
    assert asyncio.run(ask(served)).policy_versions.tolist() == [4, 4]
