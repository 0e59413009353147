"""What was handed over from Python is a part of the run: recorded, checked, and needed to go on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import Guess, call, guesses
from training import DICE, quiet, recipe_of

import steprl
from steprl.errors import ConfigError, TaskError
from steprl.trainers import api
from steprl.trainers.given import Given
from steprl.trainers.interrupt import Interrupted
from steprl.trainers.parts import build_parts, tasks_of
from steprl.trainers.storage.run_folder import RunFolder


def train(policy: str, runs: Path, **more: Any) -> dict[str, Any]:
    """Two iterations of ``Guess``; ``more`` replaces arguments, options included one by one."""
    options = {
        "runs": str(runs),
        "threads": 1,
        "rollout.groups": 1,
        "rollout.group_size": 2,
        "train.iterations": 2,
        "train.show_every": 0,
        **more.pop("options", {}),
    }
    given = {"tasks": guesses(3), "model": policy, "script": lambda prompt, turn: "1", **more}
    return steprl.train(given.pop("env", Guess), options=options, **given)


def started(policy: str, runs: Path, **more: Any) -> Path:
    """A run that Ctrl-C ended in its first iteration."""

    pressed: list[str] = []

    def interrupting(prompt: str, turn: int) -> str:
        if not pressed:  # a second Ctrl-C would not wait
            pressed.append(prompt)
            os.kill(os.getpid(), signal.SIGINT)
        return "1"

    with pytest.raises(Interrupted) as caught:
        train(policy, runs, script=interrupting, **more)
    assert f'Continue with: steprl.train(..., resume="{runs / "run"}")' in str(caught.value)
    return runs / "run"


def test_a_run_with_objects_goes_on_from_python_and_only_with_the_same(
    tiny_policy: str, tmp_path: Path
) -> None:
    folder = started(tiny_policy, tmp_path)
    assert set(RunFolder(folder).given()) == {"train_tasks", "script"}  # the class has an address
    _, recipe = RunFolder.open(folder)
    with pytest.raises(
        ConfigError, match=r"from Python, handing over the same: steprl.train\(\.\.\., resume"
    ):
        api.run(recipe, resume=folder, display=quiet())
    for change, message in (
        ({"tasks": guesses(4)}, "train_tasks was [0-9a-f]{16} then and is"),
        ({"script": None}, "script was handed over then and is not now"),
        (
            {"eval_tasks": guesses(1), "options": {"evaluation.tasks": 0}},
            "eval_tasks was not handed over then",
        ),
        ({"algorithm": "rloo"}, "algorithm.estimator was 'grpo' and is 'rloo'"),
        ({"overwrite": True}, "give one of them"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(tiny_policy, tmp_path, resume=folder, **change)
    assert train(tiny_policy, tmp_path, resume=folder)["iterations"] == 2


def test_a_class_that_has_no_address_is_recorded() -> None:
    class Local(Guess):
        """Found by nobody else."""

    assert "Local" in str(Given(env=Local).record()["env"])
    assert Given(env=Guess).record() == {}


def test_training_works_where_a_loop_is_running_and_off_the_main_thread(
    tiny_policy: str, tmp_path: Path
) -> None:
    async def notebook() -> dict[str, Any]:
        return train(tiny_policy, tmp_path / "notebook")

    assert asyncio.run(notebook())["iterations"] == 2
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(train(tiny_policy, tmp_path / "thread")))
    thread.start()
    thread.join()
    assert found[0]["iterations"] == 2


def test_an_interrupted_notebook_saves(tiny_policy: str, tmp_path: Path) -> None:
    async def notebook() -> None:
        # asyncio.run has its own idea of Ctrl-C; a notebook has Python's
        signal.signal(signal.SIGINT, signal.default_int_handler)
        started(tiny_policy, tmp_path)

    asyncio.run(notebook())
    assert len(RunFolder(tmp_path / "run").checkpoints()) == 1


def test_evaluation_tasks_that_are_handed_over_are_counted_as_well(tiny_policy: str, tmp_path: Path) -> None:
    given = Given(eval_tasks=guesses(9))
    for count in (0, 4):
        recipe = recipe_of(DICE, tiny_policy, tmp_path, f"evaluation.tasks={count}")
        assert len(tasks_of(recipe, "eval", given)) == count


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (steprl.Task(id="\ud800"), "train task 1: id .* cannot be written as UTF-8"),
        (steprl.Task(id=7), "train task 1: id must be text, got 7"),  # type: ignore[arg-type]
        (steprl.Task(id="n", prompt=None), "train task 1: prompt must be text"),  # type: ignore[arg-type]
        (steprl.Task(id="n", answer=np.float32(1)), "train task 1: task 'n' cannot be hashed"),
        ("n", "train task 1 is 'n', not a steprl.Task"),
    ],
)
def test_a_task_that_would_break_a_run_is_refused_before_it(
    tiny_policy: str, tmp_path: Path, task: Any, message: str
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path)
    with pytest.raises(TaskError, match=message):
        build_parts(recipe, Given(train_tasks=[*guesses(1), task]))


def test_an_evaluation_that_limits_ended_solved_nothing(tiny_policy: str, tmp_path: Path) -> None:
    asking = {**DICE, "engine": {"id": "playing:Dice", "args": {"replies": [call("hint")]}}}
    result = api.evaluate_recipe(recipe_of(asking, tiny_policy, tmp_path), greedy=False, display=quiet())
    assert (result.success, result.errors) == (0.0, 0)
