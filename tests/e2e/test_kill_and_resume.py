"""SIGKILL at any moment costs time and nothing else: the resumed run ends in the same bits.

Whole processes, the torch engine, deterministic mode, tools that take a random time: the benchmark, with
fewer runs. What happens at the end of an epoch is tried with ``Dice``, which needs no model to play.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from training import DICE, dealt, recipe_of, run, run_briskly, same_weights

from steprl.trainers.storage.run_folder import RunFolder

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kill_and_resume.py"


def test_runs_killed_at_random_moments_end_like_one_that_was_not(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHMARK), "--kills", "5", "--seed", "1", "--json", str(figures)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(figures.read_text())
    assert len(found["rows"]) == 5 and any(any(row["killed"]) for row in found["rows"])
    assert all(all(row["same"].values()) for row in found["rows"])
    # the comparison can tell runs apart
    assert not any(found["control"][part] for part in ("tasks", "tokens", "weights", "optimiser", "figures"))
    assert len(found["tasks"]) == 10 and set(Counter(found["tasks"]).values()) == {2}


def resumed_with(folder: Path, iterations: int) -> None:
    """Go on with a run to so many iterations, as a person does: in its config.toml."""
    config = folder / "config.toml"
    before = RunFolder.open(folder)[1].train.iterations
    config.write_text(config.read_text().replace(f"iterations = {before}\n", f"iterations = {iterations}\n"))
    run_briskly(RunFolder.open(folder)[1], resume=folder)


@pytest.mark.parametrize(
    ("groups", "stops", "epochs"),
    [
        (2, (3, 3, 6), 2),  # saved at the last step of an epoch, where nothing is left to do, too
        (4, (1, 2, 3), 2),  # an epoch ends within an iteration: 6 tasks, 4 groups
        (6, (1, 2, 2), 2),  # an iteration is an epoch
        (12, (1, 1, 1), 2),  # or two
    ],
)
def test_at_the_end_of_an_epoch_nothing_is_skipped_and_nothing_doubled(
    tiny_policy: str, tmp_path: Path, groups: int, stops: tuple[int, int, int], epochs: int
) -> None:
    """Saved there, resumed twice; over two epochs every task is dealt twice, as in one go."""
    options = (f"rollout.groups={groups}", "evaluation.tasks=0", "train.checkpoint_every=1")
    straight = run_briskly(
        recipe_of(DICE, tiny_policy, tmp_path / "straight", *options, f"train.iterations={stops[-1]}")
    )
    folder = run_briskly(
        recipe_of(DICE, tiny_policy, tmp_path / "stopped", *options, f"train.iterations={stops[0]}")
    )
    for iterations in stops[1:]:
        resumed_with(folder, iterations)
    assert Counter(dealt(folder)) == {f"task-{n}": epochs for n in range(6)}
    assert dealt(folder) == dealt(straight) and same_weights(folder, straight)
    first, second = dealt(folder)[:6], dealt(folder)[6:]
    assert sorted(first) == sorted(second) and first != second  # each epoch in an order of its own


def test_a_kill_before_the_summary_evaluates_again_and_tells_it_once(
    tiny_policy: str, tmp_path: Path
) -> None:
    """Trained, evaluated and saved, but the summary was not there yet."""
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=1")
    summary = run(recipe)
    folder = RunFolder(tmp_path / "run")
    metrics = folder.metrics()
    (folder.path / "summary.json").unlink()
    assert run(recipe, resume=folder.path) == summary
    assert folder.metrics() == metrics and [line["iteration"] for line in metrics] == [0, 1, 1]


def test_a_longer_recipe_is_not_taken_for_finished_because_of_an_older_summary(
    tiny_policy: str, tmp_path: Path
) -> None:
    """Killed after its last checkpoint, before its summary, in the second of two goes."""
    run(recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=1"))
    resumed_with(tmp_path / "run", 2)
    summary = run(RunFolder.open(tmp_path / "run")[1], resume=tmp_path / "run")
    assert summary["iterations"] == 2
