"""What a session records: exactly what the engine was given and exactly what it sampled, and why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import Guess, Recorder, call, guesses, only, play, renderer

from steprl.errors import EngineError, EnvError
from steprl.renderers import extends
from steprl.types import (
    Message,
    Observation,
    Session,
    StopReason,
    Task,
    ToolCall,
    Transition,
)

ASK = Observation(text="Say something.")


class Flow:
    """A workflow from a function."""

    def __init__(self, run: Callable[[Session], Awaitable[None]]) -> None:
        self._run = run

    async def run(self, task: Task, session: Session) -> None:
        await self._run(session)


def split(text: str, cuts: list[int]) -> list[int]:
    """Ids of ``text`` cut at the given places before it is encoded, and an end of turn."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
    parts = [text[start:end] for start, end in pairwise(places)]
    return [*(i for part in parts for i in renderer().encode(part)), renderer().stop_ids[-1]]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 60), max_size=20),
    st.lists(st.integers(1, 60), max_size=20),
)
def test_sampled_ids_are_kept_exactly_through_a_tool_episode(first: list[int], second: list[int]) -> None:
    """However a model splits its words into tokens, the record and every later prompt have its own split."""
    replies = [split(call("hint"), first), split("Let me think. " + call("hint"), second), split("2", [])]
    engine = Recorder(replies)
    t = only(play(Guess, engine, guesses(1)))
    assert [step.action_ids.tolist() for step in t.steps] == replies
    assert [tuple(step.prompt_ids.tolist()) for step in t.steps] == [asked for _, asked, _ in engine.asked]
    for before, after in pairwise(t.steps):
        assert extends(before.prompt_ids, before.action_ids, after.prompt_ids)
        assert isinstance(before.calls[0], ToolCall) and before.calls[0].name == "hint"
    assert all(step.sampled_mask.all() for step in t.steps)


def test_a_split_that_no_tokenizer_would_choose_survives() -> None:
    text = call("hint")
    letters = split(text, list(range(len(text))))
    assert len(letters) > len(split(text, [])) + 20
    t = only(play(Guess, Recorder([letters, split("0", [])]), guesses(1)))
    assert t.steps[0].action_ids.tolist() == letters
    assert t.steps[1].prompt_ids.tolist()[len(t.steps[0].prompt_ids) :][: len(letters)] == letters


def test_a_step_has_everything_it_was_sampled_with() -> None:
    engine = Recorder([call("hint"), "0"])
    engine.version = 7
    t = only(play(Guess, engine, guesses(1), max_tokens=200))
    step = t.steps[0]
    assert step.policy_versions.tolist() == [7] * len(step.action_ids)
    assert step.logprobs is not None and np.isfinite(step.logprobs).all()
    assert step.sampling.max_tokens == 200 and step.sampling.stop_ids == renderer().stop_ids
    assert [(m.role, m.content) for m in step.feedback] == [("tool", "small")]
    assert (step.kind, step.agent, step.finish) == ("act", "policy", "stop")
    assert set(step.timings) == {"engine", "env"} and all(v >= 0 for v in step.timings.values())
    assert t.stop_reason is StopReason.TERMINATED and t.final_prompt_ids is None


def test_time_in_the_environment_is_measured_for_the_last_step_too() -> None:
    class Slow(Guess):
        async def reward(self, task: Task, answer: str) -> float:  # type: ignore[override]
            await asyncio.sleep(0.02)
            return 0.0

    t = only(play(Slow, Recorder(["0"]), guesses(1)))
    assert t.steps[-1].timings["env"] >= 0.02 > t.steps[-1].timings["engine"]


def test_an_action_cut_by_length_is_recorded_as_cut() -> None:
    t = only(play(Guess, Recorder(["a very long answer indeed", "0"]), guesses(1), max_tokens=3))
    assert (len(t.steps[0].action_ids), t.steps[0].finish) == (3, "length")
    assert extends(t.steps[0].prompt_ids, t.steps[0].action_ids, t.steps[1].prompt_ids)


# --- why an episode ends ------------------------------------------------------------------------------


def test_the_step_limit_truncates_and_keeps_the_next_prompt() -> None:
    engine = Recorder([call("hint")] * 9)
    t = only(play(Guess, engine, guesses(1), max_steps=3))
    assert t.stop_reason is StopReason.MAX_STEPS and len(t.steps) == len(engine.asked) == 3
    assert t.final_prompt_ids is not None
    assert extends(t.steps[-1].prompt_ids, t.steps[-1].action_ids, t.final_prompt_ids)
    assert t.reward == 0.0


def test_an_episode_that_ends_with_the_last_allowed_step_is_terminated() -> None:
    t = only(play(Guess, Recorder([call("hint"), "0"]), guesses(1), max_steps=2))
    assert t.stop_reason is StopReason.TERMINATED and t.reward == 1.0


def test_a_full_context_truncates_and_keeps_the_prompt_that_did_not_fit() -> None:
    long = only(play(Guess, Recorder([call("hint")] * 9), guesses(1), max_steps=4))
    room = len(long.steps[2].prompt_ids)
    engine = Recorder([call("hint")] * 9, max_context=room)
    t = only(play(Guess, engine, guesses(1)))
    assert t.stop_reason is StopReason.CONTEXT_FULL and len(t.steps) == 2
    assert t.final_prompt_ids is not None
    assert t.final_prompt_ids.tolist() == long.steps[2].prompt_ids.tolist()


def test_a_first_prompt_that_does_not_fit_is_an_error_that_says_how_long_it_is() -> None:
    with pytest.raises(EngineError, match=r"first prompt of task 'task-0' has \d+ tokens, tool descriptions"):
        play(Guess, Recorder(["0"], max_context=20), guesses(1))


def test_an_aborted_request_ends_the_episode_without_a_final_prompt() -> None:
    engine = Recorder(["one", "two"], latency=0.05)

    async def run(session: Session) -> None:
        await session.act(ASK)
        asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(engine.abort(session.uid)))
        await session.act(ASK)
        raise AssertionError("nothing runs after the stop")

    t = only(play(Flow(run), engine))
    assert t.stop_reason is StopReason.ABORTED and t.final_prompt_ids is None and t.error is None
    assert [step.finish for step in t.steps] == ["stop", "abort"]
    assert len(t.steps[1].action_ids) == 0


def test_a_workflow_that_returns_has_ended_its_episode() -> None:
    async def early(session: Session) -> None:
        await session.act(ASK)

    async def at_once(session: Session) -> None:
        pass

    assert [len(only(play(Flow(run), Recorder(["one"]))).steps) for run in (early, at_once)] == [1, 0]
    assert only(play(Flow(early), Recorder(["one"]))).stop_reason is StopReason.TERMINATED


def test_a_workflow_can_say_that_a_limit_ended_it() -> None:
    async def run(session: Session) -> None:
        await session.act(ASK)
        session.end(truncated=True)

    assert only(play(Flow(run), Recorder(["one"]))).stop_reason is StopReason.MAX_STEPS


# --- misuse -------------------------------------------------------------------------------------------


async def _act_after_the_end(session: Session) -> None:
    session.end()
    await session.act(ASK)


async def _observe_first(session: Session) -> None:
    session.observe(Transition())


async def _reward_first(session: Session) -> None:
    session.reward(1.0, "bonus")


async def _ask_twice_at_once(session: Session) -> None:
    await asyncio.gather(session.act(ASK), session.act(ASK))


async def _reward_nan(session: Session) -> None:
    await session.act(ASK)
    session.reward(float("nan"), "bonus")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (_act_after_the_end, "the episode has ended"),
        (_observe_first, "session.observe comes after the first action"),
        (_reward_first, "session.reward comes after the first action"),
        (_ask_twice_at_once, "one action at a time"),
        (_reward_nan, "reward 'bonus' must be a finite number"),
    ],
)
def test_misuse_is_an_error_of_the_episode(run: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        play(Flow(run), Recorder(["one", "two"]))


def test_an_interrupted_question_can_be_asked_again() -> None:
    engine = Recorder(["one", "two"], latency=0.05)

    async def run(session: Session) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.act(ASK), 0.001)
        await session.act(ASK)

    assert len(only(play(Flow(run), engine)).steps) == 1


# --- several agents, summaries, rewards ---------------------------------------------------------------


def test_each_agent_is_a_chain_of_its_own_and_branches_follow_what_was_said() -> None:
    class Debate:
        """A proposer and a critic; the proposer speaks again only if the critic objects."""

        async def run(self, task: Task, session: Session) -> None:
            proposal = await session.act(Observation(text="Propose."), agent="proposer")
            said = (Message(role="user", content=proposal.text),)
            verdict = await session.act(Observation(messages=said), agent="critic")
            if "no" in verdict.text:
                await session.act(Observation(text="Propose again."), agent="proposer")
                session.reward(-0.5, "revised")
            await session.act(Observation(messages=said), agent="critic")
            session.reward(1.0, "outcome")

    accepted = only(play(Debate(), Recorder(["A", "yes", "fine"])))
    assert [(s.agent, s.parent) for s in accepted.steps] == [
        ("proposer", None),
        ("critic", None),
        ("critic", 1),
    ]
    revised = only(play(Debate(), Recorder(["A", "no", "B", "fine"])))
    assert [(s.agent, s.parent) for s in revised.steps] == [
        ("proposer", None),
        ("critic", None),
        ("proposer", 0),
        ("critic", 1),
    ]
    assert (accepted.reward, revised.reward) == (1.0, 0.5)


def test_rewards_of_one_name_add_up_and_join_those_of_the_environment() -> None:
    async def run(session: Session) -> None:
        await session.act(ASK)
        session.observe(Transition(rewards={"bonus": 1.0, "outcome": 0.5}))
        session.reward(0.25, "bonus")
        session.reward(0.25, "bonus")
        session.reward(3.0, "style")

    (step,) = only(play(Flow(run), Recorder(["one"]), weights={"style": 0.1})).steps
    assert step.rewards == {"bonus": 1.5, "outcome": 0.5, "style": 3.0}
    assert step.reward == pytest.approx(1.5 + 0.5 + 0.3)


def test_rewards_are_composed_once_with_their_weights() -> None:
    weights = {"outcome": 2.0, "malformed_calls": -0.5}
    t = only(play(Guess, Recorder(["<tool_call>{]</tool_call>", "0"]), guesses(1), weights=weights))
    assert [dict(step.rewards) for step in t.steps] == [
        {"malformed_calls": 1.0},
        {"malformed_calls": 0.0, "outcome": 1.0},
    ]
    assert [step.reward for step in t.steps] == [-0.5, 2.0]


def test_summaries_are_steps_that_do_not_count_against_the_limit() -> None:
    async def run(session: Session) -> None:
        for _ in range(3):
            await session.act(ASK)
            await session.act(Observation(text="Summarise."), kind="summary")
        await session.act(ASK)

    engine = Recorder(["x"] * 9)
    t = only(play(Flow(run), engine, max_steps=3))
    assert t.stop_reason is StopReason.MAX_STEPS
    assert [step.kind for step in t.steps] == ["act", "summary"] * 3
    assert [step.parent for step in t.steps] == [None, 0, 1, 2, 3, 4]


def test_a_reward_for_a_summary_is_not_lost() -> None:
    async def run(session: Session) -> None:
        await session.act(ASK)
        await session.act(Observation(text="Summarise."), kind="summary")
        session.reward(0.5, "faithful")

    t = only(play(Flow(run), Recorder(["x"] * 2)))
    assert [step.reward for step in t.steps] == [0.0, 0.5]
