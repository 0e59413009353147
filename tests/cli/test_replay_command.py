"""`steprl replay` as a person uses it: both sides in plain words, and an exit code for scripts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from terminal import Terminal
from training import COURIER, recipe_of, run


@pytest.fixture(scope="module")
def folder(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("replayed")
    run(recipe_of(COURIER, tiny_policy, runs, "train.iterations=1", "evaluation.greedy=false"))
    return runs / "courier"


def test_help_explains_and_gives_an_example(steprl: Terminal) -> None:
    code, told, _ = steprl("replay", "--help")
    assert code == 0 and "Usage: steprl replay" in told and "Example: steprl replay runs/quickstart" in told


def test_an_untouched_run_is_equal_and_its_gap_is_rounding(steprl: Terminal, folder: Path) -> None:
    code, told, errors = steprl("replay", folder)
    assert code == 0 and errors == ""
    assert told.startswith("environment: 10 episodes played again, 10 equal, 0 different\n")
    assert f"under {folder}/checkpoints/step-1, policy version 1" in told
    assert "1 (the checkpoint's)" in told and "no token of version 1 is above 0.001" in told
    assert "tokens of other policy versions come from other weights" in told


def test_a_side_can_be_left_out(steprl: Terminal, folder: Path) -> None:
    assert "model:" not in steprl("replay", folder, "--no-model")[1]
    code, told, _ = steprl(
        "replay", folder, "--no-env", "--iteration", 1, "--checkpoint", "none", "--limit", 3
    )
    assert code == 0 and "environment:" not in told
    assert "policy version 0\n" in told and "nothing here measures the engine" in told


def test_a_difference_is_shown_and_exits_with_one(steprl: Terminal, folder: Path, tmp_path: Path) -> None:
    """The run's own recipe, changed by hand, stands for an environment that changed."""
    changed = tmp_path / "run"
    shutil.copytree(folder, changed)
    config = (changed / "config.toml").read_text()
    (changed / "config.toml").write_text(config.replace('"playing:letters" = 0.1', '"playing:letters" = 0.2'))
    code, told, _ = steprl("replay", changed, "--no-model", "--iteration", 1)
    assert code == 1
    assert "first difference: episode train-1-0.0, step 0, reward\n" in told
    assert "\n    recorded  " in told and "\n    now       " in told
    code, told, _ = steprl("replay", changed, "--no-model", "--episode", "train-1-1.1")
    assert code == 1 and "1 episodes played again, 0 equal, 1 different" in told


def test_what_came_from_python_is_replayed_from_python(
    steprl: Terminal, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "given.json").write_text('{"script": true}')
    line = steprl.refused("replay", tmp_path / "run")
    assert "was started from Python" in line and "given=Given(script=…))" in line
