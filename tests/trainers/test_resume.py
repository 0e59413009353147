"""A run that was stopped goes on as if it never had been: the same tasks, the same tokens, the same bits.

Bitwise claims are made with ``Dice``, whose answers follow from seeds alone. With the torch engine the
tokens follow from seeds as well, but only up to rounding: a resumed run has no prefixes in its cache yet.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from training import COURIER, DICE, dealt, quiet, recipe_of, run, run_briskly, said, same_weights, sampled

from steprl.config import to_toml
from steprl.errors import CheckpointError, ConfigError, StepRLError
from steprl.trainers import api
from steprl.trainers.interrupt import Interrupted
from steprl.trainers.loop import Trainer
from steprl.trainers.parts import build_parts
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder

TESTS = Path(__file__).resolve().parents[1]


class Stopper(Exception):
    """Stands for a kill: whatever was not saved is lost."""


def killed_after(recipe: Recipe, iteration: int) -> None:
    """Run until the iteration is recorded, then drop everything, as a kill does."""

    class Killed(Trainer):
        async def iterate(self) -> dict[str, float]:
            if self.iteration == iteration:
                raise Stopper
            return await super().iterate()

    with pytest.raises(Stopper):
        Killed(recipe, build_parts(recipe), RunFolder.create(recipe), quiet()).run()


def resume(folder: Path) -> None:
    _, recipe = RunFolder.open(folder)
    run_briskly(recipe, resume=folder)


def iterations(folder: Path) -> list[int]:
    """Which iterations have a line of training figures."""
    return [line["iteration"] for line in RunFolder(folder).metrics() if "reward/mean" in line]


@pytest.fixture(scope="module")
def straight(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations that nothing interrupted."""
    return run_briskly(recipe_of(DICE, tiny_policy, tmp_path_factory.mktemp("straight")))


@pytest.mark.parametrize("iteration", [1, 3])
def test_a_killed_run_resumes_to_the_same_bits(
    tiny_policy: str, tmp_path: Path, straight: Path, iteration: int
) -> None:
    """A checkpoint is made at 2: killed after 1 the run starts afresh, after 3 it plays 3 again."""
    killed_after(recipe_of(DICE, tiny_policy, tmp_path), iteration)
    folder = tmp_path / "run"
    assert [path.name for path in RunFolder(folder).checkpoints()] == ["step-2"][: iteration // 2]
    resume(folder)
    assert dealt(folder) == dealt(straight) and len(dealt(folder)) == 8
    assert sampled(folder) == sampled(straight)
    assert same_weights(folder, straight)
    assert iterations(folder) == [1, 2, 3, 4]
    assert RunFolder(folder).metrics()[0] == RunFolder(straight).metrics()[0]  # the evaluation before


def test_the_torch_engine_visits_the_same_tasks_after_a_kill(tiny_policy: str, tmp_path: Path) -> None:
    options = ("train.iterations=2", "train.checkpoint_every=1", "evaluation.tasks=0", "train.show_every=0")
    straight = run_briskly(recipe_of(COURIER, tiny_policy, tmp_path / "straight", *options))
    killed_after(recipe_of(COURIER, tiny_policy, tmp_path / "killed", *options), 1)
    killed = tmp_path / "killed" / "courier"
    resume(killed)
    assert dealt(killed) == dealt(straight) and len(dealt(killed)) == 4


def test_a_run_that_is_longer_in_its_recipe_goes_on_and_a_finished_one_has_nothing_to_do(
    tiny_policy: str, tmp_path: Path, straight: Path
) -> None:
    summary = run(recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=2"))
    folder, display = tmp_path / "run", quiet()
    before = RunFolder(folder).metrics()
    _, recipe = RunFolder.open(folder)
    assert run(recipe, resume=folder, display=display) == summary
    assert RunFolder(folder).metrics() == before
    assert f"nothing left to do: {folder} is finished" in said(display)

    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("iterations = 2", "iterations = 4"))
    resume(folder)
    assert same_weights(folder, straight) and dealt(folder) == dealt(straight)


def test_a_checkpoint_of_another_model_is_refused(tiny_policy: str, tmp_path: Path) -> None:
    from tiny import tiny_tokenizer
    from tiny_model import tiny_llama

    recipe = recipe_of(DICE, tiny_policy, tmp_path, "train.checkpoint_every=1", "evaluation.tasks=0")
    killed_after(recipe, 1)
    other = str(tmp_path / "other")
    tiny_llama(len(tiny_tokenizer()), num_hidden_layers=1).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(tiny_policy, other))
    with pytest.raises(CheckpointError, match="belongs to another model"):
        resume(tmp_path / "run")


def test_resuming_what_is_no_run_is_refused(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder: it has no config.toml"):
        api.run(recipe_of(DICE, tiny_policy, tmp_path), resume=tmp_path, display=quiet())


# --- Ctrl-C and kill, for real ------------------------------------------------------------------------


def start(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """``steprl train`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from steprl.cli import main; main()", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
    )


def wait_until(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_saves_a_kill_loses_little_and_the_end_is_the_same(
    tiny_policy: str, tmp_path: Path, straight: Path
) -> None:
    """One run, stopped by SIGINT, resumed, stopped by SIGKILL, resumed."""
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "engine.args.delay=0.5")
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    folder = tmp_path / "run"
    process = start(tmp_path, "recipe.toml")
    wait_until(process, lambda: folder.exists() and iterations(folder) != [])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    (saved,) = RunFolder(folder).checkpoints()
    assert saved.name == f"step-{iterations(folder)[-1]}"
    assert errors.splitlines()[-1] == (
        f"Interrupted: stopped after iteration {iterations(folder)[-1]}; everything is saved. "
        f"Continue with: steprl train --resume {folder}"
    )
    assert "Traceback" not in errors

    done = len(iterations(folder))
    process = start(tmp_path, "--resume", str(folder))
    wait_until(process, lambda: len(iterations(folder)) > done)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL and not (folder / "summary.json").exists()

    config = folder / "config.toml"
    config.write_text(config.read_text().replace("delay = 0.5", "delay = 0.0"))
    resume(folder)
    assert same_weights(folder, straight) and dealt(folder) == dealt(straight)
    assert iterations(folder) == [1, 2, 3, 4]


def test_stopping_during_an_evaluation_evaluates_again_and_tells_it_once(
    tiny_policy: str, tmp_path: Path
) -> None:
    """Two stops: in the evaluation before training, and in the first iteration."""
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=1")

    def stopping(stage: str) -> None:
        class Stopped(Trainer):
            async def _evaluate(self, when: str) -> dict[str, float]:
                if stage == "evaluation":
                    await ctrl_c()
                return await super()._evaluate(when)

            async def iterate(self) -> dict[str, float]:
                await ctrl_c()
                return {}

        folder = RunFolder(tmp_path / "run")
        if not folder.path.exists():
            folder = RunFolder.create(recipe)
        with pytest.raises(Interrupted, match="stopped after iteration 0"):
            Stopped(recipe, build_parts(recipe), folder, quiet()).run()

    stopping("evaluation")
    stopping("iteration")
    run(recipe, resume=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["iteration"], "eval/reward" in line) for line in lines] == [
        (0, True),
        (1, False),
        (1, True),
    ]


async def ctrl_c() -> None:
    """Be interrupted, as from a keyboard."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)


def test_an_evaluation_that_a_stop_cut_short_is_made_up_for_once(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=2", "evaluation.every=1")

    class Stopped(Trainer):
        async def _evaluate(self, when: str) -> dict[str, float]:
            if when == "during":
                await ctrl_c()
            return await super()._evaluate(when)

    with pytest.raises(Interrupted, match="stopped after iteration 1"):
        Stopped(recipe, build_parts(recipe), RunFolder.create(recipe), quiet()).run()
    run(recipe, resume=tmp_path / "run")
    lines = RunFolder(tmp_path / "run").metrics()
    assert [line["iteration"] for line in lines if "eval/reward" in line] == [0, 1, 2]
    assert RunFolder.state(tmp_path / "run" / "checkpoints" / "step-2").evaluated == 2


def test_a_cancellation_that_nobody_asked_for_is_no_ctrl_c(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "evaluation.tasks=0")

    class Leaking(Trainer):
        async def iterate(self) -> dict[str, float]:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        Leaking(recipe, build_parts(recipe), RunFolder.create(recipe), quiet()).run()
    assert RunFolder(tmp_path / "run").checkpoints() == []


def test_a_folder_is_trained_by_one_at_a_time(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path)
    folder = RunFolder.create(recipe)
    with folder.locked():
        for options in ({"resume": folder.path}, {"overwrite": True}):
            with pytest.raises(ConfigError, match=rf"by another process \(pid {os.getpid()}\)"):
                run(recipe, **options)
    assert (folder.path / "config.toml").exists() and folder.metrics() == []
    with folder.locked():
        pass  # and then it is free again


def test_an_interruption_is_a_message_not_a_traceback() -> None:
    assert issubclass(Interrupted, StepRLError)
