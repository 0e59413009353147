"""`steprl compare` as a person uses it: several values for an option, a table, a report, plain refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from terminal import Terminal

from steprl.cli.several import spread


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("r.toml a=1 --seeds 0 1 --out x", "r.toml a=1 --seeds 0 --seeds 1 --out x"),
        ("--out x --seeds 0 --seeds 1 2", "--out x --seeds 0 --seeds 1 --seeds 2"),
        ("r.toml --seeds --out x", "r.toml --seeds --out x"),
        ("r.toml", "r.toml"),
    ],
)
def test_an_option_takes_what_follows_it(typed: str, read: str) -> None:
    assert spread(typed.split(), ["--seeds"]) == read.split()


def test_algorithms_are_trained_compared_and_compared_again(
    steprl: Terminal, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["compare", "algorithms", recipe, "learner.lr=0.5", "--algorithms", "grpo", "rloo"]
    code, told, progress = steprl(*command, "--seeds", 3, "--out", out)
    assert code == 0
    assert "success after" in told and "grpo" in told and f"report: {out / 'report.html'}" in told
    assert "run 2 of 2, rloo with seed 3" in progress
    stored = json.loads((out / "comparison.json").read_text())
    assert [(v["variant"], v["seeds"]) for v in stored["variants"]] == [("grpo", [3]), ("rloo", [3])]
    assert stored["differences"] == {"algorithm.estimator": {"grpo": "grpo", "rloo": "rloo"}}
    code, told, progress = steprl(*command, "--seeds", 3, "--out", out)
    assert code == 0 and progress.count("finished before") == 2

    runs = [out / "runs" / "grpo-3", f"mine={out / 'runs' / 'rloo-3'}"]
    code, told, _ = steprl("compare", "runs", *runs, "--out", tmp_path / "again")
    assert code == 0 and "mine" in told and (tmp_path / "again" / "report.html").exists()


def test_many_variants_are_a_line_each(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    steprl("compare", "algorithms", recipe, "--algorithms", "grpo", "--seeds", 3, "--out", out)
    names = [f"variant_{number}" for number in range(5)]
    for name in names:
        shutil.copytree(out / "runs" / "grpo-3", tmp_path / name)
    found = steprl("compare", "runs", *(f"{n}={tmp_path / n}" for n in names), "--out", tmp_path / "again")
    lines = [line for line in found[1].splitlines() if "variant_" in line]
    assert [line.split("│")[1].strip() for line in lines] == names
    assert all(len(line.split("│")) == 8 for line in lines)


def test_context_rules_are_compared_by_what_they_cost(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        "compare",
        "context",
        recipe,
        "--rules",
        "append_only",
        "sliding_window:rounds=1",
        "--seeds",
        3,
    ]
    code, told, _ = steprl(*command, "--out", out)
    assert code == 0 and "prompt tokens per episode" in told
    stored = json.loads((out / "comparison.json").read_text())
    assert stored["differences"]["context.id"] == {
        "append_only": "append_only",
        "sliding_window-rounds-1": "sliding_window",
    }
    whole, window = (variant["curves"]["prompt tokens"]["mean"][0] for variant in stored["variants"])
    assert 0 < window <= whole
    assert "prompt tokens, seconds against iterations" in (out / "report.html").read_text()


def test_what_cannot_be_compared_is_told_plainly(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused = steprl.refused("compare", "algorithms", recipe, "--algorithms", "grpo", "rlo", "--out", out)
    assert refused.startswith("ConfigError: variant 'rlo': unknown estimator 'rlo'. Did you mean 'rloo'?")
    assert "is not a run folder" in steprl.refused("compare", "runs", tmp_path, "--out", out)
    assert not out.exists()
    code, _, errors = steprl("compare", "algorithms", recipe, "--algorithms", "grpo", "--seeds", "one")
    assert code == 2 and "Invalid value for '--seeds'" in errors
