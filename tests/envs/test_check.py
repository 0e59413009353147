"""The checker: environments that break exactly one thing each, and good ones that pass."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl import Env, Message, Observation, Task, ToolEnv, Transition, check_env, tool
from steprl.envs.checker import CheckReport
from steprl.envs.checker.draw import draw_arguments
from steprl.envs.checker.leaks import _stands
from steprl.envs.courier import Courier
from steprl.envs.gsm8k import GSM8K
from steprl.envs.policy import Move
from steprl.errors import ConfigError, EnvError, TaskError
from steprl.tasks.answers import has_answer_line, numbers_equal
from steprl.tools.calculator import calculator

SHARED = Path(os.environ.get("STEPRL_SHARED", Path(__file__).parents[3] / "shared"))

COLOURS = "red blue green black white yellow purple orange pink brown".split()
THINGS = "blood sky grass coal snow lemon plum carrot flamingo earth".split()
TASKS = [
    Task(id=thing, prompt=f"What colour is {thing}?", answer=colour)
    for thing, colour in zip(THINGS, COLOURS, strict=True)
]


@dataclass(frozen=True)
class Says:
    """A policy that says the same again and again."""

    text: str

    def act(self, messages):
        return Move(text=self.text)


class Colours(Env):
    """Name the colour within three guesses. All is right here; those below break one thing each."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.guesses = 0
        self.over = self.closed = False

    @classmethod
    def oracle(cls, task):
        return Says(task.answer)

    async def reset(self, task, *, seed):
        if self.task is not None or self.closed:
            raise EnvError("one instance is one episode")
        self.task = task
        return [Message(role="user", content=task.prompt)]

    async def step(self, action):
        if self.task is None or self.over or self.closed:
            raise EnvError("step out of order")
        self.guesses += 1
        right = self.task.answer in action.text
        self.over = right or self.guesses == 3
        return Transition(
            feedback=(Message(role="user", content="No." if not right else "Yes."),),
            rewards={"outcome": float(right)},
            terminated=self.over,
            anchor=f"{self.guesses} guesses",
        )

    async def close(self):
        self.closed = True


def check(env, tasks=TASKS, **options) -> CheckReport:
    return check_env(env, tasks, **{"resets": 10, "episodes": 4, "max_steps": 6, **options})


def found(report: CheckReport, status: Literal["passed", "warned", "failed"]) -> set[str]:
    """Names of the checks with this status. A warning about the event loop is left out: on a busy machine it
    says nothing about the environment."""
    named = {check.name for check in report.checks if check.status == status}
    return named - {"event_loop"} if status == "warned" else named


def detail(report: CheckReport, name: str) -> str:
    return next(check.detail for check in report.checks if check.name == name)


def test_a_good_environment_passes_every_check():
    report = check(Colours)
    assert found(report, "failed") == found(report, "warned") == set(), report
    assert report.ok and report.failures == () and report.env == "Colours"
    report.raise_for_failures()
    assert [check.name for check in report.checks] == [
        *("errors", "deadline", "determinism", "call_order", "close", "rewards", "stop_flags", "policies"),
        *("answer_leak", "anchor_leak", "event_loop", "memory", "threads", "files", "processes"),
    ]
    oracle, null = report.scores["oracle"], report.scores["null"]
    assert (oracle.episodes, oracle.mean, oracle.steps, oracle.ended) == (4, 1.0, 1.0, 1.0)
    assert (null.mean, null.minimum, null.maximum, null.steps) == (0.0, 0.0, 0.0, 3.0)


# --- what raises, hangs, or returns nonsense ----------------------------------------------------------


class StepRaises(Colours):
    async def step(self, action):
        await super().step(action)
        raise KeyError("missing")


class ResetReturnsText(Colours):
    async def reset(self, task, *, seed):
        await super().reset(task, seed=seed)
        return "What colour?"


class StepReturnsNothing(Colours):
    async def step(self, action):
        await super().step(action)


class ResetIsNotAsync(Colours):
    def reset(self, task, *, seed):
        return [Message(role="user", content=task.prompt)]


class StepExits(Colours):
    async def step(self, action):
        await super().step(action)
        raise SystemExit(3)


class FeedbackIsNone(Colours):
    async def step(self, action):
        return replace(await super().step(action), feedback=None)


class ContentIsANumber(Colours):
    async def reset(self, task, *, seed):
        await super().reset(task, seed=seed)
        return [Message(role="user", content=7)]


class AnchorIsAList(Colours):
    async def step(self, action):
        return replace(await super().step(action), anchor=[1])


class Unprintable(BaseException):
    def __str__(self):
        raise AttributeError("detail")


class StepRaisesTheUnprintable(Colours):
    async def step(self, action):
        await super().step(action)
        raise Unprintable


class ForgetsATask(Colours):
    async def step(self, action):
        async def fails():
            raise OSError("nobody looks")

        asyncio.ensure_future(fails())
        await asyncio.sleep(0)
        return await super().step(action)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            StepRaises,
            r"step: KeyError: 'missing' \(test_check.py, line \d+\) \(first in task '\w+', \d+ times\)",
        ),
        (ResetReturnsText, "reset: EnvError: it returned 'What colour\\?'. Return the opening as a list"),
        (StepReturnsNothing, "step: EnvError: it returned None. Return a steprl.Transition"),
        (ResetIsNotAsync, r"reset: EnvError: it returned \[.* at once. Write it as async def"),
        (StepExits, "step: SystemExit: 3"),
        (FeedbackIsNone, "step: EnvError: its feedback is None. Give a tuple of steprl.Message"),
        (ContentIsANumber, "reset: EnvError: it returned .* whose content is text"),
        (AnchorIsAList, r"step: EnvError: its anchor is \[1\]. An anchor is text or None"),
        (StepRaisesTheUnprintable, "step: Unprintable: its message cannot be read"),
        (ForgetsATask, "a task that it started itself: OSError: nobody looks"),
    ],
)
def test_what_an_environment_raises_is_a_failed_check(env, message):
    report = check(env)
    assert found(report, "failed") == {"errors"}
    with pytest.raises(EnvError, match=rf"(?s)^{env.__name__}: 1 of 15 checks failed\n- errors: {message}"):
        report.raise_for_failures()


def test_an_environment_that_cannot_be_made_is_one_failed_check():
    class NoInstance(Colours):
        def __init__(self) -> None:
            raise OSError("no display")

    report = check(NoInstance)
    assert [(check.name, check.status) for check in report.checks] == [("errors", "failed")]
    assert "constructor: OSError: no display" in report.checks[0].detail
    assert "no environment" in check(lambda: "env").checks[0].detail


def test_an_environment_that_makes_the_observation_itself_is_played():
    class Composes(Colours):
        async def step(self, action):
            shown = Observation(text=f"{self.task.prompt} Not {action.text!r}.")
            return replace(await super().step(action), observation=shown)

    report = check(Composes)
    assert report.ok and report.scores["oracle"].mean == 1.0


def test_a_task_that_exits_does_not_end_the_check():
    class Background(Colours):
        async def reset(self, task, *, seed):
            async def leave():
                raise SystemExit(1)

            opening = await super().reset(task, seed=seed)
            self.leaving = asyncio.ensure_future(leave())
            return opening

        async def step(self, action):
            transition = await super().step(action)
            assert self.leaving.exception()
            return transition

    report = check(Background)
    assert found(report, "failed") == {"errors"}
    assert "a task that it started itself: SystemExit: 1" in detail(report, "errors")


class Hangs(Colours):
    async def step(self, action):
        if self.task is None or self.closed or self.over:
            raise EnvError("step out of order")
        await asyncio.Event().wait()


def test_a_call_that_never_comes_back_is_a_failed_check_and_the_rest_goes_on():
    report = check(Hangs, deadline=0.1)
    assert found(report, "failed") == {"deadline"}
    assert "step: did not come back within 0.1 s" in detail(report, "deadline")
    assert {"determinism", "rewards", "stop_flags", "memory"} <= found(report, "warned")
    assert {"call_order", "answer_leak", "close"} <= found(report, "passed")


def test_a_call_that_blocks_the_loop_for_good_is_left_behind():
    class BlocksOnce(Colours):
        blocked = False

        async def step(self, action):
            if self.guesses == 1 and not BlocksOnce.blocked:
                BlocksOnce.blocked = True
                time.sleep(2)
            return await super().step(action)

    report = check(BlocksOnce, deadline=0.3)
    assert found(report, "failed") == {"deadline"}
    assert "step: blocked the event loop for over 0.3 s" in detail(report, "deadline")
    assert "memory" in found(report, "passed")


# --- determinism --------------------------------------------------------------------------------------


class Dice(Colours):
    async def step(self, action):
        return replace(await super().step(action), anchor=f"{random.random()}")


class Clock(Colours):
    async def reset(self, task, *, seed):
        return [*await super().reset(task, seed=seed), Message(role="user", content=f"{time.perf_counter()}")]


class Shared(Colours):
    """Keeps the guesses on the class: nothing is wrong as long as episodes are played one after the other."""

    tried: list[str] = []

    async def reset(self, task, *, seed):
        Shared.tried.clear()
        return await super().reset(task, seed=seed)

    async def step(self, action):
        Shared.tried.append(action.text)
        anchor = f"{len(Shared.tried)} guesses"
        return replace(await super().step(action), anchor=anchor)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Dice, "played again with the same actions: anchor of step 0: first "),
        (Clock, "played again with the same actions: opening: first "),
        (
            Shared,
            r"played again beside another episode .*: anchor of step 1: first …'2 guesses'… then …'3 g",
        ),
    ],
)
def test_what_differs_the_second_time_is_shown(env, message):
    report = check(env)
    assert found(report, "failed") == {"determinism"}
    assert re.search(message, detail(report, "determinism")), detail(report, "determinism")


# --- the order of calls, and closing ------------------------------------------------------------------


class StepsBeforeReset(Colours):
    async def step(self, action):
        return Transition() if self.task is None else await super().step(action)


class ResetsTwice(Colours):
    async def reset(self, task, *, seed):
        self.task = None
        return await super().reset(task, seed=seed)


class StepsAfterTheEnd(Colours):
    async def step(self, action):
        if self.over and not self.closed:
            return Transition(terminated=True)
        return await super().step(action)


class StepsAfterClose(Colours):
    async def step(self, action):
        if self.closed:
            return Transition(terminated=True)
        return await super().step(action)


@pytest.mark.parametrize(
    ("env", "call"),
    [
        (StepsBeforeReset, "step before reset"),
        (ResetsTwice, "a second reset"),
        (StepsAfterTheEnd, "step after the end"),
        (StepsAfterClose, "step after close"),
    ],
)
def test_a_call_out_of_order_that_is_answered_is_named(env, call):
    report = check(env)
    assert found(report, "failed") == {"call_order"}
    assert detail(report, "call_order").startswith(f"{call}: answered as if nothing were wrong")


class CloseRaises(Colours):
    async def close(self):
        await super().close()
        raise ConnectionError("gone")


class ClosesOnce(Colours):
    async def close(self):
        if self.closed:
            raise ValueError("closed already")
        await super().close()


class ClosesAfterResetOnly(Colours):
    async def close(self):
        await super().close()
        self.task.id  # noqa: B018


class ClosesUnlessCancelled(Colours):
    stepping = False

    async def step(self, action):
        self.stepping = True
        await asyncio.sleep(0.001)
        self.stepping = False
        return await super().step(action)

    async def close(self):
        if self.stepping and not self.closed:
            self.closed = True
            raise ValueError("in the middle of a step")
        await super().close()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (CloseRaises, "ConnectionError: gone"),
        (ClosesOnce, "close a second time: ValueError: closed already"),
        (ClosesAfterResetOnly, "close before reset: AttributeError"),
        (ClosesUnlessCancelled, "close after a cancelled step: ValueError: in the middle of a step"),
    ],
)
def test_a_close_that_fails_is_told_with_when(env, message):
    report = check(env)
    assert found(report, "failed") == {"close"}
    assert message in detail(report, "close")


# --- rewards, ends, scores ----------------------------------------------------------------------------


def rewarding(value) -> type[Env]:
    class Rewarding(Colours):
        async def step(self, action):
            transition = await super().step(action)
            return replace(
                transition, rewards={"outcome": value, **dict(list(transition.rewards.items())[1:])}
            )

    return Rewarding


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "reward 'outcome' must be a finite number, got nan"),
        (float("inf"), "reward 'outcome' must be a finite number, got inf"),
        ("1.0", "reward 'outcome' must be a finite number, got '1.0'"),
        (None, "reward 'outcome' must be a finite number, got None"),
    ],
)
def test_a_reward_that_is_no_finite_number_fails(value, message):
    report = check(rewarding(value))
    assert found(report, "failed") == {"rewards"}
    assert message in detail(report, "rewards")


def test_a_reward_outside_the_declared_range_fails():
    class Generous(Colours):
        async def step(self, action):
            transition = await super().step(action)
            return replace(transition, rewards={"outcome": 5 * transition.rewards["outcome"]})

    report = check(Generous)
    assert found(report, "failed") == {"rewards"}
    assert "rewards add up to 5, outside reward_range 0 to 1" in detail(report, "rewards")
    Generous.reward_range = (0.0, 5.0)
    assert check(Generous).ok


def test_the_rewards_that_a_tool_environment_refuses_itself_count_as_rewards():
    class Nan(ToolEnv):
        def reward(self, task, answer):
            return float("nan")

    class Wide(ToolEnv):
        def reward(self, task, answer):
            return 3.0

    for env in (Nan, Wide):
        assert found(check(env), "failed") == {"rewards"}


@pytest.mark.parametrize("given", [(1.0, 0.0), (0.0, float("inf")), 1.0, None])
def test_a_range_that_is_none_fails(given):
    class Ranged(Colours):
        reward_range = given

    report = check(Ranged)
    assert found(report, "failed") == {"rewards"}
    assert "reward_range: it is" in detail(report, "rewards")


def test_an_environment_that_never_ends_fails():
    class Endless(Colours):
        async def step(self, action):
            self.guesses = -1
            known = self.over
            self.over = False
            transition = await super().step(action)
            self.over = known or self.over
            rewards = {"outcome": 0.0} if known else transition.rewards
            self.guesses = 0
            return replace(transition, terminated=False, rewards=rewards, anchor="")

    report = check(Endless)
    assert found(report, "failed") == {"stop_flags"}
    assert "no episode of any policy ended within 6 steps" in detail(report, "stop_flags")


def test_an_environment_without_a_horizon_is_warned_about():
    class Patient(Colours):
        async def step(self, action):
            self.guesses = 0
            return await super().step(action)

    report = check(Patient)
    assert report.ok and found(report, "warned") == {"stop_flags"}
    assert "policy null and repeat was never ended in 6 steps" in detail(report, "stop_flags")
    assert "rollout.max_steps" in detail(report, "stop_flags")


class SilenceWins(Colours):
    async def step(self, action):
        transition = await super().step(action)
        return replace(transition, rewards={"outcome": float(not action.text) / 3})


class NothingWins(Colours):
    async def step(self, action):
        return replace(await super().step(action), rewards={"outcome": 0.0})


class OracleRaises(Colours):
    @classmethod
    def oracle(cls, task):
        raise LookupError("no solution")


class OracleSpeaksText(Colours):
    class Text:
        def act(self, messages):
            return "red"

    @classmethod
    def oracle(cls, task):
        return cls.Text()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (SilenceWins, "null: saying nothing has a mean return of 1, the most there is"),
        (NothingWins, "the oracle's mean return 0 is not above random's, 0"),
        (OracleRaises, "oracle: LookupError: no solution"),
        (OracleSpeaksText, "oracle policy: EnvError: it returned 'red'. Return a steprl.envs.policy.Move"),
    ],
)
def test_a_reward_that_does_not_tell_a_solution_fails(env, message):
    report = check(env)
    assert found(report, "failed") == {"policies"}
    assert message in detail(report, "policies")


def test_silence_as_good_as_the_oracle_fails():
    class Indifferent(Colours):
        reward_range = (0.0, 2.0)

        async def step(self, action):
            transition = await super().step(action)
            right = transition.rewards["outcome"]
            return replace(transition, rewards={"outcome": right or float(not action.text) / 3})

    report = check(Indifferent)
    assert found(report, "failed") == {"policies"}
    assert "the oracle's mean return 1 is not above null's, 1" in detail(report, "policies")


def test_an_oracle_below_the_top_is_warned_about_and_none_is_fine():
    class Modest(Colours):
        reward_range = (0.0, 2.0)

    class NoOracle(Colours):
        @classmethod
        def oracle(cls, task):
            return None

    report = check(Modest)
    assert report.ok and found(report, "warned") == {"policies"}
    assert "with a mean of 1; the most there is is 2" in detail(report, "policies")
    report = check(NoOracle)
    assert found(report, "warned") == set() and "oracle" not in report.scores


# --- leaks of answers and anchors ---------------------------------------------------------------------


def asking(tasks, form):
    return [replace(task, prompt=form.format(prompt=task.prompt, answer=task.answer)) for task in tasks]


@pytest.mark.parametrize(
    "form",
    [
        "{prompt} (solution: {answer})",
        "{answer}: {prompt}",
        "{prompt} {answer}",
        '{{"q": "{prompt}", "a": "{answer}"}}',
    ],
)
def test_an_answer_in_the_prompt_fails(form):
    report = check(Colours, asking(TASKS, form))
    assert found(report, "failed") == {"answer_leak"}
    assert "100% of 10 openings hold the answer of their own task, 0% hold that of another one" in detail(
        report, "answer_leak"
    )


def test_a_choice_between_options_is_a_warning():
    options = [*COLOURS, *COLOURS]
    tasks = [
        replace(task, prompt=f"{task.prompt} " + " or ".join(sorted([task.answer, options[i + 3]])))
        for i, task in enumerate(TASKS)
    ]
    report = check(Colours, tasks)
    assert report.ok and found(report, "warned") == {"answer_leak"}
    assert "right for a choice between options" in detail(report, "answer_leak")


def test_answers_that_every_prompt_names_are_no_leak():
    tasks = [replace(task, prompt=f"{task.prompt} One of: {', '.join(COLOURS)}") for task in TASKS]
    assert "answer_leak" in found(check(Colours, tasks), "passed")


def test_an_answer_with_nothing_to_compare_is_a_warning():
    report = check(Colours, asking(TASKS[:1], "{prompt} {answer}"))
    assert "answer_leak" in found(report, "warned")
    assert "no other answer to compare with" in detail(report, "answer_leak")


@given(st.integers(0, 99), st.integers(0, 99))
def test_numbers_are_compared_whole(own, other):
    text = f"it costs {other}, or 1{other} or {other}.5 or {other}a or x{other} or 7,{other}"
    assert _stands((str(own),), text) == (own == other)


def test_an_anchor_in_a_message_is_a_warning_and_with_the_answer_a_failure():
    class Visible(Colours):
        async def step(self, action):
            transition = await super().step(action)
            shown = Message(role="user", content=f"Wrong. State: {transition.anchor}.")
            return replace(transition, feedback=(shown,))

    class Telling(Visible):
        async def step(self, action):
            transition = await Colours.step(self, action)
            anchor = f"wanted {self.task.answer}"
            shown = Message(role="user", content=f"Wrong. State: {anchor}.")
            return replace(transition, feedback=(shown,), anchor=anchor)

    report = check(Visible)
    assert report.ok and found(report, "warned") == {"anchor_leak"}
    assert "anchors stand word for word in a message" in detail(report, "anchor_leak")
    report = check(Telling, max_steps=3)
    assert "anchor_leak" in found(report, "failed")
    assert "100% of these hold the answer of their task, 0% that of another one" in detail(
        report, "anchor_leak"
    )


# --- the event loop, and what stays behind ------------------------------------------------------------


def test_blocking_the_event_loop_is_a_warning():
    class Blocks(Colours):
        times = 0

        async def step(self, action):
            if Blocks.times < 3:
                Blocks.times += 1
                time.sleep(0.15)
            return await super().step(action)

    report = check(Blocks)
    assert report.ok and found(report, "warned") == set()
    assert ("event_loop", "warned") in [(check.name, check.status) for check in report.checks]
    assert "for over 0.1 s, while all other episodes stand still" in detail(report, "event_loop")


KEPT: list[object] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Frees what a leaky environment kept."""
    yield
    for thing in KEPT:
        if isinstance(thing, threading.Event):
            thing.set()
        elif isinstance(thing, int):
            os.close(thing)
        elif isinstance(thing, subprocess.Popen):
            thing.wait()
    KEPT.clear()


class Keeps(Colours):
    async def reset(self, task, *, seed):
        self.keep()
        return await super().reset(task, seed=seed)


class KeepsMemory(Keeps):
    def keep(self):
        KEPT.append(b"x" * 200_000)


class KeepsThreads(Keeps):
    def keep(self):
        KEPT.append(threading.Event())
        threading.Thread(target=KEPT[-1].wait, daemon=True).start()


class KeepsFiles(Keeps):
    def keep(self):
        KEPT.append(os.open(os.devnull, os.O_RDONLY))


class KeepsProcesses(Keeps):
    def keep(self):
        KEPT.append(subprocess.Popen(["true"]))


@pytest.mark.parametrize(
    ("env", "name", "message"),
    [
        (KeepsMemory, "memory", r"MB after 8 resets, .* after 40: \d+\.\d KB a reset, and still growing"),
        (KeepsThreads, "threads", "threads after 8 resets, .* after 40: 1 a reset"),
        (KeepsFiles, "files", "open files and sockets after 8 resets, .* after 40: 1 a reset"),
        (KeepsProcesses, "processes", "child processes after 8 resets, .* after 40: 1 a reset"),
    ],
)
def test_what_episodes_leave_behind_is_told_by_kind(env, name, message):
    report = check(env, resets=40, episodes=1)
    assert found(report, "failed") == {name}
    with pytest.raises(EnvError, match=message):
        report.raise_for_failures()


# --- ways to call it ----------------------------------------------------------------------------------


def test_it_takes_a_function_and_works_where_a_loop_runs():
    async def notebook():
        return check(lambda: Colours())

    report = asyncio.run(notebook())
    assert report.ok and report.env == "Colours" and report.scores["oracle"].mean == 1.0


def test_the_same_check_finds_the_same_scores():
    assert check(Colours, seed=3).scores == check(Colours, seed=3).scores


def test_no_thread_of_the_check_stays():
    before = threading.active_count()
    check(Colours)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resets": 4}, "resets must be at least 5, got 4"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"deadline": 0}, "deadline must be above 0 seconds, got 0"),
    ],
)
def test_numbers_that_make_no_check_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check(Colours, **options)


def test_tasks_that_are_none_are_refused():
    with pytest.raises(TaskError, match="no tasks to play"):
        check(Colours, [])
    with pytest.raises(TaskError, match="task 1 is 'blood', not a steprl.Task"):
        check(Colours, [TASKS[0], "blood"])


# --- random arguments ---------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    label: str | None = None


@tool
def everything(
    text: str,
    whole: int,
    real: float,
    flag: bool,
    choice: Literal["a", "b"],
    several: list[int],
    pair: tuple[int, str],
    point: Point,
    either: int | None = None,
    table: dict[str, int] | None = None,
) -> str:
    """Takes everything."""
    return "ok"


@given(st.integers(0, 10_000))
def test_random_arguments_fit_the_schema(seed):
    drawn = draw_arguments(everything.spec.parameters, random.Random(seed), ["word"])
    everything.arguments.check("everything", drawn)  # raises where one does not fit


# --- the environments that come along -----------------------------------------------------------------


def test_courier_passes():
    report = check(Courier, Courier.tasks("train"), resets=40, episodes=8, max_steps=12)
    assert report.ok, report.failures
    assert found(report, "warned") == {"stop_flags"}  # it has no horizon of its own
    assert report.scores["oracle"].minimum == 1.0


@pytest.mark.skipif(not (SHARED / "data/gsm8k").is_dir(), reason="needs the GSM8K files (STEPRL_SHARED)")
def test_gsm8k_passes():
    tasks = GSM8K.tasks(str(SHARED / "data/gsm8k/train.jsonl.xz"))
    report = check(GSM8K, tasks, resets=40, episodes=8, max_steps=16)
    assert report.ok, report.failures
    assert found(report, "warned") == {"stop_flags"}
    assert report.scores["oracle"].minimum == 2.0


@pytest.mark.skipif(not (SHARED / "data/gsm8k").is_dir(), reason="needs the GSM8K files (STEPRL_SHARED)")
@pytest.mark.parametrize("name", ["train", "test_a"])
def test_every_row_of_gsm8k_is_solved_by_its_own_solution(name):
    for task in GSM8K.tasks(str(SHARED / f"data/gsm8k/{name}.jsonl.xz")):
        policy, messages = GSM8K.oracle(task), [Message(role="user", content=task.prompt)]
        while calls := (move := policy.act(messages)).calls:
            (called, arguments), *others = calls
            assert called == calculator.name and not others
            # a ToolError here would be a calculation that the calculator cannot read
            messages.append(Message(role="tool", content=calculator(**arguments)))
        assert has_answer_line(move.text) and numbers_equal(move.text, task.answer)
        assert len(messages) <= 10  # of the question and 9 calculations at most
