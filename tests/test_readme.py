"""The README as a user meets it: its code runs as it stands, and what it names exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from steprl.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_environment_in_the_readme_trains_as_it_stands(tmp_path):
    (block,) = blocks("python")
    assert len(block.splitlines()) <= 45
    script = tmp_path / "compare.py"
    script.write_text(block, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "compare" / "summary.json").read_text(encoding="utf-8"))
    assert summary["iterations"] == 2
    first = json.loads((tmp_path / "runs" / "compare" / "metrics.jsonl").read_text().splitlines()[0])
    # Two of four members answer Rome: the group has something to compare, and the weights move.
    assert first["reward/mean"] == 0.5
    assert first["learner/optimiser_steps"] == 1.0
    assert first["calls/per_episode"] == 1.0


def test_commands_and_files_named_in_the_readme_exist():
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    used = re.findall(r"^(?:.*; )?steprl (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE)
    assert {"train", "eval", "rollout", "show"} <= set(used)
    assert set(used) <= known
    for path in re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r"recipes/\w+\.toml", README):
        if not path.startswith("http"):
            assert (ROOT / path).exists(), path
