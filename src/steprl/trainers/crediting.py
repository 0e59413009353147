"""From recorded groups to credits, as a run does it: which groups count, and what becomes of summaries.

No model is needed for it, so that credit can be looked at without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steprl.trainers.recipe import Recipe
from steprl.types import Credits, Estimator, Scores, StepKey, Trajectory, TrajectoryGroup


def kept_groups(recipe: Recipe, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups with at least ``rollout.failures.minimum_group`` trajectories that train."""
    least = recipe.rollout.failures.minimum_group
    return [group for group in groups if sum(t.stop_reason.trains for t in group.trajectories) >= least]


def credits_of(
    recipe: Recipe, estimator: Estimator, groups: Sequence[TrajectoryGroup], scores: Scores
) -> Credits:
    """What the estimator says; with ``algorithm.summaries = 0`` no token of a summary is in the loss."""
    credits = estimator(groups, scores)
    if recipe.algorithm.summaries > 0:
        return credits
    every = [t for group in groups for t in group.trajectories]
    without = {key: np.zeros_like(credits.loss_mask[key]) for key in summaries_of(every)}
    return replace(credits, loss_mask={**credits.loss_mask, **without})


def summaries_of(trajectories: Sequence[Trajectory]) -> list[StepKey]:
    """The steps that are summaries."""
    return [t.key(i) for t in trajectories for i, step in enumerate(t.steps) if step.kind == "summary"]
