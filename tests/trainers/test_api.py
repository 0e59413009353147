"""From Python: an environment class and a list of tasks are all it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playing import Guess, call, guesses
from training import DICE, quiet, recipe_of

import steprl
from steprl.config import build, read_toml, to_toml
from steprl.errors import ConfigError, EngineError
from steprl.trainers import api
from steprl.trainers.recipe import Recipe
from steprl.trajectory.store import read

POP = {"Oslo": 709_000, "Rome": 2_749_000, "Lima": 10_092_000}


@steprl.tool
def population(city: str) -> int:
    """Number of inhabitants of a city."""
    return POP[city]


class Compare(steprl.ToolEnv):
    """The environment of the README."""

    tools = [population]

    def reward(self, task: steprl.Task, answer: str) -> float:
        return float(answer == task.answer)


PAIRS = [
    steprl.Task(id="a", prompt="Which is larger, Oslo or Rome?", answer="Rome"),
    steprl.Task(id="b", prompt="Which is larger, Lima or Rome?", answer="Lima"),
]
NEW = [steprl.Task(id="new", prompt="Which is larger, Rome or Oslo?", answer="Rome")]
"""For evaluation: what is trained on says nothing of new tasks."""


def script(prompt: str, turn: int) -> str:
    """Looks up one city, then names Rome."""
    return call("population", city="Rome") if turn == 0 else "Rome"


def options(runs: Path, **more: Any) -> dict[str, Any]:
    return {
        "runs": str(runs),
        "threads": 1,
        "rollout.groups": 2,
        "rollout.group_size": 2,
        "train.iterations": 1,
        **more,
    }


def test_train_with_a_class_tasks_and_a_script(tiny_policy: str, tmp_path: Path) -> None:
    summary = steprl.train(
        Compare,
        tasks=PAIRS,
        eval_tasks=NEW,
        model=tiny_policy,
        algorithm="rloo",
        script=script,
        options=options(tmp_path),
    )
    assert (summary["success_before"], summary["success_after"]) == (1.0, 1.0)
    assert (summary["algorithm"], summary["iterations"], summary["eval_tasks"]) == ("rloo", 1, 1)
    groups = read(tmp_path / "run", split="train")
    assert {group.task_id: [t.reward for t in group.trajectories] for group in groups} == {
        "a": [1.0, 1.0],
        "b": [0.0, 0.0],
    }
    assert groups[0].trajectories[0].steps[0].feedback[0].content == "2749000"
    written = build(Recipe, read_toml(tmp_path / "run" / "config.toml"))
    assert written.env.id == "test_api:Compare" and written.model.path == tiny_policy


def test_without_evaluation_tasks_there_is_no_evaluation(tiny_policy: str, tmp_path: Path) -> None:
    summary = steprl.train(Compare, tasks=PAIRS, model=tiny_policy, script=script, options=options(tmp_path))
    assert summary["eval_tasks"] == 0 and summary["success_after"] is None


def test_train_refuses_the_folder_of_another_run_unless_told(tiny_policy: str, tmp_path: Path) -> None:
    def again(**more: Any) -> dict[str, Any]:
        return steprl.train(
            Compare, tasks=PAIRS, model=tiny_policy, script=script, options=options(tmp_path), **more
        )

    again()
    with pytest.raises(ConfigError, match="exists. Continue it"):
        again()
    assert again(overwrite=True)["iterations"] == 1


def test_rollout_plays_groups_in_order_without_a_folder(
    tiny_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    groups = steprl.roll_out(
        Compare, tasks=PAIRS, model=tiny_policy, script=script, options=options(tmp_path / "runs")
    )
    assert [(group.task_id, len(group.trajectories)) for group in groups] == [("a", 2), ("b", 2)]
    assert all(len(t.steps) == 2 for group in groups for t in group.trajectories)
    assert list(tmp_path.iterdir()) == []


def test_rollout_with_names_takes_the_tasks_of_the_environment(tiny_policy: str) -> None:
    groups = steprl.roll_out(
        "playing:Guess",
        tasks="train",
        model=tiny_policy,
        script=["0"],
        options={"rollout.groups": 3, "rollout.group_size": 1, "threads": 1},
    )
    assert [group.task_id for group in groups] == ["task-0", "task-1", "task-2"]


def test_rollout_of_nothing_is_refused(tiny_policy: str) -> None:
    with pytest.raises(ConfigError, match="no tasks to roll out"):
        steprl.roll_out(Guess, tasks=[], model=tiny_policy, script=["0"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train.iteration": 3}, "unknown option 'train.iteration'. Did you mean 'train.iterations'?"),
        ({"learner.lr": "fast"}, "learner.lr: Input should be a valid number, got 'fast'"),
        ({"model.path.x": 1}, "'model.path.x': 'model.path' is a value, not a table of options"),
        ({"runs": Path("runs")}, "PosixPath is not JSON serializable. Options are text"),
    ],
)
def test_options_are_checked_as_in_a_recipe(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        steprl.train(Compare, tasks=PAIRS, options=given)
    assert message in str(caught.value)


def test_a_script_that_runs_out_is_told(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the script has 1 replies, this session asks for another"):
        steprl.train(
            Compare,
            tasks=PAIRS,
            model=tiny_policy,
            script=[call("population", city="Rome")],
            options=options(tmp_path),
        )


def test_load_recipe_applies_overrides(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path)
    (tmp_path / "r.toml").write_text(to_toml(recipe))
    assert api.load_recipe(tmp_path / "r.toml") == recipe
    assert api.load_recipe(tmp_path / "r.toml", ["learner.lr=0.5"]).learner.lr == 0.5


def test_evaluating_a_recipe_counts_every_task_once(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "engine.args.replies=['0']")
    result = api.evaluate_recipe(recipe, greedy=True, display=quiet())
    assert [group.task_id for group in result.groups] == [task.id for task in guesses(4, first=90)]
    assert (result.tasks, result.success, result.errors) == (4, 0.5, 0)  # answers 0, 1, 2, 0
    sampling = {s.sampling.temperature for g in result.groups for t in g.trajectories for s in t.steps}
    assert sampling == {0.0}
    with pytest.raises(ConfigError, match="no evaluation tasks; set env.eval and evaluation.tasks"):
        api.evaluate_recipe(recipe_of(DICE, tiny_policy, tmp_path, "evaluation.tasks=0"), greedy=False)


class Leaky(Guess):
    """Breaks on one task in two."""

    def setup(self, task: steprl.Task, seed: int) -> None:
        if task.id in ("task-91", "task-93"):
            raise OSError("no connection")


def test_a_broken_evaluation_episode_is_not_a_success_and_is_counted(
    tiny_policy: str, tmp_path: Path
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "engine.args.replies=['0']", "env.id=test_api:Leaky")
    result = api.evaluate_recipe(recipe, greedy=False, display=quiet())
    assert (result.tasks, result.success, result.reward, result.errors) == (4, 0.25, 0.5, 2)
