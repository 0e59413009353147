"""Deterministic order: what is computed together is decided by dispatch, never by delays."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import REPLIES, Dice, Guess, Recorder, call, guesses, members, play, renderer
from tiny import tiny_tokenizer
from tiny_model import tiny_llama

from steprl.context import AppendOnly
from steprl.engines.torch_engine import TorchEngine
from steprl.envs import ToolEnv
from steprl.rewards import RewardComposer
from steprl.rollout import Deadlines, EnvWorkflow, FailurePolicy, Pool
from steprl.tools import tool
from steprl.types import Action, Sampling, StopReason, Task, Transition


def delayed(seed: int, longest: float) -> type[Guess]:
    """`Guess`, whose steps take random time."""
    rng = Random(seed)

    class Delayed(Guess):
        async def step(self, action: Action) -> Transition:
            await asyncio.sleep(longest * rng.random())
            return await super().step(action)

    return Delayed


@settings(max_examples=12, deadline=None)
@given(delays=st.integers(0, 1 << 30), concurrency=st.integers(1, 9), group_size=st.integers(1, 3))
def test_the_engine_is_asked_in_the_same_order_whatever_the_delays(
    delays: int, concurrency: int, group_size: int
) -> None:
    def asked(seed: int) -> list[Any]:
        engine = Recorder(lambda prompt, turn: REPLIES[(len(prompt) + turn) % 4])
        play(
            delayed(seed, 0.004),
            engine,
            guesses(4),
            group_size=group_size,
            concurrency=concurrency,
            deterministic=True,
        )
        return engine.asked

    assert asked(delays) == asked(delays + 1)


def test_a_round_waits_for_every_seated_episode_and_a_free_seat_is_taken_in_dispatch_order() -> None:
    engine = Recorder(lambda _, turn: call("hint") if turn == 0 else "0")
    play(delayed(0, 0.01), engine, guesses(5), concurrency=2, deterministic=True)
    assert [session for session, _, _ in engine.asked] == [
        f"batch-{n}.0" for n in (0, 1, 0, 1, 2, 3, 2, 3, 4, 4)
    ]


def test_the_same_bits_under_random_delays_of_tools_in_threads() -> None:
    def batch(seed: int) -> list[Any]:
        rng = Random(seed)

        class Slow(ToolEnv):
            @tool
            def look(self) -> str:
                """Look."""
                time.sleep(0.01 * rng.random())
                return "nothing"

            tools = (look,)

            async def step(self, action: Action) -> Transition:
                await self.look.run({})
                return Transition(feedback=(), terminated=False)

            def reward(self, task: Task, answer: str) -> float:
                return 0.0

        groups = play(
            Slow,
            TorchEngine(tiny_llama(len(tiny_tokenizer())), slots=4, max_context=512),
            guesses(3),
            group_size=3,
            concurrency=5,
            max_steps=4,
            max_tokens=6,
            deterministic=True,
        )
        return [
            (step.action_ids.tolist(), None if step.logprobs is None else step.logprobs.tobytes())
            for t in members(groups)
            for step in t.steps
        ]

    assert batch(1) == batch(2) == batch(3)


def test_an_episode_that_is_given_up_does_not_hold_up_the_round() -> None:
    class Hangs(Guess):
        async def step(self, action: Action) -> Transition:
            if self._task is not None and self._task.id == "task-1":
                await asyncio.Event().wait()
            return await super().step(action)

    first, second, third = members(
        play(Hangs, Dice(replies=REPLIES), guesses(3), deterministic=True, deadlines=Deadlines(step=0.3))
    )
    assert second.stop_reason is StopReason.DEADLINE
    assert first.error is None and third.error is None


def test_a_retried_episode_keeps_its_seat() -> None:
    broken = [True]

    class Flaky(Guess):
        async def step(self, action: Action) -> Transition:
            if broken and self._task is not None and self._task.id == "task-1":
                broken.clear()
                raise OSError("once")
            return await super().step(action)

    calm = play(Guess, Dice(replies=REPLIES), guesses(3), group_size=2, deterministic=True)
    flaky = play(
        Flaky,
        Dice(replies=REPLIES),
        guesses(3),
        group_size=2,
        deterministic=True,
        failures=FailurePolicy(retries=1, backoff=0.0),
    )
    assert [t.reward for t in members(flaky)] == [t.reward for t in members(calm)]
    assert [t.metrics for t in members(flaky)].count({"retries": 1.0}) == 1


def test_a_batch_that_is_cancelled_leaves_nothing_behind() -> None:
    async def stopped() -> list[str]:
        engine = Recorder(lambda _, turn: "0", latency=30.0)
        pool = Pool(
            workflow=EnvWorkflow(Guess, AppendOnly()),
            engine=engine,
            renderer=renderer(),
            rewards=RewardComposer({}),
            concurrency=2,
            deterministic=True,
        )
        sampling = Sampling(stop_ids=renderer().stop_ids)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.collect(
                    guesses(5), label="b", seed=0, group_size=1, sampling=sampling, max_steps=2
                )
        assert len(asyncio.all_tasks()) == 1
        return engine.released

    assert sorted(asyncio.run(stopped())) == ["b-0.0", "b-1.0"]


def test_rounds_give_the_same_results_as_arrival_where_the_engine_is_exact() -> None:
    def facts(**options: Any) -> list[Any]:
        groups = play(Guess, Dice(replies=REPLIES), guesses(4), group_size=2, **options)
        return [(t.uid, t.reward, [s.action_ids.tolist() for s in t.steps]) for t in members(groups)]

    assert facts(deterministic=True) == facts()


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_everybody_gets_a_seat(concurrency: int) -> None:
    groups = play(
        Guess, Dice(replies=REPLIES), guesses(7), group_size=3, concurrency=concurrency, deterministic=True
    )
    assert len(members(groups)) == 21
    assert all(t.error is None for t in members(groups))
