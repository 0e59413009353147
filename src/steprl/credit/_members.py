"""Who takes part in credit assignment, and how the numbers found become the credits of a batch.

Shapes: A action tokens of a step; U units of a step: one for the step, or one for each sampled token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steprl.credit._options import switch
from steprl.types import Bools, Credits, Doubles, StepKey, Trajectory, TrajectoryGroup


def scored(trajectory: Trajectory) -> bool:
    """Whether there is anything to learn from: it has steps, each with a reward, and ended in a way that
    trains (a deadline, an abort, an error do not)."""
    return trajectory.stop_reason.trains and len(trajectory.steps) > 0 and trajectory.reward is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What becomes of trajectories that a limit of the run ended, without a critic to look beyond it.

    ``truncated_in_loss``: they train. ``truncated_in_statistics``: they count in means and spreads.
    """

    truncated_in_loss: bool = True
    truncated_in_statistics: bool = True

    def __post_init__(self) -> None:
        switch("truncated_in_loss", self.truncated_in_loss)
        switch("truncated_in_statistics", self.truncated_in_statistics)

    def trains(self, trajectory: Trajectory) -> bool:
        """True when its tokens are in the loss."""
        return scored(trajectory) and (self.truncated_in_loss or not trajectory.stop_reason.bootstraps)

    def counts(self, trajectory: Trajectory) -> bool:
        """True when it is part of what others are compared with."""
        return scored(trajectory) and (self.truncated_in_statistics or not trajectory.stop_reason.bootstraps)

    def takes_part(self, trajectory: Trajectory) -> bool:
        """True when it trains or counts."""
        return self.trains(trajectory) or self.counts(trajectory)


def spread(
    groups: Sequence[TrajectoryGroup],
    units: Mapping[StepKey, Doubles],
    returns: Mapping[StepKey, Doubles] | None = None,
) -> Credits:
    """The credits of every step of every trajectory given.

    Args:
        groups: the batch.
        units: advantages f64[U] of the steps that train, one or one for each sampled token. A step that is
            not named does not train.
        returns: f64[A] of the steps that train, from estimators with a critic.
    """
    advantages: dict[StepKey, Doubles] = {}
    loss_mask: dict[StepKey, Bools] = {}
    everywhere: dict[StepKey, Doubles] = {}
    for trajectory in (t for group in groups for t in group.trajectories):
        for index, step in enumerate(trajectory.steps):
            key = trajectory.key(index)
            advantages[key] = np.zeros(len(step.action_ids))
            loss_mask[key] = step.sampled_mask if key in units else np.zeros_like(step.sampled_mask)
            if key in units:
                advantages[key][step.sampled_mask] = units[key]
            if returns is not None:
                everywhere[key] = returns.get(key, np.zeros(len(step.action_ids)))
    return Credits(
        advantages=advantages, loss_mask=loss_mask, returns=everywhere if returns is not None else None
    )
