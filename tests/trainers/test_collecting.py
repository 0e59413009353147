"""Rollouts until enough groups are kept: new tasks in the cursor's order, a bounded number of rounds, and the
same bits after a stop or a kill in the middle of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import Dice, Guess, guesses, renderer
from training import (
    COURIER,
    DICE,
    dealt,
    quiet,
    recipe_of,
    run,
    run_briskly,
    said,
    same_weights,
    sampled,
    weights,
)

from steprl.context import AppendOnly
from steprl.credit import Grpo, ReinforcePp
from steprl.errors import ConfigError, EnvError
from steprl.rewards import RewardComposer
from steprl.rollout import EnvWorkflow, FailurePolicy, Pool
from steprl.trainers import api
from steprl.trainers.collecting import Collected, collect
from steprl.trainers.cursor import TaskCursor
from steprl.trainers.explaining.explain import explain
from steprl.trainers.explaining.facts import LEFT_OUT
from steprl.trainers.filtering.base import GroupFilter, TrajectoryFilter
from steprl.trainers.filtering.choose import filters_of
from steprl.trainers.interrupt import Interrupted
from steprl.trainers.loop import Trainer
from steprl.trainers.parts import Parts, Player, build_parts
from steprl.trainers.planning.calibrate import calibrate
from steprl.trainers.recipe import Recipe
from steprl.trainers.replay import replay
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import file_path, files, read
from steprl.types import Completion, Prompt, Sampling, Task, Trajectory, TrajectoryGroup

INFORMATIVE = ("filter.keep.informative=true", "filter.max_rounds=2", "evaluation.tasks=0")
CURRICULA = (*INFORMATIVE, "curriculum.id=by_success", "curriculum.args={decay = 0.9}")


class Chance(GroupFilter):
    """Keeps groups by a draw that follows from the first member's seed."""

    def __init__(self, share: float) -> None:
        self.share = share

    def keeps(self, group: TrajectoryGroup) -> bool:
        return group.trajectories[0].seed % 1000 < 1000 * self.share


class Never(GroupFilter):
    """Keeps nothing."""

    def keeps(self, group: TrajectoryGroup) -> bool:
        return False


class Even(TrajectoryFilter):
    """Keeps every second member of a group."""

    def keeps(self, trajectory: Trajectory) -> bool:
        return int(trajectory.uid[-1]) % 2 == 0


class Unnamed(Guess):
    """Says what an answer is worth, and not whether the task was solved."""

    def reward(self, task: Task, answer: str) -> dict[str, float]:  # type: ignore[override]
        return {"closeness": float(answer == str(task.answer))}


class Rotten(Guess):
    """Four of the six tasks are broken."""

    def setup(self, task: Task, seed: int) -> None:
        if task.id not in ("task-0", "task-1"):
            raise OSError("no connection to the vault")


class Stopping(Dice):
    """Ctrl-C, once, in a further round of the third iteration."""

    stopped: list[str] = []

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        number, place = session_id.split(".")[0].split("-")[1:3]
        if number == "3" and int(place) >= 3 and not Stopping.stopped:
            Stopping.stopped.append(session_id)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        return await super().generate(prompt, sampling, session_id=session_id, seed=seed)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [line for line in RunFolder(folder).metrics() if "reward/mean" in line]


def per_iteration(folder: Path) -> list[list[str]]:
    """Ids of the tasks played in each iteration."""
    return [[group.task_id for group in read(path)] for path in files(folder) if "train" in path.name]


def refusal(recipe: Recipe) -> str:
    with pytest.raises(ConfigError) as caught:
        build_parts(recipe)
    return str(caught.value)


# --- the rounds of one iteration ----------------------------------------------------------------------


def parts_without_a_model(recipe: Recipe, tasks: Sequence[Task]) -> Parts:
    """All that collecting needs; nothing is trained."""
    rewards = RewardComposer({})
    engine = Dice(replies=["0", "1", "2"])
    pool = Pool(
        workflow=EnvWorkflow(Guess, AppendOnly()),
        engine=engine,
        renderer=renderer(),
        rewards=rewards,
        concurrency=16,
        failures=FailurePolicy(),
    )
    return Parts(
        player=Player(renderer=renderer(), engine=engine, pool=pool, rewards=rewards),
        estimator=Grpo(),
        models=None,  # type: ignore[arg-type]
        filters=filters_of(recipe),
        cursor=TaskCursor(tasks, seed=7),
        train_tasks=tasks,
        eval_tasks=(),
    )


def collected(recipe: Recipe, parts: Parts, number: int = 2) -> Collected:
    return asyncio.run(collect(recipe, parts, parts.cursor, number, quiet()))


@settings(max_examples=25, deadline=None)
@given(
    tasks=st.integers(1, 7),
    groups=st.integers(1, 4),
    most=st.integers(0, 3),
    share=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
)
def test_what_is_missing_is_played_anew_and_nothing_lost_doubled_or_in_surplus(
    tasks: int, groups: int, most: int, share: float
) -> None:
    recipe = recipe_of(
        DICE,
        "unused",
        Path("unused"),
        f"rollout.groups={groups}",
        f"filter.max_rounds={most}",
        f"filter.keep={{'test_collecting:Chance' = {{share = {share}}}}}",
        "rollout.group_size=2",
    )
    parts = parts_without_a_model(recipe, guesses(tasks))
    found = collected(recipe, parts)
    played = [group.task_id for group in found.groups]
    assert played == [task.id for task in TaskCursor(guesses(tasks), seed=7).take(len(played))]
    assert parts.cursor.position == len(played) and found.rounds <= most
    assert [group.group_uid for group in found.groups] == [f"train-2-{n}" for n in range(len(played))]
    assert all(found.tasks[g.group_uid].id == g.task_id for g in found.groups)
    kept = [group.group_uid for group in found.chosen.groups]
    assert kept == [g.group_uid for g in found.groups if Chance(share).keeps(g)]  # each that was kept trains
    assert len(kept) <= groups
    # each round plays what the rounds before have left missing, and the last leaves none or was the last
    left, rounds, place = groups, 0, 0
    while left and rounds <= most:
        part = found.groups[place : place + left]
        assert len(part) == left
        place, rounds = place + left, rounds + 1
        left -= sum(Chance(share).keeps(group) for group in part)
    assert place == len(played) and rounds == found.rounds + 1
    again = collected(recipe, parts_without_a_model(recipe, guesses(tasks)))
    assert [t.uid for g in again.groups for t in g.trajectories] == [
        t.uid for g in found.groups for t in g.trajectories
    ]
    plain = replace(recipe, filter=replace(recipe.filter, keep={}))
    first = collected(plain, parts_without_a_model(plain, guesses(tasks)))
    for one, other in zip(first.groups, found.groups, strict=False):  # the first round is what it always was
        for a, b in zip(one.trajectories, other.trajectories, strict=True):
            assert [s.action_ids.tolist() for s in a.steps] == [s.action_ids.tolist() for s in b.steps]


def test_a_further_round_may_fail_as_a_whole_and_the_first_may_not(tiny_policy: str, tmp_path: Path) -> None:
    """Few tasks are left to play in it; that they are broken is no sign that everything is."""
    options = (*INFORMATIVE, "env.id=test_collecting:Rotten", "rollout.failures.retries=0")
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options, "rollout.groups=6", "seed=2"))
    lines = metrics(folder)
    assert max(line["filter/rounds"] for line in lines) == 2
    assert all(line["filter/too_few/groups"] >= 4 for line in lines)
    broken = recipe_of(DICE, tiny_policy, tmp_path, *options, "name=all", "rollout.groups=1", "seed=1")
    with pytest.raises(EnvError, match="all 4 episodes failed"):
        run(broken)


# --- in a run -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four iterations with filters, resampling, a curriculum and a horizon, which nothing interrupted."""
    return run_briskly(all_of_it(tiny_policy, tmp_path_factory.mktemp("straight")))


def all_of_it(policy: str, runs: Path, *options: str) -> Recipe:
    horizon = "rollout.horizon={start = 1, iterations = 2}"
    return recipe_of(DICE, policy, runs, *CURRICULA, "rollout.groups=3", horizon, *options)


def test_figures_say_what_was_kept_and_are_those_of_all_that_was_played(straight: Path) -> None:
    lines = metrics(straight)
    assert [line["horizon/max_steps"] for line in lines] == [1, 2, 3, 3]
    for number, line in enumerate(lines, start=1):
        groups = read(file_path(straight, iteration=number))
        assert line["groups/count"] == len(groups) == line["batch/trajectories"] / 4
        flat = line["filter/informative/groups"]
        assert line["groups/zero_variance_share"] == pytest.approx(flat / len(groups))
        assert line["filter/kept_groups"] == len(groups) - flat <= 3
        assert line["groups/dropped"] == flat and line["filter/zero_variance_share"] == 0
        assert line["filter/missing_share"] == pytest.approx(1 - line["filter/kept_groups"] / 3)
        assert 0 <= line["filter/rounds"] <= 2
        assert max(len(t.steps) for g in groups for t in g.trajectories) <= line["horizon/max_steps"]
    assert max(line["filter/rounds"] for line in lines) > 0, "this run has something to make up for"
    seen = [line["curriculum/seen_share"] for line in lines]
    assert seen == sorted(seen) and seen[-1] > 0.5


def test_all_that_was_played_tells_of_difficulty_not_only_what_trained(straight: Path) -> None:
    state = RunFolder.state(RunFolder(straight).checkpoints()[-1])
    assert state.cursor == sum(map(len, per_iteration(straight)))
    played = {task_id for part in per_iteration(straight) for task_id in part}
    assert {f"task-{index}" for index, _, _ in state.curriculum["successes"]} == played


@pytest.mark.parametrize("iteration", [1, 3])
def test_a_killed_run_resumes_to_the_same_bits(
    tiny_policy: str, tmp_path: Path, straight: Path, iteration: int
) -> None:
    class Kill(Exception):
        pass

    class Killed(Trainer):
        async def iterate(self) -> dict[str, float]:
            if self.iteration == iteration:
                raise Kill
            return await super().iterate()

    recipe = all_of_it(tiny_policy, tmp_path)
    with pytest.raises(Kill):
        Killed(recipe, build_parts(recipe), RunFolder.create(recipe), quiet()).run()
    folder = run_briskly(recipe, resume=tmp_path / "run")
    assert_same(folder, straight)


def test_a_stop_in_the_middle_of_the_rounds_is_no_trace(
    tiny_policy: str, tmp_path: Path, straight: Path
) -> None:
    Stopping.stopped.clear()
    recipe = all_of_it(tiny_policy, tmp_path, "engine.id=test_collecting:Stopping")
    with pytest.raises(Interrupted, match="stopped after iteration 2"):
        run_briskly(recipe)
    assert Stopping.stopped
    state = RunFolder.state(tmp_path / "run" / "checkpoints" / "step-2")
    assert state.cursor == sum(map(len, per_iteration(straight)[:2])), "the tasks of the third come again"
    folder = run_briskly(recipe, resume=tmp_path / "run")
    assert_same(folder, straight)


def assert_same(folder: Path, straight: Path) -> None:
    assert dealt(folder) == dealt(straight) and sampled(folder) == sampled(straight)
    assert same_weights(folder, straight)
    now, then = ([untimed(line) for line in metrics(path)] for path in (folder, straight))
    assert now == then
    states = [RunFolder.state(RunFolder(path).checkpoints()[-1]) for path in (folder, straight)]
    assert states[0].curriculum == states[1].curriculum and states[0].cursor == states[1].cursor


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.startswith(("time/", "speed/tokens"))}


def test_when_nothing_is_kept_the_weights_stay_and_the_iteration_counts(
    tiny_policy: str, tmp_path: Path
) -> None:
    options = ("filter.keep={'test_collecting:Never' = true}", "filter.max_rounds=1", "evaluation.tasks=0")
    display = quiet()
    assert run(recipe_of(DICE, tiny_policy, tmp_path, *options), display=display)["iterations"] == 4
    told = said(display)
    assert (
        "iteration 4: no episode is left to train on (test_collecting:Never dropped 4 of 4 groups); "
        "the weights stay" in told
    )
    assert told.count("watch: after all further rounds 1.00 of the groups are missing") == 1
    assert "in 1.00 of the groups all rewards are equal" not in told, "what was dropped is not trained on"
    for line in metrics(tmp_path / "run"):
        assert (line["filter/rounds"], line["filter/kept_groups"], line["learner/updates"]) == (1, 0, 0)
        assert "filter/zero_variance_share" not in line
    assert "kept 0  more rounds 1" in told
    untouched = run_briskly(
        recipe_of(DICE, tiny_policy, tmp_path / "other", *options, "train.iterations=1", "learner.lr=1.0")
    )
    assert same_weights(tmp_path / "run", untouched)
    assert len(dealt(tmp_path / "run")) == 16


def test_what_is_not_in_use_is_not_told(tiny_policy: str, tmp_path: Path) -> None:
    display = quiet()
    run(recipe_of(DICE, tiny_policy, tmp_path, "evaluation.tasks=0", "train.iterations=1"), display=display)
    (line,) = metrics(tmp_path / "run")
    assert not [name for name in line if name.startswith(("filter/", "curriculum/", "horizon/"))]
    assert "kept" not in said(display).partition("iteration    1")[2]


@pytest.mark.parametrize("in_statistics", [False, True])
def test_trajectories_taken_out_do_not_train(tiny_policy: str, tmp_path: Path, in_statistics: bool) -> None:
    """Half of the rows are left; in the comparison, either half or all."""
    options = (
        "filter.keep={'test_collecting:Even' = true}",
        f"filter.in_statistics={str(in_statistics).lower()}",
        "algorithm.estimator=test_collecting:Keeping",
        "evaluation.tasks=0",
        "train.iterations=1",
    )
    Keeping.sizes.clear()
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options))
    (line,) = metrics(folder)
    assert line["filter/test_collecting:Even/trajectories"] == 4 and line["learner/rows"] == 4
    assert set(Keeping.sizes) == {4 if in_statistics else 2}


class Keeping(ReinforcePp):
    """Keeps the sizes of the groups that it is given."""

    sizes: list[int] = []

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Any) -> Any:
        Keeping.sizes += [len(group.trajectories) for group in groups]
        return super().__call__(groups, scores)


def test_deterministic_mode_gives_the_same_bits_with_delays(tiny_policy: str, tmp_path: Path) -> None:
    options = ("deterministic=true", "train.iterations=2")
    slow = run_briskly(all_of_it(tiny_policy, tmp_path / "a", *options, "engine.args.delay=0.01"))
    fast = run_briskly(all_of_it(tiny_policy, tmp_path / "b", *options))
    torch.use_deterministic_algorithms(False)
    assert_same(slow, fast)
    assert max(line["filter/rounds"] for line in metrics(fast)) > 0


def test_continuations_are_played_of_kept_groups_alone(tiny_policy: str, tmp_path: Path) -> None:
    vine = (
        "algorithm.estimator=gae",
        "algorithm.args={credit = 'step', values = 'rollout', lam = 0.0, continuations = 2}",
    )
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *INFORMATIVE, *vine, "train.iterations=2"))
    for number, line in enumerate(metrics(folder), start=1):
        groups = read(file_path(folder, iteration=number))
        kept = [g for g in groups if len({t.reward for t in g.trajectories}) > 1]
        assert len(kept) == line["filter/kept_groups"]
        states = len(kept) + sum(len(t.steps) - 1 for g in kept for t in g.trajectories)
        assert line["continuations/episodes"] == 2 * states


def test_continuations_have_the_horizon_of_their_iteration(tiny_policy: str, tmp_path: Path) -> None:
    """With one action an episode, none is left after the first: no continuation takes more steps."""
    options = (
        "algorithm.estimator=gae",
        "algorithm.args={credit = 'step', values = 'rollout', lam = 0.0, continuations = 2}",
        "rollout.horizon={start = 1, iterations = 1}",
        "evaluation.tasks=0",
        "rollout.groups=6",
        "train.iterations=2",
    )
    first, second = metrics(run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options)))
    assert first["continuations/steps"] == first["continuations/episodes"]
    assert second["continuations/steps"] > second["continuations/episodes"]


def test_evaluation_always_has_the_full_horizon(tiny_policy: str, tmp_path: Path) -> None:
    hints = 'engine.args.replies=[\'<tool_call>\\n{"name": "hint", "arguments": {}}\\n</tool_call>\']'
    options = ("rollout.horizon={start = 1, iterations = 4, every = 2}", "evaluation.every=1", hints)
    run(recipe_of(DICE, tiny_policy, tmp_path, *options))
    lengths: dict[str, list[set[int]]] = {"train": [], "eval": []}
    for path in files(tmp_path / "run"):
        split = "train" if "train" in path.name else "eval"
        lengths[split].append({len(t.steps) for group in read(path) for t in group.trajectories})
    assert lengths["train"] == [{1}, {1}, {2}, {2}] and lengths["eval"] == [{3}] * 5


def test_courier_with_all_of_it_is_trained_replayed_explained_and_resumed(
    tiny_policy: str, tmp_path: Path
) -> None:
    """The tiny model itself in the torch engine."""
    options = (
        "filter.keep={informative = true, length = {most_tokens = 16}}",
        "filter.max_rounds=1",
        "curriculum.id=by_success",
        "rollout.horizon={start = 1, iterations = 2}",
        "train.show_every=0",
        "watch.zero_variance=0",
        "deterministic=true",
    )
    recipe = recipe_of(COURIER, tiny_policy, tmp_path, *options)
    run(recipe)
    torch.use_deterministic_algorithms(False)
    folder = tmp_path / "courier"
    lines = metrics(folder)
    assert [line["horizon/max_steps"] for line in lines] == [1, 1, 2]
    assert all(line["filter/kept_groups"] > 0 for line in lines)
    assert api.load_recipe(folder / "config.toml") == recipe
    found = replay(folder, model=False, display=quiet())
    assert found.environment is not None and found.environment.same and found.environment.equal > 0
    weights(folder)


# --- beside a run -------------------------------------------------------------------------------------


def test_explain_leaves_out_what_the_run_left_out(tiny_policy: str, tmp_path: Path) -> None:
    keep = "filter.keep={informative = true, 'test_collecting:Even' = true}"
    options = (keep, "filter.max_rounds=1", "rollout.groups=4", "evaluation.tasks=0", "train.iterations=1")
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options, "rollout.group_size=6"))
    (line,) = metrics(folder)
    found = explain(folder, estimators=["grpo", "reinforce_pp"])
    trained = {
        key.trajectory
        for key, advantage in zip(found.applied.keys, found.applied.columns[0].advantages, strict=True)
        if advantage == advantage
    }
    assert {int(uid[-1]) % 2 for uid in trained} == {0}
    assert len({uid.split(".")[0] for uid in trained}) == line["filter/kept_groups"] > 0
    for key, facts in found.facts.items():
        left_out = any(fact.kind == LEFT_OUT for fact in facts.facts)
        assert left_out == (key.trajectory not in trained)
    told = {fact.told for facts in found.facts.values() for fact in facts.facts if fact.kind == LEFT_OUT}
    assert "the filter 'test_collecting:Even' took its episode out, so it does not train" in told


def test_a_plan_knows_what_filters_keep(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, *INFORMATIVE, "rollout.groups=6")
    found = calibrate(recipe, groups=6, display=quiet())
    flat = found.rollout.statistics["groups/zero_variance_share"]
    assert found.kept_share == pytest.approx(1 - flat) and 0 < flat < 1
    assert found.learner.training_share == 1.0, "every group that is kept has something to learn from"
    assert calibrate(recipe_of(DICE, tiny_policy, tmp_path), display=quiet()).kept_share is None


# --- refused before the first rollout -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("filter.keep={informativ = true}", "unknown filter 'informativ'. Did you mean 'informative'?"),
        ("curriculum.id=by_sucess", "unknown curriculum 'by_sucess'. Did you mean 'by_success'?"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_rollout(
    tiny_policy: str, tmp_path: Path, option: str, message: str
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, option)
    assert message in refusal(recipe)
    with pytest.raises(ConfigError):
        run(recipe)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("filter.keep={informative = {by = 'success'}}", "informative"),
        ("curriculum.id=by_success", "by_success"),
    ],
)
def test_what_asks_for_success_needs_an_environment_that_tells_it(
    tiny_policy: str, tmp_path: Path, option: str, name: str
) -> None:
    env = "env.id=test_collecting:Unnamed"
    with pytest.raises(ConfigError, match=f"^{name} asks which episodes solved their task, and none of the"):
        run(recipe_of(DICE, tiny_policy, tmp_path, option, env, "evaluation.tasks=0"))
    state = json.dumps(RunFolder(tmp_path / "run").metrics())
    assert state == "[]"
