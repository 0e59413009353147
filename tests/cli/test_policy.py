"""``steprl policy build`` as a person types it: a folder to train from, figures, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from terminal import Terminal

TESTS = Path(__file__).parents[1]
TINY = ("size.hidden=16", "size.layers=1", "size.max_context=256", "max_steps=4", "evaluation_tasks=3")


def test_help_explains_and_gives_an_example(steprl: Terminal) -> None:
    code, told, _ = steprl("policy", "build", "--help")
    assert code == 0 and "Usage: steprl policy build" in told
    assert "Example: steprl policy build --env courier --demos oracle" in told
    code, told, _ = steprl("policy", "--help")
    assert code == 0 and "Example: steprl policy build" in told


def test_a_policy_is_built_and_its_figures_are_printed(steprl: Terminal, tmp_path: Path) -> None:
    arguments = [
        "policy",
        "build",
        "--env",
        "doors:Doors",
        "--demos",
        "doors:Opener",
        "--demo-args",
        '{"says": "no"}',
    ]
    arguments += ["--out", str(tmp_path / "policy"), "--count", "8", "--steps", "2", "--seed", "3"]
    code, told, _ = steprl(*arguments, "--args", '{"locked": true}', *TINY)
    assert code == 0
    report = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert (report["demonstrations"]["kept"], report["model"]["steps"], report["seed"]) == (8, 2, 3)
    assert report["model"]["hidden"] == 16 and report["demonstrations"]["mean_reward"] == 0.0
    for name in ("demonstrations.kept", "model.parameters", "evaluation.greedy.success", "model.loss_last"):
        assert name in told
    assert "exists and is not empty. Replace it with --overwrite" in steprl.refused(*arguments, *TINY)
    code, _, _ = steprl(*arguments, "--overwrite", *TINY)
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "smal"), "unknown size 'smal'. Did you mean 'small'?"),
        (("--args", "{"), "--args is not JSON: "),
        (("--demo-args", "[1]"), "--demo-args must be a JSON object, got [1]"),
        (("vocabluary=3",), "unknown option 'vocabluary'. Did you mean 'vocabulary'?"),
        (("size.hidden=7",), "hidden must be 16, or a multiple of 32; got 7"),
        (("warm_start.steps=0",), "steps of a warm start must be at least 1, got 0"),
    ],
)
def test_what_cannot_work_is_one_line(
    steprl: Terminal, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    command = ("policy", "build", "--env", "doors:Doors", "--demos", "oracle", "--out", tmp_path / "policy")
    assert message in steprl.refused(*command, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own, interrupted while it imitates."""
    command = [sys.executable, "-c", "from steprl.cli import main; main()", "policy", "build"]
    command += ["--env", "doors:Doors", "--demos", "oracle", "--out", str(tmp_path / "policy")]
    command += ["--steps", "1000000", *TINY]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as building:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".policy.*.partial/tokenizer.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        building.send_signal(signal.SIGINT)
        _, errors = building.communicate(timeout=60)
    assert building.returncode == 130 and "Traceback" not in errors
    assert f"interrupted; '{tmp_path / 'policy'}' is as it was" in errors
    assert list(tmp_path.iterdir()) == []
