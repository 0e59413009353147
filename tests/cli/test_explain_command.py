"""`steprl explain` as a person uses it, on a file of episodes made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from episodes import chained, grouped, rewarded, trajectory
from terminal import Terminal

from steprl.trajectory.store import write


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    """A group that agrees, in which a long episode is, and one that does not."""
    file = tmp_path / "episodes.parquet"
    steps = chained(*rewarded("long", 1.0, steps=4).steps)
    agreed = [trajectory("long", steps, group="easy"), rewarded("short", 1.0, group="easy")]
    write(file, grouped(*agreed, rewarded("a", 1.0), rewarded("[b]", 0.0)), iteration=1)
    return file


def test_every_estimator_stands_beside_the_others(steprl: Terminal, episodes: Path) -> None:
    code, told, errors = steprl("explain", episodes)
    assert (code, errors) == (0, "")
    assert f"{episodes}: 7 steps of 4 episodes in 2 groups" in told
    assert "gae is left out: it needs a critic" in told and "gigpo is left out: it compares steps" in told
    assert "5 of 7 steps are in dispute" in told
    assert "equal rewards in the group" in told
    assert "episode long: reward 1, terminated" in told  # most steps in dispute
    assert "every step: all 2 trajectories of its group have the reward 1" in told
    assert "steps 0, 1, 2: it earned nothing itself and gets the 1 that came later" in told


def test_one_episode_and_some_estimators_are_asked_for(steprl: Terminal, episodes: Path) -> None:
    code, told, _ = steprl("explain", episodes, "--estimators", "grpo", "dr_grpo", "--episode", "[b]")
    assert code == 0
    assert "episode [b]: reward 0, terminated" in told and "reinforce_pp" not in told
    (row,) = [line for line in told.splitlines() if line.startswith("│ 0 ")]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["0", "0", "0", "1 of 1", "-1.87", "-1.87"]
    assert "0 of 7 steps are in dispute: they agree on every sign" in told


def test_what_is_not_there_is_told_plainly(steprl: Terminal, episodes: Path, tmp_path: Path) -> None:
    assert "Did you mean 'long'?" in steprl.refused("explain", episodes, "--episode", "lon")
    assert "unknown estimator 'grppo'" in steprl.refused("explain", episodes, "--estimators", "grppo")
    assert "is not a folder" in steprl.refused("explain", tmp_path / "nowhere")
