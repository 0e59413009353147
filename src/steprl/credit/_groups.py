"""What group-relative estimators share: who is compared, who is trained, and one scalar per trajectory.

Shapes: N trajectories of one group that are trained or compared.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from steprl.credit._compare import compare
from steprl.credit._kl import k1
from steprl.credit._members import Admission, spread
from steprl.credit._options import amount
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
        kl_beta: how much of the KL to a reference (k1) to take off the reward, where the formula allows it.

    Raises:
        ConfigError: ``kl_beta`` is above 0 and the subclass is not one with ``kl_in_reward``.
    """

    requires: frozenset[Need] = frozenset({Need.GROUPS})
    kl_in_reward = False
    smallest_group = 2

    def __init__(
        self,
        *,
        truncated_in_loss: bool = True,
        truncated_in_statistics: bool = True,
        kl_beta: float = 0.0,
    ) -> None:
        self.admission = Admission(
            truncated_in_loss=truncated_in_loss, truncated_in_statistics=truncated_in_statistics
        )
        self.kl_beta = amount("kl_beta", kl_beta)
        if self.kl_beta > 0:
            if not self.kl_in_reward:
                raise ConfigError(
                    f"kl_beta = {kl_beta}, but {type(self).__name__} has no KL in the reward: it would enter "
                    f"the comparison within the group. Set kl_beta = 0 and use the KL term of the loss."
                )
            self.requires = self.requires | {Need.REFERENCE}

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        """Credits for every step of every trajectory given; ``scores`` matter only with ``kl_beta``."""
        trained = {t.uid for group in groups for t in group.trajectories if self.admission.trains(t)}
        found = self.step_advantages(groups, scores)
        return spread(groups, {key: np.array([a]) for key, a in found.items() if key.trajectory in trained})

    @abstractmethod
    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        """The formula: f64[N] from the rewards of a group and which of them make up its statistics.

        At least two are compared, and not all N rewards are equal.
        """

    def step_advantages(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> dict[StepKey, float]:
        """The advantage of each step of each trajectory that trains or counts."""
        found: dict[StepKey, float] = {}
        for group in groups:
            members = [t for t in group.trajectories if self.admission.takes_part(t)]
            rewards_N = np.array([self._reward(t, scores) for t in members], dtype=np.float64)
            compared_N = np.array([self.admission.counts(t) for t in members], dtype=bool)
            advantages_N = compare(rewards_N, compared_N, self.advantages)
            for trajectory, advantage in zip(members, advantages_N.tolist(), strict=True):
                found |= {trajectory.key(index): advantage for index in range(len(trajectory.steps))}
        return found

    def _reward(self, trajectory: Trajectory, scores: Scores) -> float:
        """``R_i``, less β·k1 summed over its sampled tokens."""
        assert trajectory.reward is not None
        if self.kl_beta == 0:
            return trajectory.reward
        divergences = (k1(trajectory, index, scores) for index in range(len(trajectory.steps)))
        return trajectory.reward - self.kl_beta * math.fsum(x for k1_n in divergences for x in k1_n.tolist())


def smallest_group(estimator: Estimator) -> int:
    """How many trajectories of a group an estimator needs to compare; 1 for one that compares none."""
    if Need.GROUPS not in estimator.requires:
        return 1
    return estimator.smallest_group if isinstance(estimator, GroupEstimator) else 2


def check_group_size(estimator: Estimator, group_size: int) -> None:
    """Refuse a setup whose groups are too small to compare anything.

    Raises:
        ConfigError: the estimator compares within groups, and ``group_size`` is below what it needs (two).
    """
    least = smallest_group(estimator)
    if group_size < least:
        raise ConfigError(
            f"group_size = {group_size}, but {type(estimator).__name__} compares the trajectories of a "
            f"group with each other and needs at least {least}. Set group_size to {least} or more (8 is "
            f"usual), or choose an estimator that works without groups."
        )
