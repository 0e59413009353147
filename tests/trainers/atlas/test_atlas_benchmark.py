"""What `benchmarks/atlas.py` says of somebody's own estimator."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "atlas.py"

MINE = '''
import numpy as np
from steprl.types import Credits


class Mine:
    """The outcome on every token, also where nobody sampled it if ``everywhere``."""

    requires = frozenset()

    def __init__(self, everywhere=False):
        self.everywhere = everywhere

    def __call__(self, groups, scores):
        advantages, masks = {}, {}
        for trajectory in (t for group in groups for t in group.trajectories):
            for index, step in enumerate(trajectory.steps):
                key = trajectory.key(index)
                trains = np.full(len(step.action_ids), trajectory.stop_reason.trains)
                advantages[key] = np.full(len(step.action_ids), trajectory.reward)
                masks[key] = trains if self.everywhere else trains & step.sampled_mask
        return Credits(advantages=advantages, loss_mask=masks)
'''


def _run(folder: Path, word: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_credit.py").write_text(MINE)
    command = [sys.executable, str(SCRIPT), "--estimator", word, "--rules", "traj_mean_token_sum"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_one_that_keeps_the_contract_is_measured(tmp_path: Path) -> None:
    done = _run(tmp_path, "my_credit:Mine")
    assert done.returncode == 0, done.stderr
    assert "0 violations in 20 worlds" in done.stdout
    (mine,) = (line for line in done.stdout.split("noise")[0].splitlines() if "my_credit:Mine" in line)
    assert mine.split("|")[2].strip() == "0"  # the return without a baseline is unbiased in the bandit


def test_one_that_does_not_is_told_where(tmp_path: Path) -> None:
    done = _run(tmp_path, "my_credit:Mine:everywhere=true")
    assert done.returncode == 1
    assert "world 'forced': " in done.stdout
    assert "trains on a token that was not sampled" in done.stdout


@pytest.mark.parametrize(("word", "said"), [("nobody", "unknown estimator"), ("my_credit:Mien", "Mine")])
def test_one_that_there_is_not(tmp_path: Path, word: str, said: str) -> None:
    done = _run(tmp_path, word)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
