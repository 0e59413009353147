"""Values of states by playing on from them (VinePPO), in the real loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import random

import pytest
from playing import Guess
from safetensors.numpy import load_file
from training import DICE, quiet, recipe_of, run, run_briskly, said, same_weights, weights

from steprl.credit import Gae
from steprl.errors import ConfigError
from steprl.tools import tool
from steprl.trainers.planning.calibrate import calibrate
from steprl.trajectory.store import files, read
from steprl.types import Credits, Scores, TrajectoryGroup

VINE = ("algorithm.estimator=gae", "algorithm.args={credit = 'step', values = 'rollout', lam = 0.0}")
ONCE = "train.iterations=1"
KEEPING = "algorithm.estimator=test_continuations:Keeping"


class Keeping(Gae):
    """VinePPO with many continuations, which keeps what it was given."""

    given: list[tuple[Sequence[TrajectoryGroup], Scores, Credits]] = []

    def __init__(self, continuations: int = 50) -> None:
        super().__init__(credit="step", values="rollout", continuations=continuations, lam=0.0, whiten=False)

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        credits = super().__call__(groups, scores)
        Keeping.given.append((groups, scores, credits))
        return credits


class Moody(Guess):
    """Answers a hint otherwise every time."""

    @tool
    def hint(self) -> str:
        """A hint."""
        return f"{random()}"

    tools = (hint,)


def test_a_state_is_worth_what_comes_of_it_on_average(tiny_policy: str, tmp_path: Path) -> None:
    """One reply of four is right, one asks for a hint and goes on; after three steps it is over."""
    Keeping.given.clear()
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, KEEPING, "rollout.group_size=12", ONCE))
    ((groups, scores, credits),) = Keeping.given
    left = {1: 0.25, 2: 0.25 + 0.25 * 0.25, 3: 0.25 + 0.25 * 0.3125}
    assert scores.values is not None
    longest = 0
    for trajectory in (t for group in groups for t in group.trajectories):
        values = [float(scores.values[trajectory.key(i)][0]) for i in range(len(trajectory.steps))]
        for index, value in enumerate(values):
            assert value == pytest.approx(left[3 - index], abs=4.5 * 0.067)  # 50 draws of 0 or 1
        ahead = [*values[1:], 0.0]
        for index, step in enumerate(trajectory.steps):
            expected = (step.reward or 0) + ahead[index] - values[index]
            assert credits.advantages[trajectory.key(index)] == pytest.approx(expected)
        longest = max(longest, len(values))
    assert longest > 1
    assert scores.bootstrap_values == {t.uid: 0.0 for group in groups for t in group.trajectories}
    for group in groups:  # all begin in one state, and it has one value
        assert len({float(scores.values[t.key(0)][0]) for t in group.trajectories}) == 1


def test_vine_ppo_trains_and_says_what_it_cost(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(
        DICE, tiny_policy, tmp_path, *VINE, "algorithm.args.continuations=2", "train.iterations=2"
    )
    run(recipe)
    folder = tmp_path / "run"
    before = load_file(Path(tiny_policy) / "model.safetensors")
    assert any((before[name] != trained).any() for name, trained in weights(folder).items())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "learner/updates" in line]
    for line, path in zip(trained, [p for p in files(folder) if "train" in p.name], strict=True):
        members = [t for group in read(path) for t in group.trajectories]
        states = 2 + sum(len(t.steps) - 1 for t in members)  # groups share the first one
        assert line["continuations/episodes"] == 2 * states
        assert line["continuations/steps"] >= line["continuations/episodes"]
        assert line["continuations/lost_trajectories"] == 0


def test_the_same_seed_gives_the_same_weights(tiny_policy: str, tmp_path: Path) -> None:
    one, other = (
        run_briskly(recipe_of(DICE, tiny_policy, tmp_path / name, *VINE, ONCE)) for name in ("one", "other")
    )
    assert same_weights(one, other)


def test_a_state_that_cannot_be_reached_again_has_no_value(tiny_policy: str, tmp_path: Path) -> None:
    """Trajectories with a hint are lost, and said so; those that answered at once train."""
    Keeping.given.clear()
    display = quiet()
    recipe = recipe_of(DICE, tiny_policy, tmp_path, KEEPING, "env.id=test_continuations:Moody", ONCE)
    run(recipe, display=display)
    ((groups, _, _),) = Keeping.given
    recorded = [
        t for p in files(tmp_path / "run") if "train" in p.name for g in read(p) for t in g.trajectories
    ]
    assert {len(t.steps) for t in recorded} >= {1, 2}
    assert {t.uid for g in groups for t in g.trajectories} == {t.uid for t in recorded if len(t.steps) == 1}
    assert "met another prompt than was recorded after the same actions" in said(display)
    (line,) = (
        found
        for found in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if "continuations/episodes" in found
    )
    assert line["continuations/lost_trajectories"] == sum(len(t.steps) > 1 for t in recorded)


def test_a_plan_does_not_time_continuations(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which a calibration does not time yet"):
        calibrate(recipe_of(DICE, tiny_policy, tmp_path, *VINE), display=quiet())
