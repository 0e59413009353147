"""What a scripted policy is asked, what it may say, and what is recorded of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from doors import Doors, Opener
from playing import members, renderer
from tiny import THINKING, tiny_tokenizer

from steprl.context import AppendOnly
from steprl.envs.policy import Move
from steprl.errors import ConfigError, EngineError
from steprl.renderers import ChatRenderer
from steprl.trainers.imitation.demonstrate import _Dictation, demonstrate
from steprl.types import Action, History, Message, Observation, StopReason, Task, Trajectory, Transition


class Saying:
    """A policy with one move; it keeps what it has read."""

    def __init__(self, move: Move) -> None:
        self.move = move
        self.read: list[Sequence[Message]] = []

    def act(self, messages: Sequence[Message]) -> Move:
        self.read.append(messages)
        return self.move


def shown(policy: Any, env: type[Doors] = Doors, **options: Any) -> list[Trajectory]:
    options = {"renderer": renderer(), "context": AppendOnly(), "max_steps": 3, **options}
    return members(demonstrate(env, lambda _: policy, Doors.tasks("train")[:2], **options))


def test_what_is_said_is_recorded_as_sampled_and_stopped() -> None:
    (first, second) = shown(Opener())
    assert [t.stop_reason for t in (first, second)] == [StopReason.TERMINATED] * 2
    assert renderer().decode(first.steps[1].action_ids.tolist()) == "key<|endoftext|>"
    assert first.steps[1].action_ids[-1] == renderer().stop_ids[0]
    assert first.steps[0].calls[0].name == "open"  # type: ignore[union-attr]
    assert first.reward == 1.0 and first.task_id == "door-0" and second.task_id == "door-1"


def test_a_policy_reads_what_a_model_would() -> None:
    policy = Saying(Move(text="key"))
    shown(policy)
    assert [[m.content for m in messages] for messages in policy.read] == [["Door 0."], ["Door 1."]]


def test_an_observation_that_the_environment_composes_is_read_too() -> None:
    class Composed(Doors):
        async def step(self, action: Action) -> Transition:
            return Transition(observation=Observation(text="Again?"))

    policy = Saying(Move(text="no"))
    (first, _) = shown(policy, Composed)
    assert [m.content for m in policy.read[-1]] == ["Again?"]
    assert first.stop_reason is StopReason.MAX_STEPS


def test_a_message_that_does_not_fit_is_cut_as_a_models_would_be() -> None:
    (first, _) = shown(Saying(Move(text="word " * 500)), max_context=420)
    assert first.steps[0].finish == "length"
    assert len(first.steps[0].prompt_ids) + len(first.steps[0].action_ids) == 420
    assert first.stop_reason is StopReason.CONTEXT_FULL


class SumUp:
    """Asks the policy for a summary before every action, and shows it."""

    async def __call__(self, history: History, actor: Any) -> Sequence[Message]:
        summary = await actor.act(Observation(text="Sum up."))
        return (*history.opening, Message(role="user", content=summary.text))


def test_a_policy_that_cannot_write_the_summary_that_is_wanted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Opener has no summarise\(messages\)"):
        shown(Opener(), context=SumUp())


def test_a_summary_is_demonstrated_as_a_step_that_was_sampled() -> None:
    class Noting(Opener):
        def summarise(self, messages: Sequence[Message]) -> str:
            return f"I was told: {messages[-1].content}"

    (first, _) = shown(Noting(), context=SumUp())
    written = [step for step in first.steps if step.kind == "summary"]
    assert len(written) >= 1 and all(step.sampled_mask.all() for step in written)
    assert "I was told: Sum up." in renderer().decode(written[0].action_ids.tolist())
    acted = first.steps[first.steps.index(written[0]) + 1]
    assert "I was told: Sum up." in renderer().decode(acted.prompt_ids.tolist())


def test_a_summary_that_somebody_else_writes_can_be_demonstrated() -> None:
    async def note() -> str:
        return "The key opens it."

    class Noted:
        async def __call__(self, history: History, actor: Any) -> Sequence[Message]:
            if history.rounds:
                await actor.act(Observation(text="Sum up."), writer=note)
            return history.opening

    (first, _) = shown(Opener(), context=Noted())
    written = [step for step in first.steps if step.kind == "summary"]
    assert written and not any(step.sampled_mask.any() for step in written)


def test_calls_that_would_be_read_as_thought_are_refused() -> None:
    before, asks, after = THINKING.rpartition("{{- '<|im_start|>assistant\\n' }}")
    opened = ChatRenderer(tiny_tokenizer(before + asks.replace("\\n", "\\n<think>\\n") + after))
    with pytest.raises(ConfigError, match="needs a text that closes it"):
        shown(Opener(), renderer=opened)
    (first, _) = shown(Saying(Move(text="Hm.</think>", calls=(("open", {}),))), renderer=opened)
    assert len(first.steps[0].calls) == 1


def test_a_scripted_policy_takes_no_weights() -> None:
    with pytest.raises(EngineError, match="has no weights to take"):
        asyncio.run(_Dictation(renderer(), 10).sync(None, 1))  # type: ignore[arg-type]


def test_tasks_keep_their_order() -> None:
    tasks = [Task(id=str(n), prompt="?", answer="key") for n in range(40)]
    groups = demonstrate(Doors, lambda _: Opener(), tasks, renderer=renderer(), context=AppendOnly())
    assert [group.task_id for group in groups] == [task.id for task in tasks]
