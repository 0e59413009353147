"""What a context rule may do through its actor: measure prompts, and have something written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from playing import Guess, Recorder, call, guesses, only, play, renderer

from steprl.errors import EnvError
from steprl.types import Action, Actor, History, Message, Observation, Session, Task

HINT = call("hint")


async def everything(past: History, actor: Actor) -> list[Message]:
    """All there is."""
    messages = list(past.opening)
    for added in past.rounds:
        messages += [added.action.message(), *added.feedback]
    return messages


def test_it_counts_the_tokens_of_the_very_prompt_with_its_tools() -> None:
    counted: list[int] = []

    async def rule(past: History, actor: Actor) -> Sequence[Message]:
        messages = await everything(past, actor)
        counted.append(actor.count(messages))
        assert actor.max_context == 999
        return messages

    t = only(play(Guess, Recorder([HINT, HINT, "0"], max_context=999), guesses(1), context=rule))
    assert counted == [len(step.prompt_ids) for step in t.steps]
    assert counted[0] > len(renderer().render([Message(role="user", content=guesses(1)[0].prompt)]))


def test_who_is_asked_sees_the_tools_and_its_answer_stands_in_the_history() -> None:
    seen: list[History] = []

    async def rule(past: History, actor: Actor) -> Sequence[Message]:
        seen.append(past)
        messages = await everything(past, actor)
        if len(past.rounds) == 1:
            for text in ("Sum up.", "Shorter."):
                await actor.act(Observation(messages=(*messages, Message(role="user", content=text))))
            await actor.act(Observation(text="What next?"), kind="act")
        return messages

    t = only(play(Guess, Recorder([HINT, "small", "s", "guess", HINT, "0"]), guesses(1), context=rule))
    assert [step.kind for step in t.steps] == ["act", "summary", "summary", "act", "act", "act"]
    assert all("hint" in renderer().decode(step.prompt_ids.tolist()) for step in t.steps)
    assert [len(past.summaries) for past in seen] == [0, 0, 2]
    assert [(s.action.text, s.rounds) for s in seen[2].summaries] == [("small", 1), ("s", 1)]
    assert len(seen[2].rounds) == 2  # what the rule asked for besides is no round


def test_a_writer_answers_in_the_policys_place() -> None:
    async def write() -> str:
        return "Nobody sampled this."

    class Flow:
        async def run(self, task: Task, session: Session) -> None:
            await session.act(Observation(text="Go."))
            action = await session.act(Observation(text="Sum up."), kind="summary", writer=write)
            assert action.text == "Nobody sampled this." and action.finish == "stop"
            await session.act(Observation(messages=(Message(role="user", content="On."), action.message())))

    engine = Recorder(["one", "two"])
    engine.version = 3
    t = only(play(Flow(), engine))
    step = t.steps[1]
    assert len(engine.asked) == 2 and [s.parent for s in t.steps] == [None, 0, 1]
    assert step.action_ids.tolist() == list(renderer().encode("Nobody sampled this."))
    assert not step.sampled_mask.any() and step.logprobs is None
    assert step.policy_versions.tolist() == [3] * len(step.action_ids)


def test_nobody_else_is_asked_while_somebody_writes() -> None:
    class Flow:
        async def run(self, task: Task, session: Session) -> None:
            await session.act(Observation(text="Go."))

            async def write() -> str:
                action: Action = await session.act(Observation(text="You write it."))
                return action.text

            await session.act(Observation(text="Sum up."), writer=write)

    with pytest.raises(EnvError, match="one action at a time"):
        play(Flow(), Recorder(["one", "two"]))


def test_a_writer_that_was_interrupted_can_be_asked_again() -> None:
    async def never() -> str:
        await asyncio.sleep(60)
        return ""

    class Flow:
        async def run(self, task: Task, session: Session) -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.act(Observation(text="Sum up."), writer=never), 0.001)
            await session.act(Observation(text="Go."))

    assert len(only(play(Flow(), Recorder(["one"]))).steps) == 1
