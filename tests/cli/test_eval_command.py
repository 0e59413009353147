"""`steprl eval` and `steprl eval diff` as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal
from training import DICE, recipe_of, run_briskly

from steprl.trajectory.store import read


def evaluated(steprl: Terminal, *arguments: object) -> tuple[dict[str, Any], str]:
    code, told, errors = steprl("eval", *arguments)
    assert code == 0, errors
    return json.loads(told), errors


def test_eval_tells_scripts_and_people_the_same(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "evaluation"
    found, shown = evaluated(steprl, recipe, "--samples", 4, "--out", out)
    assert (found["tasks"], found["samples"], list(found["pass@k"])) == (4, 4, ["1", "2", "4"])
    assert f"{found['pass@k']['1']['mean']:.3f}" in shown and "pass^4" in shown and "scorer errors" in shown
    assert found["batch/trajectories"] == 16.0  # what it always printed is there still
    written = json.loads((out / "evaluation.json").read_text())
    assert len(written["attempts"]) == 16 and written["pass@k"] == found["pass@k"]
    assert len([t for group in read(out) for t in group.trajectories]) == 16
    again, shown = evaluated(steprl, recipe, "--samples", 4, "--out", out)
    assert again == found and "nothing left to play" in shown
    code, told, _ = steprl("show", out, "--episode", "eval-0.3")
    assert code == 0 and told.startswith("episode eval-0.3")


def test_eval_takes_a_run_or_its_checkpoint(steprl: Terminal, tiny_policy: str, tmp_path: Path) -> None:
    run = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=1"))
    found, _ = evaluated(steprl, run, "evaluation.tasks=2")
    assert found["tasks"] == 2
    assert (
        evaluated(steprl, run / "checkpoints" / "step-1", "evaluation.tasks=2")[0]["pass@k"]
        == found["pass@k"]
    )


def test_what_counts_as_solved_can_be_chosen(steprl: Terminal, recipe: Path) -> None:
    found, shown = evaluated(steprl, recipe, "--solved-by", "style")
    assert found["success"] is None and "no episode reported 'style'" in shown
    assert evaluated(steprl, recipe, "--solved-by", "reward", "--threshold", 0)[0]["success"] == 1.0


def test_diff_compares_task_by_task(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    for name, replies in (("a", "['0']"), ("b", "['0', '1']")):
        evaluated(steprl, recipe, f"engine.args.replies={replies}", "--samples", 3, "--out", tmp_path / name)
    code, told, errors = steprl(
        "eval", "diff", tmp_path / "a", tmp_path / "b" / "evaluation.json", "--seed", 5
    )
    assert code == 0
    found = json.loads(told)
    assert (found["tasks"], found["pairs"]) == (4, 12) and "seed 5" in found["interval"]
    gap = found["solved"]["counted_as_wrong"]
    assert gap["difference"]["mean"] == pytest.approx(gap["b"] - gap["a"])
    assert "exact sign test p =" in errors and "differs: engine.args.replies is ['0'] in A" in errors
    evaluated(steprl, recipe, "evaluation.tasks=2", "--samples", 3, "--out", tmp_path / "c")
    refused = steprl.refused("eval", "diff", tmp_path / "a", tmp_path / "c")
    assert "2 tasks are in" in refused and "--common" in refused
    assert json.loads(steprl("eval", "diff", tmp_path / "a", tmp_path / "c", "--common")[1])["tasks"] == 2


def test_a_recipe_called_diff_can_be_named(steprl: Terminal, recipe: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(recipe.parent)
    recipe.rename("diff")
    assert evaluated(steprl, "./diff", "evaluation.tasks=1")[0]["tasks"] == 1
    code, _, errors = steprl("eval", "diff")
    assert code == 2 and "Missing argument 'a'" in errors
