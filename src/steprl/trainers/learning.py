"""The second half of an iteration: a rollout batch becomes scores, credits and optimiser steps.

Which models there are to score and to train is decided where they are built; nothing here knows an algorithm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steprl.batch import ValueTargets, minibatches, rows
from steprl.rollout import derive_seed
from steprl.trainers.continuations import StateValues
from steprl.trainers.crediting import credits_of, summaries_of
from steprl.trainers.needs import value_unit
from steprl.trainers.parts import Parts
from steprl.trainers.recipe import Recipe
from steprl.types import Credits, MiniBatch, Row, Scores, StepKey, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What became of a rollout batch: its rows, the credits, and what each update said of policy and
    values. Without a row to train on everything is empty."""

    token_rows: Sequence[Row] = ()
    credits: Credits | None = None
    policy: Sequence[Mapping[str, float]] = ()
    values: Sequence[Mapping[str, float]] = ()


def learn(
    recipe: Recipe,
    parts: Parts,
    number: int,
    groups: Sequence[TrajectoryGroup],
    valued: StateValues | None = None,
    *,
    untrained: Collection[str] = (),
) -> Learned:
    """Score the batch of iteration ``number``, assign credit, take the optimiser steps.

    ``valued`` are values that continuations found, where the estimator wants them so; ``untrained``
    trajectories, by uid, are compared and not trained on. In the first ``critic.warmup_iterations``
    iterations, where there is a critic, it learns alone.
    """
    if valued is not None:
        groups = valued.without_lost(groups)
    trained = trained_of(groups)
    token_rows = rows(trained, merge=recipe.algorithm.merge)
    if not token_rows:
        return Learned()
    models = parts.models
    scores = models.scores(trained, token_rows, max_context=parts.player.engine.max_context)
    if valued is not None:
        scores = valued.scores(scores, groups)
    credits = credits_of(recipe, parts.estimator, groups, scores, untrained=untrained)
    alone = models.critic is not None and number <= recipe.critic.warmup_iterations
    seed, factor = derive_seed(recipe.seed, "minibatches", number), recipe.algorithm.summaries
    updates = [
        models.update(batch, policy=not alone)
        for batch in batches(
            recipe,
            parts,
            token_rows,
            credits,
            scores,
            seed,
            epochs=recipe.algorithm.epochs,
            factors={key: factor for key in summaries_of(trained)} if factor > 0 else None,
        )
    ]
    return Learned(
        token_rows=token_rows,
        credits=credits,
        policy=[policy for policy, _ in updates if policy],
        values=[values for _, values in updates if values],
    )


def trained_of(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """The trajectories that may train, in order."""
    return [t for group in groups for t in group.trajectories if t.stop_reason.trains]


def batches(
    recipe: Recipe,
    parts: Parts,
    token_rows: Sequence[Row],
    credits: Credits,
    scores: Scores,
    seed: int,
    *,
    epochs: int,
    factors: Mapping[StepKey, float] | None = None,
) -> Iterator[MiniBatch]:
    """The mini-batches that the recipe makes of a batch, with value targets where there is a critic.

    ``factors`` are on the weights of some steps.
    """
    targets = None
    if parts.models.critic is not None:
        targets = ValueTargets(
            unit=value_unit(recipe, parts.estimator), aggregation=recipe.critic.aggregation
        )
    return minibatches(
        token_rows,
        credits,
        scores,
        aggregation=recipe.algorithm.aggregation,
        count=recipe.algorithm.minibatches,
        epochs=epochs,
        token_budget=recipe.learner.token_budget,
        rng=np.random.default_rng(seed),
        value_targets=targets,
        factors=factors,
    )
