"""Summaries: when one is asked for, what is seen then, and what the session records of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from histories import HISTORIES, OPENING, Meter, contents, everything, history, shown
from hypothesis import given
from hypothesis import strategies as st
from playing import Guess, Recorder, call, guesses, members, only, play, renderer

from steprl.batch import rows
from steprl.context import LlmSummary
from steprl.credit import Gae, ReinforcePp
from steprl.errors import EnvError
from steprl.renderers import extends
from steprl.rewards import RewardComposer
from steprl.rollout import EnvWorkflow, Pool
from steprl.types import (
    Action,
    History,
    Message,
    Observation,
    Scores,
    StopReason,
    Trajectory,
    Transition,
)

THREE = history(("a", ["x" * 50]), ("b", ["y" * 50]), ("c", ["z" * 50]))
FULL = Meter().count(everything(THREE))
RULE = LlmSummary(budget=FULL - 1, keep_last=1, prompt="Sum up.", heading="Before:")
TOLD = contents(OPENING)


# --- the rule alone -----------------------------------------------------------------------------------


def test_nothing_is_asked_for_within_the_budget() -> None:
    actor = Meter()
    assert shown(LlmSummary(budget=FULL), THREE, actor) == everything(THREE)
    assert actor.asked == []


def test_a_summary_stands_for_all_but_the_last_rounds() -> None:
    actor = Meter("noted")
    assert contents(shown(RULE, THREE, actor)) == [*TOLD, "Before:\nnoted", "c", "z" * 50]
    assert actor.asked == [(*everything(THREE), Message(role="user", content="Sum up."))]


def test_with_nothing_kept_the_summary_stands_for_everything() -> None:
    rule = LlmSummary(budget=FULL - 1, keep_last=0, heading="Before:")
    assert contents(shown(rule, THREE, Meter("noted"))) == [*TOLD, "Before:\nnoted"]


def test_the_next_summary_takes_the_last_one_in() -> None:
    actor = Meter("one", "two")
    shown(RULE, THREE, actor)
    past = THREE.summarised(actor.written[0])
    assert contents(shown(RULE, past, actor)) == [*TOLD, "Before:\none", "c", "z" * 50]
    past = past.then(Action(text="d", token_ids=(1,)), (Message(role="tool", content="w" * 190),))
    assert contents(shown(RULE, past, actor)) == [*TOLD, "Before:\ntwo", "d", "w" * 190]
    assert contents(actor.asked[1]) == [*TOLD, "Before:\none", "c", "z" * 50, "d", "w" * 190, "Sum up."]
    assert len(actor.asked) == 2


def test_where_a_summary_would_stand_for_no_round_none_is_asked_for() -> None:
    for rounds in range(3):
        past = History(opening=OPENING, rounds=THREE.rounds[:rounds])
        assert shown(LlmSummary(budget=1, keep_last=2), past) == everything(past)


def test_the_thinking_of_a_summary_is_not_seen() -> None:
    assert contents(shown(RULE, THREE, Meter("<think>Hm.</think>\nnoted")))[2] == "Before:\nnoted"


@given(HISTORIES, st.integers(1, 300), st.integers(0, 2))
def test_a_history_with_its_summaries_says_what_the_model_saw(
    past: History, budget: int, keep_last: int
) -> None:
    """Played forward round by round, and then at each moment from the history alone, as a fork would."""
    rule = LlmSummary(budget=budget, keep_last=keep_last)
    so_far, moments = History(opening=past.opening), []
    for number, added in enumerate(past.rounds):
        so_far = so_far.then(added.action, added.feedback)
        actor = Meter(f"summary {number}")
        seen = shown(rule, so_far, actor)
        for action in actor.written:
            so_far = so_far.summarised(action)
        moments.append((so_far, seen))
    for moment, seen in moments:
        actor = Meter()
        assert shown(rule, moment, actor) == seen and actor.asked == []
        assert seen[:2] == list(OPENING)
        newest = everything(History(opening=(), rounds=moment.rounds[len(moment.rounds) - keep_last :]))
        assert not newest or seen[-len(newest) :] == newest
        # whatever is not seen was there when a summary was asked for
        told = moment.summaries[-1].rounds if moment.summaries else 0
        since = everything(History(opening=(), rounds=moment.rounds[told:]))
        assert not since or seen[-len(since) :] == since


# --- written by somebody else -------------------------------------------------------------------------


async def clerk(messages: Sequence[Message]) -> str:
    return f"{len(messages)} messages"


async def broken(messages: Sequence[Message]) -> str:
    raise ConnectionError("no route")


async def silent(messages: Sequence[Message]) -> Any:
    return None


async def wordless(messages: Sequence[Message]) -> str:
    return " \n"


async def garbled(messages: Sequence[Message]) -> str:
    return "\ud800"


def test_a_function_writes_in_the_policys_place() -> None:
    rule = LlmSummary(budget=FULL - 1, writer=f"{__name__}:clerk", heading="Before:")
    assert contents(shown(rule, THREE, Meter()))[2] == "Before:\n9 messages"


@pytest.mark.parametrize(
    ("writer", "message"),
    [
        ("broken", "asked with 9 messages: it raised ConnectionError: no route"),
        ("silent", "it returned None, which is not text"),
        ("wordless", "all that it stands for would be lost"),
        ("garbled", "cannot be written as UTF-8"),
    ],
)
def test_its_errors_are_told_as_its_own(writer: str, message: str) -> None:
    rule = LlmSummary(budget=FULL - 1, writer=f"{__name__}:{writer}")
    with pytest.raises(EnvError) as caught:
        shown(rule, THREE, Meter())
    assert f"llm_summary.writer = '{__name__}:{writer}'" in str(caught.value)
    assert message in str(caught.value)


# --- in an episode ------------------------------------------------------------------------------------

HINT = call("hint")
LONG = call("hint") + " " + "so it goes on " * 10


@cache
def two_rounds() -> int:
    """Tokens of a prompt of ``Guess`` after two rounds of ``LONG``."""
    return len(only(play(Guess, Recorder([LONG, LONG, "0"]), guesses(1))).steps[-1].prompt_ids)


def summarising(**options: Any) -> LlmSummary:
    """A rule that asks for a summary after two rounds of ``LONG``."""
    options = {"keep_last": 0, **options}
    return LlmSummary(budget=two_rounds() - 1, prompt="Sum up.", heading="Before:", **options)


def episode(replies: Sequence[Any], rule: LlmSummary, **options: Any) -> Trajectory:
    return only(play(Guess, Recorder(replies), guesses(1), context=rule, **options))


def text_of(step: Any) -> str:
    return renderer().decode(step.prompt_ids.tolist())


REPLIES = [LONG, LONG, "It is small.", HINT, "0"]


def test_a_summary_is_a_step_of_its_own_with_the_tokens_that_were_sampled() -> None:
    t = episode(REPLIES, summarising(), max_steps=4)
    assert t.stop_reason is StopReason.TERMINATED and t.reward == 1.0
    assert [step.kind for step in t.steps] == ["act", "act", "summary", "act", "act"]
    assert [step.parent for step in t.steps] == [None, 0, 1, 2, 3]
    assert {step.agent for step in t.steps} == {"policy"}
    summary = t.steps[2]
    assert summary.action_ids.tolist() == [*renderer().encode("It is small."), renderer().stop_ids[0]]
    assert summary.sampled_mask.all() and summary.logprobs is not None
    assert summary.reward == 0.0 and summary.feedback == ()
    assert t.steps[1].feedback[0].content == "small"  # what came back stays with the action that it answers


def test_the_model_goes_on_from_the_summary() -> None:
    t = episode(REPLIES, summarising(), max_steps=4)
    after = text_of(t.steps[3])
    assert "Before:\nIt is small." in after and "so it goes on" not in after and "Sum up." not in after
    assert text_of(t.steps[2]).endswith("Sum up.<|im_end|>\n<|im_start|>assistant\n")
    assert text_of(t.steps[4]).startswith(after)
    assert len(t.steps[3].prompt_ids) < len(t.steps[1].prompt_ids)


def test_the_request_extends_the_last_prompt_so_it_shares_a_row() -> None:
    t = episode(REPLIES, summarising(), max_steps=4)
    joined = [extends(a.prompt_ids, a.action_ids, b.prompt_ids) for a, b in pairwise(t.steps)]
    assert joined == [True, True, False, True]
    assert [len(row.step_keys) for row in rows([t])] == [3, 2]


def test_summaries_follow_each_other_and_do_not_count_as_steps() -> None:
    replies = [LONG, LONG, "one", LONG, LONG, "two", "0"]
    t = episode(replies, summarising(), max_steps=5)
    assert [step.kind for step in t.steps] == ["act", "act", "summary"] * 2 + ["act"]
    assert "Before:\none" in text_of(t.steps[5]) and "Before:\none" not in text_of(t.steps[6])
    assert "Before:\ntwo" in text_of(t.steps[6])


def test_what_is_counted_is_the_prompt_with_its_tools() -> None:
    exact = LlmSummary(budget=two_rounds(), keep_last=0)
    assert all(step.kind == "act" for step in episode([LONG, LONG, "0"], exact).steps)


def test_credit_runs_along_the_chain_and_past_the_summary_undiscounted() -> None:
    t = episode(REPLIES, summarising(), max_steps=4)
    group = play(Guess, Recorder(REPLIES), guesses(1), context=summarising(), max_steps=4)
    (credits,) = [ReinforcePp(credit="step", gamma=0.5, whiten=False)(group, Scores())]
    found = [float(credits.advantages[t.key(i)][0]) for i in range(5)]
    assert found == pytest.approx([0.125, 0.25, 0.5, 0.5, 1.0])  # the summary and what follows it: the same


def test_a_request_that_does_not_fit_ends_the_episode_as_truncated() -> None:
    asked = len(episode(REPLIES, summarising(), max_steps=4).steps[2].prompt_ids)
    engine = Recorder(REPLIES, max_context=asked)
    t = only(play(Guess, engine, guesses(1), context=summarising()))
    assert t.stop_reason is StopReason.CONTEXT_FULL
    assert [step.kind for step in t.steps] == ["act", "act"]
    assert t.final_prompt_ids is not None and len(t.final_prompt_ids) == asked


def test_a_summary_that_is_cut_is_what_there_is() -> None:
    replies = [LONG, LONG, "It is small and " + "so on " * 300, "0"]
    t = episode(replies, summarising(), max_tokens=200)
    assert t.steps[2].finish == "length" and len(t.steps[2].action_ids) == 200
    assert "Before:\nIt is small and so on" in text_of(t.steps[3])


class Brittle(Guess):
    """Breaks once, when a hint is asked for in few words: after the summary."""

    broken = itertools.count()

    async def step(self, action: Action) -> Transition:
        if action.text == HINT and next(self.broken) == 0:
            raise OSError("passing")
        return await super().step(action)


@pytest.mark.parametrize("writer", ["policy", f"{__name__}:counting"])
def test_a_retry_takes_the_recorded_summaries_again(writer: str) -> None:
    WRITTEN.clear()
    engine = Recorder(REPLIES if writer == "policy" else [LONG, LONG, HINT, "0"])
    Brittle.broken = itertools.count()
    t = only(play(Brittle, engine, guesses(1), context=summarising(writer=writer), max_steps=4))
    assert t.metrics["retries"] == 1.0 and t.stop_reason is StopReason.TERMINATED
    assert [step.kind for step in t.steps] == ["act", "act", "summary", "act", "act"]
    assert len(engine.asked) == (5 if writer == "policy" else 4)
    assert len(WRITTEN) == (0 if writer == "policy" else 1)


WRITTEN: list[int] = []


async def counting(messages: Sequence[Message]) -> str:
    """Never writes the same twice."""
    WRITTEN.append(len(messages))
    return f"written the {len(WRITTEN)}. time"


def test_a_replay_needs_neither_engine_nor_writer() -> None:
    WRITTEN.clear()
    rule = summarising(writer=f"{__name__}:counting")
    t = episode([LONG, LONG, HINT, "0"], rule)
    pool = Pool(
        workflow=EnvWorkflow(Guess, rule),
        engine=Recorder([]),
        renderer=renderer(),
        rewards=RewardComposer({}),
        concurrency=1,
    )
    again = asyncio.run(pool.replay(guesses(1)[0], t, max_steps=8))
    assert again.error is None and WRITTEN == [6]
    for one, other in zip(t.steps, again.steps, strict=True):
        assert np.array_equal(one.prompt_ids, other.prompt_ids)
        assert np.array_equal(one.action_ids, other.action_ids)
        assert np.array_equal(one.sampled_mask, other.sampled_mask)


def test_what_somebody_else_wrote_is_recorded_and_never_trained() -> None:
    rule = summarising(writer=f"{__name__}:clerk")
    group = play(Guess, Recorder([LONG, LONG, HINT, "0"]), guesses(1), context=rule)
    t = only(group)
    assert [step.kind for step in t.steps] == ["act", "act", "summary", "act", "act"]
    assert [step.parent for step in t.steps] == [None, 0, 1, 2, 3]
    summary = t.steps[2]
    assert renderer().decode(summary.action_ids.tolist()) == "6 messages"
    assert not summary.sampled_mask.any() and summary.logprobs is None
    assert "Before:\n6 messages" in text_of(t.steps[3])
    credits = ReinforcePp(credit="step", gamma=0.5, whiten=False)(group, Scores())
    assert not credits.loss_mask[t.key(2)].any()
    found = [float(credits.advantages[t.key(i)][0]) for i in (0, 1, 3, 4)]
    assert found == pytest.approx([0.125, 0.25, 0.5, 1.0])
    trained = {row.step_keys[i] for row in rows([t]) for i in row.step_index}
    assert trained == {t.key(i) for i in (0, 1, 3, 4)}


def test_what_a_critic_says_of_the_end_reaches_the_policy_past_what_somebody_else_wrote() -> None:
    rule = summarising(writer=f"{__name__}:clerk")
    group = play(Guess, Recorder([LONG, LONG]), guesses(1), context=rule, max_steps=2)
    t = only(group)
    assert t.stop_reason is StopReason.MAX_STEPS and t.steps[-1].kind == "summary"
    nothing = {t.key(i): np.zeros(len(step.action_ids)) for i, step in enumerate(t.steps)}
    scores = Scores(values=nothing, bootstrap_values={t.uid: 1.0})
    credits = Gae(credit="step", gamma=0.5, whiten=False)(group, scores)
    assert [float(credits.advantages[t.key(i)][0]) for i in (0, 1)] == [0.25, 0.5]


def test_its_error_is_nobodys_reward() -> None:
    rule = summarising(writer=f"{__name__}:broken")
    t = members(play(Guess, Recorder(REPLIES), guesses(1), context=rule, beside_a_good_one=True))[0]
    assert t.stop_reason is StopReason.ERROR and t.reward is None
    assert t.error is not None and "broken" in t.error.message


def test_a_rule_that_breaks_after_a_summary_is_not_the_agents_doing() -> None:
    async def rule(past: History, actor: Any) -> Sequence[Message]:
        if past.rounds:
            await actor.act(Observation(text="Sum up."))
            raise ValueError("a defect of the rule")
        return past.opening

    t = members(play(Guess, Recorder(REPLIES), guesses(1), context=rule, beside_a_good_one=True))[0]
    assert t.stop_reason is StopReason.ERROR and t.reward is None
