"""What group-relative estimators share: who is compared, who is trained, and one scalar per trajectory.

Shapes: N trajectories of one group that are trained or compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from steprl.errors import ConfigError
from steprl.types import (
    Bools,
    Credits,
    Doubles,
    Estimator,
    Need,
    Scores,
    StepKey,
    Trajectory,
    TrajectoryGroup,
    equal_rewards,
)


class GroupEstimator(ABC):
    """Credit per trajectory, by comparison within its group: the same scalar on all its sampled tokens.

    A subclass is the formula, in ``advantages``. What is decided here, once for all of them:

    * one score per trajectory, ``R_i = Σ_t r_it``; step rows never enter the statistics;
    * a deadline, an abort, an error, a missing reward (None) or a trajectory without steps takes a
      trajectory out of both loss and statistics; the two switches do the same for truncated ones;
    * fewer than two trajectories to compare, or equal rewards throughout: exactly 0.

    Args:
        truncated_in_loss: train on trajectories that a limit of the run ended.
        truncated_in_statistics: let them count in the group's statistics.
    """

    requires: frozenset[Need] = frozenset({Need.GROUPS})

    def __init__(self, *, truncated_in_loss: bool = True, truncated_in_statistics: bool = True) -> None:
        self.truncated_in_loss = truncated_in_loss
        self.truncated_in_statistics = truncated_in_statistics

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        """Credits for every step of every trajectory given; ``scores`` are not looked at."""
        advantages: dict[StepKey, Doubles] = {}
        loss_mask: dict[StepKey, Bools] = {}
        for group in groups:
            scalars = self._group(group)
            for trajectory in group.trajectories:
                scalar = scalars.get(trajectory.uid)
                for index, step in enumerate(trajectory.steps):
                    mask = step.sampled_mask if scalar is not None else np.zeros_like(step.sampled_mask)
                    key = trajectory.key(index)
                    advantages[key] = np.where(mask, scalar or 0.0, 0.0)
                    loss_mask[key] = mask
        return Credits(advantages=advantages, loss_mask=loss_mask)

    @abstractmethod
    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        """The formula: f64[N] from the rewards of a group and which of them make up its statistics.

        At least two are compared, and not all N rewards are equal.
        """

    def _group(self, group: TrajectoryGroup) -> dict[str, float]:
        """The advantage of each trajectory of the group that trains, by uid."""
        takes_part = self.truncated_in_loss or self.truncated_in_statistics
        members = [t for t in group.trajectories if _scored(t) and (takes_part or not _truncated(t))]
        rewards_N = np.array([t.reward for t in members], dtype=np.float64)
        compared_N = np.array(
            [self.truncated_in_statistics or not _truncated(t) for t in members], dtype=bool
        )
        # Equality is tested on the rewards: a float residue of their mean is not signal.
        if compared_N.sum() < 2 or equal_rewards(rewards_N.tolist()):
            advantages_N = np.zeros_like(rewards_N)
        else:
            advantages_N = self.advantages(rewards_N, compared_N)
        return {
            trajectory.uid: advantage
            for trajectory, advantage in zip(members, advantages_N.tolist(), strict=True)
            if self.truncated_in_loss or not _truncated(trajectory)
        }


def check_group_size(estimator: Estimator, group_size: int) -> None:
    """Refuse a setup whose groups are too small to compare anything.

    Raises:
        ConfigError: the estimator compares within groups and ``group_size`` is below two.
    """
    if Need.GROUPS in estimator.requires and group_size < 2:
        raise ConfigError(
            f"group_size = {group_size}, but {type(estimator).__name__} compares the trajectories of a "
            f"group with each other and needs at least 2. Set group_size to 2 or more (8 is usual), or "
            f"choose an estimator that works without groups."
        )


def _scored(trajectory: Trajectory) -> bool:
    return trajectory.stop_reason.trains and len(trajectory.steps) > 0 and trajectory.reward is not None


def _truncated(trajectory: Trajectory) -> bool:
    return trajectory.stop_reason.bootstraps
