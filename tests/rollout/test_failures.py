"""Episodes that break, hang or lie: what becomes of them, and that nothing else is touched."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from playing import Recorder, call, guesses, members, only, play

from steprl.envs import Env, ToolEnv
from steprl.errors import ConfigError, EngineError, EnvError
from steprl.rollout import Deadlines, FailurePolicy
from steprl.tools import tool
from steprl.types import (
    Action,
    Actor,
    History,
    Message,
    Observation,
    Session,
    StopReason,
    Task,
    Transition,
)

ONE = call("poke")


class Poked(ToolEnv):
    """Poke twice, then say "done". What happens at a poke is up to the subclass."""

    reward_range = (-1.0, 1.0)
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.pokes = 0

    @tool
    def poke(self) -> str:
        """Poke."""
        self.pokes += 1
        return f"poked {self.pokes}"

    tools = (poke,)

    async def step(self, action: Action) -> Transition:
        transition = await super().step(action)
        if action.tool_calls:
            self.poked()
        return transition

    def poked(self) -> None:
        """What a poke does to the environment."""

    def reward(self, task: Task, answer: str) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Poked.made = 0


def script(*replies: str) -> Recorder:
    return Recorder(list(replies))


# --- errors and retries -------------------------------------------------------------------------------


def test_a_passing_error_is_retried_with_the_same_actions_and_the_episode_goes_on() -> None:
    broken = [True]

    class Flaky(Poked):
        def poked(self) -> None:
            if self.pokes == 2 and broken:
                broken.clear()
                raise EnvError("the database was away")

    engine = script(ONE, ONE, "done")
    trajectory = only(play(Flaky, engine, failures=FailurePolicy(retries=1, backoff=0.0)))
    assert Flaky.made == 2
    assert len(engine.asked) == 3, "no action is sampled a second time"
    assert trajectory.stop_reason is StopReason.TERMINATED and trajectory.error is None
    assert trajectory.reward == 1.0 and len(trajectory.steps) == 3
    assert trajectory.metrics == {"retries": 1.0}
    assert [step.action_ids.tolist() for step in trajectory.steps] == [list(ids) for ids in engine.answered]


def test_an_error_that_the_same_action_reproduces_is_the_agents_and_costs_the_least_reward() -> None:
    class Fragile(Poked):
        def poked(self) -> None:
            if self.pokes == 2:
                raise ValueError("cannot be poked twice")

    groups = play(
        Fragile,
        script(ONE, ONE, "done"),
        failures=FailurePolicy(retries=3, backoff=0.0),
        beside_a_good_one=True,
    )
    trajectory = members(groups)[0]
    assert trajectory.stop_reason is StopReason.TERMINATED and trajectory.stop_reason.trains
    assert trajectory.reward == -1.0 and trajectory.steps[-1].rewards == {"environment_error": -1.0}
    assert trajectory.error is not None and "cannot be poked twice" in trajectory.error.message


def test_rewards_already_given_do_not_soften_the_blame() -> None:
    class Generous(Env):
        reward_range = (-2.0, 5.0)

        async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
            self.steps = 0
            return [Message(role="user", content=task.prompt)]

        async def step(self, action: Action) -> Transition:
            self.steps += 1
            if action.text == "break":
                raise KeyError("gone")
            return Transition(rewards={"bonus": 1.5}, terminated=action.text == "stop")

    first, second = members(
        play(
            Generous,
            Recorder(lambda _, turn: "break" if turn == 2 else "on"),
            guesses(1),
            failures=FailurePolicy(retries=1, backoff=0.0),
            beside_a_good_one=True,
        )
    )
    assert first.reward == pytest.approx(-2.0)
    assert second.error is None


def test_an_error_that_cannot_be_reproduced_because_the_environment_is_random_is_nobodys() -> None:
    class Moody(Poked):
        def poked(self) -> None:
            if self.pokes == 2:
                raise ValueError("moody")

        @tool
        def poke(self) -> str:
            """Poke."""
            self.pokes += 1
            return f"poked at {time.perf_counter_ns()}"

        tools = (poke,)

    trajectory = members(play(Moody, script(ONE, ONE, "done"), beside_a_good_one=True))[0]
    assert trajectory.stop_reason is StopReason.ERROR and trajectory.reward is None
    assert trajectory.error is not None and trajectory.error.message == "moody"
    assert "another prompt at step 1" in trajectory.error.traceback


def test_a_workflow_is_blamed_for_nothing_unless_it_declares_a_range() -> None:
    class Workflow:
        async def run(self, task: Task, session: Session) -> None:
            if task.id == "task-1":
                session.reward_range = (-3.0, 1.0)
            await session.act(Observation(text="go"))
            if task.id != "task-2":
                raise ValueError("at the second thought")

    free, declared, good = members(play(Workflow(), script("a"), guesses(3)))
    assert free.stop_reason is StopReason.ERROR and good.error is None
    assert declared.stop_reason is StopReason.TERMINATED and declared.reward == -3.0


@pytest.mark.parametrize("weight", [10.0, 0.5])
def test_no_weight_makes_breaking_the_environment_cheaper_than_failing(weight: float) -> None:
    class Fragile(Poked):
        def poked(self) -> None:
            raise ValueError("broken")

        def reward(self, task: Task, answer: str) -> Any:
            return {"solved": -1.0}

    replies = Recorder(lambda prompt, turn: ONE if "No. 0" in prompt else "done")
    crashed, failed = members(play(Fragile, replies, guesses(2), weights={"solved": weight}))
    assert failed.reward == -weight
    assert crashed.error is not None and crashed.reward is not None
    assert crashed.reward <= failed.reward


NOBODYS = [EnvError("away"), TimeoutError("judge"), OSError(24, "Too many open files"), MemoryError()]


@pytest.mark.parametrize("error", NOBODYS, ids=lambda error: type(error).__name__)
def test_what_the_machine_does_is_never_the_agents_however_often_it_does(error: Exception) -> None:
    class Away(Poked):
        def poked(self) -> None:
            raise error

    trajectory = members(play(Away, script(ONE), beside_a_good_one=True))[0]
    assert trajectory.stop_reason is StopReason.ERROR and trajectory.reward is None


def test_a_context_rule_that_raises_is_not_the_agents_doing() -> None:
    async def rule(history: History, actor: Actor) -> Sequence[Message]:
        if history.rounds:
            raise ValueError("no such summary")
        return history.opening

    trajectory = members(play(Poked, script(ONE), context=rule, beside_a_good_one=True))[0]
    assert trajectory.stop_reason is StopReason.ERROR


def test_an_error_met_before_and_passed_since_is_not_the_agents_when_it_comes_again() -> None:
    errors = iter([ValueError("first"), None, KeyError("second"), ValueError("first")])

    class Odd(Poked):
        def poked(self) -> None:
            if (error := next(errors, None)) is not None:
                raise error

    trajectory = members(
        play(
            Odd,
            script(ONE, ONE, "done"),
            failures=FailurePolicy(retries=2, backoff=0.0),
            beside_a_good_one=True,
        )
    )[0]
    assert trajectory.stop_reason is StopReason.ERROR, "ValueError at 1, KeyError at 2, ValueError at 1"


def test_a_retry_waits_for_what_is_away_for_a_moment() -> None:
    back = time.perf_counter() + 0.3

    class Away(Poked):
        def poked(self) -> None:
            if time.perf_counter() < back:
                raise ConnectionError("the database is away")

    failures = FailurePolicy(retries=1, backoff=0.4)
    assert only(play(Away, script(ONE, "done"), failures=failures)).reward == 1.0


@pytest.mark.parametrize("value", [2.0, -1.5])
def test_a_reward_outside_the_declared_range_stops_the_run(value: float) -> None:
    class Wrong(Poked):
        def reward(self, task: Task, answer: str) -> float:
            return value

    class Plain(Env):
        async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
            return [Message(role="user", content=task.prompt)]

        async def step(self, action: Action) -> Transition:
            return Transition(rewards={"outcome": value - 0.5}, terminated=action.text == "done")

    for env in (Wrong, Plain):
        with pytest.raises(ConfigError, match="lies outside reward_range"):
            play(env, script("on", "done"), beside_a_good_one=True)


@pytest.mark.parametrize("declared", [(0.0, float("inf")), (1.0, 0.0), (0.0,), "all", (float("nan"), 1.0)])
def test_a_range_that_is_none_is_refused(declared: Any) -> None:
    class Unbounded(Poked):
        reward_range = declared

    with pytest.raises(ConfigError, match="Unbounded.reward_range is .*two finite numbers"):
        play(Unbounded, script("done"))


def test_the_range_of_the_instance_is_the_one_that_counts() -> None:
    class Harsh(Poked):
        def __init__(self) -> None:
            super().__init__()
            self.reward_range = (-5.0, 1.0)

        def poked(self) -> None:
            raise ValueError("broken")

    assert members(play(Harsh, script(ONE), beside_a_good_one=True))[0].reward == -5.0


def test_a_step_that_returns_nothing_is_an_error_of_its_episode_alone() -> None:
    class Forgetful(Poked):
        async def step(self, action: Action) -> Any:
            return None

    trajectory = members(play(Forgetful, script("done"), beside_a_good_one=True))[0]
    assert trajectory.error is not None and "must return a steprl.Transition" in trajectory.error.message


class Panic(BaseException):
    """What a native extension raises when it panics."""


@pytest.mark.parametrize("error", [Panic("native"), GeneratorExit(), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_tool_raises_is_text_for_the_agent(error: BaseException) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise error

    class Fails(Poked):
        tools = (fail,)

    trajectory = only(play(Fails, script(call("fail"), "done")))
    assert trajectory.reward == 1.0
    assert type(error).__name__ in trajectory.steps[0].feedback[0].content


@pytest.mark.parametrize("error", [Panic("native"), SystemExit(3), asyncio.CancelledError()])
def test_whatever_an_environment_raises_breaks_its_own_episode_alone(error: BaseException) -> None:
    class Raises(Poked):
        async def step(self, action: Action) -> Transition:
            raise error

    trajectory = members(play(Raises, script("done"), beside_a_good_one=True))[0]
    assert trajectory.error is not None and trajectory.error.kind == type(error).__name__


def test_reset_that_fails_is_never_the_agents() -> None:
    class Closed(Poked):
        def setup(self, task: Task, seed: int) -> None:
            if task.id == "task-0":
                raise EnvError("no licence")

    bad, good = members(play(Closed, script("done"), guesses(2)))
    assert bad.stop_reason is StopReason.ERROR and not bad.steps
    assert good.reward == 1.0


def test_a_failing_engine_is_retried_and_never_the_agents() -> None:
    failures = [2]

    def reply(_: str, turn: int) -> str:
        if failures[0]:
            failures[0] -= 1
            raise ConnectionError("engine away")
        return "done"

    assert only(play(Poked, Recorder(reply), failures=FailurePolicy(retries=2, backoff=0.0))).reward == 1.0
    failures[0] = 9
    with pytest.raises(EngineError, match="all 1 episodes failed.*ConnectionError: engine away"):
        play(Poked, Recorder(reply), failures=FailurePolicy(retries=2, backoff=0.0))


class OneInEight(Poked):
    """Breaks in every eighth episode."""

    def __init__(self) -> None:
        super().__init__()
        self.number = type(self).made

    def poked(self) -> None:
        if self.number % 8 == 0:
            raise RuntimeError("one of eight")


def test_one_broken_episode_of_eight_is_dropped_and_the_others_train() -> None:
    everything = members(
        play(
            OneInEight,
            script(ONE, "done"),
            guesses(1),
            group_size=8,
            failures=FailurePolicy(retries=0, backoff=0.0),
        )
    )
    broken = [t for t in everything if t.error is not None]
    assert [t.stop_reason for t in broken] == [StopReason.ERROR]
    assert broken[0].reward is None and broken[0].error is not None
    assert broken[0].error.kind == "RuntimeError" and "one of eight" in broken[0].error.traceback
    assert [t.reward for t in everything if t.error is None] == [1.0] * 7


def test_when_every_episode_fails_the_run_stops_with_the_root_traceback_last() -> None:
    class Hopeless(Poked):
        def setup(self, task: Task, seed: int) -> None:
            raise ZeroDivisionError("root of it all")

    with pytest.raises(EnvError, match="all 8 episodes failed") as raised:
        play(Hopeless, script("done"), guesses(1), group_size=8)
    lines = str(raised.value).splitlines()
    assert lines[-1] == "ZeroDivisionError: root of it all"
    assert any("in setup" in line for line in lines)


def test_agents_that_all_break_it_stop_the_run_too() -> None:
    class Fragile(Poked):
        def poked(self) -> None:
            raise ZeroDivisionError("always")

    with pytest.raises(EnvError, match=r"all 4 episodes failed.*batch-0\.0"):
        play(Fragile, script(ONE), guesses(1), group_size=4)


def test_fail_fast_stops_at_the_first_error() -> None:
    with pytest.raises(EnvError, match="fail_fast is set.*RuntimeError: one of eight"):
        play(
            OneInEight, script(ONE, "done"), guesses(1), group_size=8, failures=FailurePolicy(fail_fast=True)
        )


# --- deadlines ----------------------------------------------------------------------------------------


class Hangs(Poked):
    """Never answers the first poke of task-0."""

    def setup(self, task: Task, seed: int) -> None:
        self.hangs = task.id == "task-0"

    async def step(self, action: Action) -> Transition:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().step(action)


def test_a_step_that_hangs_is_given_up_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    started = time.perf_counter()
    bad, good = members(
        play(Hangs, script(ONE, "done"), guesses(2), deadlines=Deadlines(step=1.0, report=0.1))
    )
    assert time.perf_counter() - started < 10
    assert bad.stop_reason is StopReason.DEADLINE and not bad.stop_reason.trains and bad.reward is None
    assert bad.error is not None and bad.error.kind == "DeadlineError"
    assert (
        "did not answer within 1 s; after 1 actions it was waiting for the environment" in bad.error.message
    )
    assert good.reward == 1.0
    assert "pending: batch-0.0 waits for the environment since" in caplog.text
    assert "(task task-0, 1 actions so far)" in caplog.text


def test_an_engine_that_hangs_meets_the_deadline_of_the_episode() -> None:
    slow = Recorder(lambda _, turn: "done", latency=60.0)
    with pytest.raises(EnvError, match="episode took longer than 0.2 s.*waiting for the policy"):
        play(Poked, slow, deadlines=Deadlines(episode=0.2))
    assert slow.released == ["batch-0.0"]


def test_an_episode_that_refuses_to_be_cancelled_is_abandoned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steprl.rollout.episode.GRACE", 0.2)

    class Stubborn(Hangs):
        async def step(self, action: Action) -> Transition:
            while self.hangs:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
            return await super().step(action)

    started = time.perf_counter()
    bad, good = members(play(Stubborn, script(ONE, "done"), guesses(2), deadlines=Deadlines(step=0.2)))
    assert time.perf_counter() - started < 20, "the event loop ends, too"
    assert bad.stop_reason is StopReason.DEADLINE and good.reward == 1.0
    assert "abandoned" in caplog.text


def test_whoever_blocks_the_event_loop_is_named_with_the_place(caplog: pytest.LogCaptureFixture) -> None:
    class Blocks(Poked):
        async def step(self, action: Action) -> Transition:
            time.sleep(1.8)  # blocking_line
            return await super().step(action)

    with caplog.at_level(logging.WARNING):
        play(Blocks, script("done"), deadlines=Deadlines(report=0.3))
    assert "event loop is blocked" in caplog.text and "blocking_line" in caplog.text


def test_a_tool_that_never_returns_is_given_up_and_the_agent_is_told() -> None:
    class Stuck(ToolEnv):
        tool_deadline = 0.2

        @staticmethod
        def _sleep() -> None:
            time.sleep(3.0)

        def reward(self, task: Task, answer: str) -> float:
            return 1.0

    @tool
    def forever() -> str:
        """Never returns."""
        time.sleep(5.0)
        return "late"

    class WithFunction(Stuck):
        tools = (forever,)

    started = time.perf_counter()
    trajectory = only(play(WithFunction, script(call("forever"), "done")))
    assert time.perf_counter() - started < 4.5
    assert "no result within 0.2 seconds" in trajectory.steps[0].feedback[0].content
    assert trajectory.reward == 1.0


def test_a_method_that_never_returns_ends_the_episode_since_it_may_still_change_its_state() -> None:
    class Stuck(ToolEnv):
        tool_deadline = 0.2

        def setup(self, task: Task, seed: int) -> None:
            self.hangs = task.id == "task-0"

        @tool
        def change(self) -> str:
            """Change the state."""
            time.sleep(3.0 if self.hangs else 0.0)
            return "changed"

        tools = (change,)

        def reward(self, task: Task, answer: str) -> float:
            return 1.0

    bad, good = members(play(Stuck, script(call("change"), "done"), guesses(2)))
    assert bad.stop_reason is StopReason.DEADLINE and good.reward == 1.0


def test_sync_tools_of_all_episodes_run_at_once() -> None:
    together = threading.Barrier(40)

    @tool
    def nap() -> str:
        """Sleep until forty are asleep."""
        together.wait(timeout=20)
        return "rested"

    class Sleepy(Poked):
        tools = (nap,)

    rested = members(play(Sleepy, script(call("nap"), "done"), guesses(1), group_size=40, concurrency=40))
    assert [t.steps[0].feedback[0].content for t in rested] == ["rested"] * 40


# --- closing ------------------------------------------------------------------------------------------


def test_close_that_fails_costs_nothing_but_a_line(caplog: pytest.LogCaptureFixture) -> None:
    class Unclosable(Poked):
        async def close(self) -> None:
            raise OSError("still busy")

    trajectory = only(play(Unclosable, script("done")))
    assert trajectory.reward == 1.0 and trajectory.error is None
    assert trajectory.metrics == {"close_failed": 1.0}
    assert "Unclosable.close failed: OSError('still busy')" in caplog.text


def test_close_that_hangs_keeps_the_result() -> None:
    class Clings(Poked):
        async def close(self) -> None:
            await asyncio.sleep(60)

    trajectory = only(play(Clings, script("done"), deadlines=Deadlines(step=0.2)))
    assert trajectory.stop_reason is StopReason.TERMINATED and trajectory.reward == 1.0
    assert trajectory.metrics == {"close_failed": 1.0}


def test_close_that_leaks_a_cancellation_costs_nothing_either() -> None:
    class Leaky(Poked):
        async def close(self) -> None:
            background = asyncio.create_task(asyncio.sleep(60))
            background.cancel()
            await background

    trajectory = only(play(Leaky, script("done")))
    assert trajectory.reward == 1.0 and trajectory.metrics == {"close_failed": 1.0}


# --- what tools and rewards return --------------------------------------------------------------------


def test_a_megabyte_invalid_utf8_and_nul_reach_the_agent_cut_and_readable() -> None:
    answers = {
        "mega": "x" * 1_000_000,
        "odd": b"caf\xe9 \xff".decode("utf-8", "surrogateescape"),
        "nul": "a\x00b",
    }

    @tool
    def fetch(what: str) -> str:
        """Fetch."""
        return answers[what]

    class Fetches(Poked):
        tools = (fetch,)

    engine = script(*(call("fetch", what=what) for what in answers), "done")
    trajectory = only(play(Fetches, engine))
    mega, odd, nul = (step.feedback[0].content for step in trajectory.steps[:3])
    assert len(mega) < 10_100 and mega.endswith("[cut: 990,000 of 1,000,000 characters]")
    assert odd == "caf\\udce9 \\udcff"
    assert nul == "a\x00b"
    assert trajectory.reward == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "much"])
def test_a_reward_that_is_no_number_ends_the_run_with_its_name(value: Any) -> None:
    class Odd(Poked):
        def reward(self, task: Task, answer: str) -> Any:
            return value

    with pytest.raises(EnvError, match="Odd.reward: component 'outcome' must be a finite number") as raised:
        play(Odd, script("done"), guesses(1), group_size=2)
    assert "Traceback" not in str(raised.value)
    assert str(raised.value).startswith("all 2 episodes failed; nothing to train on. batch-0.0: ")
