"""Summaries that the policy wrote: trained like any other step, weighted, or left out of the loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import REPLIES, call
from test_models import batch
from training import DICE, recipe_of

from steprl.config import build, override
from steprl.errors import ConfigError
from steprl.trainers.learning import Learned, learn
from steprl.trainers.models import Models
from steprl.trainers.parts import build_parts
from steprl.trainers.recipe import Recipe
from steprl.types import MiniBatch, StepKey, TrajectoryGroup

SUMMARISING: dict[str, Any] = {
    **DICE,
    # mostly hints: there is something to sum up then, and whatever Dice says to that is the summary
    "engine": {"id": "playing:Dice", "args": {"replies": [*REPLIES, *[call("hint")] * 6]}},
    "context": {"id": "steprl.context.llm_summary:LlmSummary", "args": {"budget": 1, "keep_last": 0}},
}

Weights = dict[StepKey, list[float]]
"""By step, of its tokens."""


class Keeping(Models):
    """Models that keep what they were trained on."""

    kept: list[MiniBatch] = []

    def update(self, batch: MiniBatch, *, policy: bool = True) -> Any:
        self.kept.append(batch)
        return super().update(batch, policy=policy)


class Taught:
    """What one iteration was played and trained with."""

    def __init__(self, policy: str, runs: Path, *options: str) -> None:
        recipe = recipe_of(SUMMARISING, policy, runs, *options)
        parts = build_parts(recipe)
        models = Keeping(learner=parts.models.learner, critic=parts.models.critic)
        Keeping.kept.clear()
        object.__setattr__(parts, "models", models)
        self.groups: list[TrajectoryGroup] = asyncio.run(batch(recipe, parts))
        self.learned: Learned = learn(recipe, parts, 1, self.groups)
        self.batches = list(Keeping.kept)
        self.kinds = {
            t.key(i): step.kind
            for group in self.groups
            for t in group.trajectories
            for i, step in enumerate(t.steps)
        }

    def weights(self, kind: str) -> Weights:
        found: Weights = {}
        for sample in (sample for made in self.batches for sample in made.samples):
            for i, key in enumerate(sample.row.step_keys):
                if self.kinds[key] == kind:
                    found[key] = sample.weights[sample.row.step_index == i].tolist()
        return found


@pytest.fixture(scope="module", params=["token_mean", "traj_mean_step_mean"])
def taught(
    tiny_policy: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[float, Taught]:
    """The same batch with each factor."""
    rule, runs = f"algorithm.aggregation.rule={request.param}", tmp_path_factory.mktemp("runs")
    return {f: Taught(tiny_policy, runs, rule, f"algorithm.summaries={f}") for f in (1.0, 0.5, 0.0)}


def test_a_factor_multiplies_the_weights_of_summaries_and_no_denominator(taught: dict[float, Taught]) -> None:
    plain, half = taught[1.0], taught[0.5]
    assert plain.kinds == half.kinds and len(plain.weights("summary")) > 3
    assert all(any(weights) for weights in plain.weights("summary").values())
    assert half.weights("act") == plain.weights("act")
    for key, weights in plain.weights("summary").items():
        np.testing.assert_allclose(half.weights("summary")[key], np.array(weights) / 2, rtol=1e-6)


def test_without_summaries_the_others_make_up_every_denominator(taught: dict[float, Taught]) -> None:
    plain, without = taught[1.0], taught[0.0]
    assert without.learned.credits is not None and plain.learned.credits is not None
    assert not any(any(weights) for weights in without.weights("summary").values())
    for key, kind in without.kinds.items():
        trained = without.learned.credits.loss_mask[key]
        assert trained.any() == (kind == "act") and plain.learned.credits.loss_mask[key].all()
        np.testing.assert_array_equal(
            without.learned.credits.advantages[key], plain.learned.credits.advantages[key]
        )
    total = sum(sum(weights) for weights in without.weights("act").values())
    assert total == pytest.approx(1.0)  # all of it, as if no summary had been written
    assert sum(sum(weights) for weights in plain.weights("act").values()) < 0.95


def test_with_a_critic_it_learns_no_value_at_summaries_that_are_left_out(
    tiny_policy: str, tmp_path: Path
) -> None:
    options = ("algorithm.estimator=gae", "algorithm.args.credit=step")
    targets = []
    for summaries in (1.0, 0.5, 0.0):
        found = Taught(tiny_policy, tmp_path, *options, f"algorithm.summaries={summaries}")
        samples = [sample for made in found.batches for sample in made.samples]
        values = [s.value_weights for s in samples if s.value_weights is not None]
        targets.append(np.concatenate(values))
        wanted = sum(kind == "act" or summaries > 0 for kind in found.kinds.values())
        assert len(targets[-1]) == wanted and targets[-1].sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(targets[0], targets[1])


@pytest.mark.parametrize("value", ["-1", "inf", "nan"])
def test_a_factor_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(
        ConfigError, match="algorithm.summaries must be 0 .not trained. or a number above, got"
    ):
        build(Recipe, override({"env": {"id": "courier"}}, [f"algorithm.summaries={value}"]))
