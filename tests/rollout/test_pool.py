"""Many episodes: groups, order, bounds, seeds, and what happens when one of them breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import REPLIES, Dice, Guess, Recorder, call, guesses, members, only, play, renderer

from steprl.context import AppendOnly
from steprl.envs import Env
from steprl.errors import ConfigError, EnvError, TaskError
from steprl.rewards import RewardComposer
from steprl.rollout import EnvWorkflow, FailurePolicy, Pool, derive_seed
from steprl.tasks import task_hash
from steprl.types import (
    Action,
    Message,
    Observation,
    Sampling,
    Session,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
    Transition,
)


class Counted(Env):
    """Ends with the first action; counts what is open."""

    made: list[Counted] = []
    most_open = 0

    def __init__(self) -> None:
        self.closed = 0
        self.opened = False
        type(self).made.append(self)

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        self.opened = True
        open_now = sum(env.opened and not env.closed for env in self.made)
        type(self).most_open = max(self.most_open, open_now)
        return [Message(role="user", content=task.prompt)]

    async def step(self, action: Action) -> Transition:
        return Transition(rewards={"outcome": 1.0}, terminated=True)

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _fresh_counts() -> None:
    Counted.made, Counted.most_open = [], 0


def facts(groups: Sequence[TrajectoryGroup]) -> list[Any]:
    """Everything about a batch that has to be reproducible: all but the timings."""
    return [
        (
            t.uid,
            t.task_id,
            t.task_hash,
            t.seed,
            t.stop_reason,
            [(s.prompt_ids.tolist(), s.action_ids.tolist(), s.reward, s.anchor) for s in t.steps],
        )
        for t in members(groups)
    ]


# --- groups, order, bounds ----------------------------------------------------------------------------


def test_groups_and_members_come_back_in_dispatch_order_whoever_finishes_first() -> None:
    class Slow(Counted):
        async def step(self, action: Action) -> Transition:
            await asyncio.sleep(0.02 * random())
            return await super().step(action)

    finished: list[str] = []
    tasks = guesses(6)
    groups = play(
        Slow, Dice(replies=REPLIES), tasks, group_size=3, label="b", progress=lambda t: finished.append(t.uid)
    )
    assert [group.group_uid for group in groups] == [f"b-{n}" for n in range(6)]
    assert [group.task_id for group in groups] == [task.id for task in tasks]
    uids = [t.uid for t in members(groups)]
    assert uids == [f"b-{n}.{member}" for n in range(6) for member in range(3)]
    assert sorted(finished) == sorted(uids) and finished != uids


@settings(max_examples=8, deadline=None)
@given(concurrency=st.integers(1, 7), group_size=st.integers(1, 5))
def test_no_more_episodes_are_open_than_allowed(concurrency: int, group_size: int) -> None:
    Counted.made, Counted.most_open = [], 0
    play(
        Counted,
        Dice(replies=REPLIES, delay=0.002),
        guesses(3),
        group_size=group_size,
        concurrency=concurrency,
    )
    assert len(Counted.made) == 3 * group_size
    assert Counted.most_open == min(concurrency, 3 * group_size)


def test_tasks_may_repeat_in_a_batch() -> None:
    (task,) = guesses(1)
    groups = play(Guess, Dice(replies=REPLIES), [task, task], group_size=2)
    assert [group.group_uid for group in groups] == ["batch-0", "batch-1"]
    assert {group.task_id for group in groups} == {task.id}


# --- seeds --------------------------------------------------------------------------------------------


def test_the_same_seed_plays_the_same_batch_under_random_delays() -> None:
    def batch(**options: Any) -> list[Any]:
        engine = Dice(replies=REPLIES, delay=0.01)
        return facts(play(Guess, engine, guesses(4), group_size=4, **options))

    first = batch(seed=3)
    assert first == batch(seed=3) == batch(seed=3, concurrency=1)
    assert first != batch(seed=4)


def test_members_share_the_seed_of_the_environment_and_sample_apart() -> None:
    engine = Recorder([call("hint"), call("hint"), "0"])
    groups = play(Guess, engine, guesses(2), group_size=3, seed=5)
    assert [t.seed for t in members(groups)] == [derive_seed(5, place) for place in (0, 0, 0, 1, 1, 1)]
    streams = [seed for _, _, seed in engine.asked]
    assert len(streams) == len(set(streams)) == 2 * 3 * 3  # one for every action of every member


def test_what_is_drawn_does_not_depend_on_the_size_of_group_or_batch() -> None:
    small = facts(play(Guess, Dice(replies=REPLIES), guesses(2), group_size=2))
    large = facts(play(Guess, Dice(replies=REPLIES), guesses(4), group_size=5))
    assert [fact for fact in large if fact[0] in {f[0] for f in small}] == small


def test_the_seed_reaches_the_environment() -> None:
    seeds: list[int] = []

    class Seeded(Guess):
        def setup(self, task: Task, seed: int) -> None:
            seeds.append(seed)

    groups = play(Seeded, Recorder(["0"]), guesses(2), group_size=2)
    assert seeds == [t.seed for t in members(groups)]


def test_task_id_and_content_hash_are_recorded() -> None:
    (task,) = guesses(1)
    t = only(play(Guess, Recorder(["0"]), [task]))
    assert (t.task_id, t.task_hash) == (task.id, task_hash(task))


# --- members share nothing ----------------------------------------------------------------------------


class Vandal(Guess):
    """Writes into its task and into itself."""

    def setup(self, task: Task, seed: int) -> None:
        task.data["visits"].append("here")  # type: ignore[index]
        self.visits = len(task.data["visits"])

    def anchor(self, feedback: Sequence[Message]) -> str:
        return str(self.visits)


def test_a_task_that_an_environment_writes_into_is_nobody_elses() -> None:
    task = Task(id="t", prompt="Which?", answer=0, data={"visits": []})
    groups = play(Vandal, Recorder(["0"]), [task, task], group_size=3)
    assert {step.anchor for t in members(groups) for step in t.steps} == {"1"}
    assert {t.task_hash for t in members(groups)} == {task_hash(task)}
    assert task.data == {"visits": []}


def test_every_episode_has_an_environment_of_its_own() -> None:
    play(Counted, Recorder(["0"]), guesses(2), group_size=3)
    assert len(Counted.made) == 6 and all(env.closed == 1 for env in Counted.made)


# --- broken episodes ----------------------------------------------------------------------------------


class Fragile(Guess):
    """Breaks on the second action of task-1."""

    def setup(self, task: Task, seed: int) -> None:
        self.fragile, self.actions = task.id == "task-1", 0

    async def step(self, action: Action) -> Transition:
        self.actions += 1
        if self.fragile and self.actions == 2:
            raise RuntimeError("the pipe burst")
        return await super().step(action)


def test_a_broken_episode_is_a_value_and_the_others_go_on() -> None:
    failures = FailurePolicy(retries=0)
    groups = play(Fragile, Recorder([call("hint"), "0"]), guesses(3), group_size=2, failures=failures)
    whole = [t for t in members(groups) if t.task_id != "task-1"]
    broken = [t for t in members(groups) if t.task_id == "task-1"]
    assert all(t.stop_reason is StopReason.TERMINATED and t.reward is not None for t in whole)
    for t in broken:
        assert t.stop_reason is StopReason.ERROR and t.error is not None
        assert (t.error.kind, t.error.message) == ("RuntimeError", "the pipe burst")
        assert "in step" in t.error.traceback and "RuntimeError: the pipe burst" in t.error.traceback
        assert [step.reward for step in t.steps] == [None, None]  # sampled, never scored
        assert t.reward is None and t.final_prompt_ids is None
        assert t.steps[0].feedback[0].content == "small"


def test_a_reward_that_breaks_breaks_only_its_episode_whatever_ended_it() -> None:
    class Lavish(Guess):
        reward_range = (0.0, 1e308)

        async def step(self, action: Action) -> Transition:
            assert self._task is not None
            return Transition(rewards={"outcome": 1e308 if self._task.id == "task-1" else 0.0})

    groups = play(Lavish, Recorder(["0", "0"]), guesses(2), max_steps=1, weights={"outcome": 10.0})
    assert [t.stop_reason for t in members(groups)] == [StopReason.MAX_STEPS, StopReason.ERROR]
    error = members(groups)[1].error
    assert error is not None and error.kind == "ScorerError" and "weighted sum" in error.message


def test_when_all_break_the_run_stops_and_says_why() -> None:
    class Hopeless(Guess):
        def setup(self, task: Task, seed: int) -> None:
            raise KeyError("graph")

    with pytest.raises(EnvError) as caught:
        play(Hopeless, Recorder(["0"]), guesses(3), group_size=2)
    message = str(caught.value)
    assert message.startswith("all 6 episodes failed; nothing to train on. batch-0.0: KeyError: 'graph'")
    assert "in setup" in message


def test_a_configuration_error_inside_an_episode_stops_everything_at_once() -> None:
    class Misconfigured(Counted):
        async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
            opening = await super().reset(task, seed=seed)
            if task.id == "task-1":
                raise ConfigError("there is no such index")
            return opening

    engine = Recorder(["0"], latency=30.0)
    with pytest.raises(ConfigError, match="there is no such index"):
        play(Misconfigured, engine, guesses(3))
    assert len(Counted.made) == 3 and all(env.closed == 1 for env in Counted.made)
    assert sorted(engine.released) == ["batch-0.0", "batch-1.0", "batch-2.0"]


def test_a_task_that_cannot_be_hashed_is_refused_before_anything_is_played() -> None:
    with pytest.raises(TaskError, match="task 't' cannot be hashed"):
        play(Counted, Recorder(["0"]), [Task(id="t", answer={1, 2})])
    assert Counted.made == []


# --- closing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Transition(terminated=True), StopReason.TERMINATED),
        (Transition(truncated=True), StopReason.MAX_STEPS),
        (Transition(), StopReason.MAX_STEPS),
        (RuntimeError("broken"), StopReason.ERROR),
    ],
)
def test_an_environment_is_closed_however_the_episode_ends(step: Any, reason: StopReason) -> None:
    class Ending(Counted):
        async def step(self, action: Action) -> Transition:
            if isinstance(step, Exception) and len(self.made) == 2 and self is self.made[1]:
                raise step
            return Transition(terminated=True) if isinstance(step, Exception) else step

    engine = Recorder(["0"] * 4)
    groups = play(Ending, engine, guesses(2), max_steps=2, failures=FailurePolicy(retries=0))
    assert members(groups)[1].stop_reason is reason
    assert [env.closed for env in Counted.made] == [1, 1]
    assert sorted(engine.released) == ["batch-0.0", "batch-1.0"]


def test_cancelling_a_batch_closes_every_environment_and_frees_the_engine() -> None:
    engine = Recorder(["0"], latency=30.0)
    pool = Pool(
        workflow=_flow(), engine=engine, renderer=renderer(), rewards=RewardComposer({}), concurrency=2
    )

    async def stopped() -> None:
        collecting = asyncio.create_task(
            pool.collect(
                guesses(4), label="b", seed=0, group_size=1, sampling=Sampling(stop_ids=(2,)), max_steps=2
            )
        )
        await asyncio.sleep(0.02)
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting

    asyncio.run(stopped())
    assert len(Counted.made) == 2 and all(env.closed == 1 for env in Counted.made)
    assert sorted(engine.released) == ["b-0.0", "b-1.0"]


def _flow() -> Any:
    from steprl.context import AppendOnly
    from steprl.rollout import EnvWorkflow

    return EnvWorkflow(Counted, AppendOnly())


def test_progress_sees_every_trajectory_broken_ones_too() -> None:
    seen: list[Trajectory] = []
    groups = play(Fragile, Recorder([call("hint"), "0"]), guesses(2), progress=seen.append)
    assert {t.uid for t in seen} == {t.uid for t in members(groups)}
    assert sum(t.error is not None for t in seen) == 1


def test_a_workflow_may_pass_the_stop_through_its_own_cleaning_up() -> None:
    cleaned: list[str] = []

    class Tidy:
        async def run(self, task: Task, session: Session) -> None:
            try:
                while True:
                    await session.act(Observation(text="Go on."))
            finally:
                cleaned.append(session.uid)

    t = only(play(Tidy(), Recorder(["x"] * 5), max_steps=2))
    assert t.stop_reason is StopReason.MAX_STEPS and cleaned == [t.uid]


@pytest.mark.parametrize("leak", [SystemExit(2), asyncio.CancelledError()])
def test_an_episode_that_exits_or_leaks_a_cancellation_is_one_broken_episode(leak: BaseException) -> None:
    class Leaks(Guess):
        async def step(self, action: Action) -> Transition:
            if action.text == "leak":
                raise leak
            return Transition(rewards={"outcome": 1.0}, terminated=True)

    replies = iter(["leak", "1"])
    broken, fine = members(play(Leaks, Recorder(lambda _, turn: next(replies)), guesses(1), group_size=2))
    assert broken.error is not None and broken.error.kind == type(leak).__name__
    assert fine.stop_reason is StopReason.TERMINATED


def test_a_batch_that_is_cancelled_from_outside_is_cancelled() -> None:
    class Slow(Guess):
        async def setup(self, task: Task, seed: int) -> None:
            await asyncio.sleep(0)
            running = asyncio.get_running_loop()
            running.call_soon(outer[0].cancel)
            await asyncio.sleep(10)

    outer: list[asyncio.Task[Any]] = []

    async def collect() -> None:
        pool = Pool(
            workflow=EnvWorkflow(Slow, AppendOnly()),
            engine=Recorder(["1"]),
            renderer=renderer(),
            rewards=RewardComposer({}),
            concurrency=2,
        )
        sampling = Sampling(stop_ids=renderer().stop_ids)
        batch = pool.collect(guesses(2), label="b", seed=0, group_size=1, sampling=sampling, max_steps=2)
        outer.append(asyncio.ensure_future(batch))
        await outer[0]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(collect())
