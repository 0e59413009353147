"""Rewards that raise, hang or return nonsense: a scorer error of their episode, which is no reward of 0, and
nobody else waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from typing import Any

import pytest
from playing import Guess, Recorder, guesses, members, play

from steprl.envs.scoring import in_time
from steprl.errors import ConfigError, EnvError
from steprl.rollout import Deadlines
from steprl.types import Action, StopReason, Task, Trajectory, Transition

HANGS = threading.Event()
"""Set at the end of a test, so that its threads end, too."""


@pytest.fixture(autouse=True)
def _let_go() -> Any:
    HANGS.clear()
    yield
    HANGS.set()


class Scored(Guess):
    """The first task is scored by ``judge``, the others at once."""

    reward_deadline = 0.2

    def reward(self, task: Task, answer: str) -> Any:
        return self.judge() if task.id == "task-0" else 1.0

    def judge(self) -> Any:
        raise NotImplementedError


def pair(env: type[Scored], **options: Any) -> tuple[Trajectory, Trajectory]:
    first, second = members(play(env, Recorder(["0"]), guesses(2), **options))
    assert second.error is None and second.stop_reason is StopReason.TERMINATED
    return first, second


class HangingInSync(Scored):
    def judge(self) -> Any:
        HANGS.wait(20)


class HangingInAsync(Scored):
    def judge(self) -> Any:
        return asyncio.sleep(20)


class Stubborn(Scored):
    async def reward(self, task: Task, answer: str) -> Any:
        if task.id != "task-0":
            return 1.0
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(20)
        await asyncio.sleep(20)


@pytest.mark.parametrize("env", [HangingInSync, HangingInAsync])
def test_a_reward_that_hangs_is_given_up_and_nobody_waits_for_it(env: type[Scored]) -> None:
    ended: list[str] = []
    broken, _ = pair(env, progress=lambda t: ended.append(t.task_id))
    assert broken.stop_reason is StopReason.DEADLINE and broken.reward is None
    assert broken.error is not None and broken.error.kind == "ScorerTimeout"
    assert f"{env.__name__}.reward gave no reward within 0.2 s" in broken.error.message
    assert ended == ["task-1", "task-0"]


def test_an_async_reward_that_refuses_to_be_cancelled_holds_nobody_up_either() -> None:
    broken, _ = pair(Stubborn)
    assert broken.error is not None and broken.error.kind == "ScorerTimeout"


def test_a_reward_that_raises_for_an_answer_is_told_apart_and_worth_the_least() -> None:
    """The agent's doing, as any error that the same action reproduces: crashing the scorer is no way out."""

    class Raising(Scored):
        def judge(self) -> Any:
            raise ValueError("no number in the answer")

    broken, _ = pair(Raising)
    assert broken.stop_reason is StopReason.TERMINATED and broken.reward == 0.0
    assert broken.error is not None and broken.error.kind == "ScorerError"
    assert broken.error.message == "Raising.reward raised ValueError: no number in the answer"
    assert "in judge" in broken.error.traceback


@pytest.mark.parametrize("error", [OSError("judge is away"), EnvError("judge is away"), SystemExit(2)])
def test_a_scorer_that_is_away_is_nobodys_doing(error: BaseException) -> None:
    class Away(Scored):
        def judge(self) -> Any:
            raise error

    broken, _ = pair(Away)
    assert broken.stop_reason is StopReason.ERROR and broken.reward is None
    assert broken.error is not None and broken.error.kind == "ScorerError"


@pytest.mark.parametrize("value", [None, float("nan"), "good"])
def test_what_is_no_number_is_a_scorer_error_and_nobodys_doing(value: Any) -> None:
    class Odd(Scored):
        def judge(self) -> Any:
            return value

    broken, _ = pair(Odd)
    assert broken.stop_reason is StopReason.ERROR and broken.reward is None
    assert broken.error is not None and broken.error.kind == "ScorerError"


def test_a_wish_to_stop_the_run_goes_through() -> None:
    class Wrong(Scored):
        def judge(self) -> Any:
            raise ConfigError("the judge has no model")

    with pytest.raises(ConfigError, match="the judge has no model"):
        pair(Wrong)


def test_sync_rewards_run_at_once_and_off_the_event_loop() -> None:
    """Each waits for all others: one after the other they would never be done."""
    together = threading.Barrier(4)
    threads: set[int] = set()

    class Meeting(Guess):
        def reward(self, task: Task, answer: str) -> float:
            threads.add(threading.get_ident())
            together.wait(10)
            return 1.0

    played = members(play(Meeting, Recorder(["0"]), guesses(4)))
    assert [t.reward for t in played] == [1.0] * 4
    assert len(threads) == 4 and threading.get_ident() not in threads


# --- computed components ------------------------------------------------------------------------------


def raises(task: Task, action: Action, transition: Transition) -> float:
    if task.id == "task-0":
        raise StopIteration("spent")
    return 1.0


def hangs(task: Task, action: Action, transition: Transition) -> float:
    if task.id == "task-0":
        HANGS.wait(20)
    return 1.0


@pytest.mark.parametrize(
    ("component", "kind", "message"),
    [
        ("raises", "ScorerError", "reward component 'test_scoring:raises' raised StopIteration: spent"),
        ("hangs", "ScorerTimeout", "the reward components were not computed within 0.2 s"),
    ],
)
def test_a_component_that_breaks_or_hangs_breaks_its_episode_only(
    component: str, kind: str, message: str
) -> None:
    broken, fine = members(
        play(
            Guess,
            Recorder(["0"]),
            guesses(2),
            weights={f"test_scoring:{component}": 1.0},
            deadlines=Deadlines(score=0.2),
        )
    )
    assert fine.error is None and fine.reward == 1.0
    assert broken.stop_reason is StopReason.ERROR and broken.reward is None
    assert broken.error is not None and broken.error.kind == kind and message in broken.error.message


def test_no_limit_is_a_limit_that_never_comes() -> None:
    class Slow(Scored):
        reward_deadline = 0.0

        def judge(self) -> Any:
            time.sleep(0.05)
            return 1.0

    slow, _ = pair(Slow, deadlines=Deadlines(score=0.0), weights={"test_scoring:raises": 0.0, "outcome": 1.0})
    assert slow.error is not None  # the component raises; that the reward took its time did not matter
    assert pair(Slow)[0].reward == 1.0


def test_components_are_computed_off_the_loop_with_the_callers_context() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("the caller")
    name, thread = asyncio.run(in_time(lambda: (who.get(), threading.current_thread()), 5.0))
    assert name == "the caller" and thread is not threading.main_thread()
