"""From recorded groups to credits, as a run does it: which groups count, and what becomes of summaries.

No model is needed for it, so that credit can be looked at without one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from steprl.trainers.recipe import Recipe
from steprl.types import Credits, Estimator, Scores, StepKey, Trajectory, TrajectoryGroup


def kept_groups(recipe: Recipe, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups with at least ``rollout.failures.minimum_group`` trajectories that train."""
    least = recipe.rollout.failures.minimum_group
    return [group for group in groups if sum(t.stop_reason.trains for t in group.trajectories) >= least]


def credits_of(
    recipe: Recipe,
    estimator: Estimator,
    groups: Sequence[TrajectoryGroup],
    scores: Scores,
    *,
    untrained: Collection[str] = (),
) -> Credits:
    """What the estimator says, with less in the loss: no token of the trajectories ``untrained``, by uid, and
    with ``algorithm.summaries = 0`` none of a summary."""
    credits = estimator(groups, scores)
    every = [t for group in groups for t in group.trajectories]
    without = [] if recipe.algorithm.summaries > 0 else summaries_of(every)
    without += [t.key(i) for t in every if t.uid in untrained for i in range(len(t.steps))]
    if not without:
        return credits
    masks = {key: np.zeros_like(credits.loss_mask[key]) for key in without}
    return replace(credits, loss_mask={**credits.loss_mask, **masks})


def summaries_of(trajectories: Sequence[Trajectory]) -> list[StepKey]:
    """The steps that are summaries."""
    return [t.key(i) for t in trajectories for i, step in enumerate(t.steps) if step.kind == "summary"]
