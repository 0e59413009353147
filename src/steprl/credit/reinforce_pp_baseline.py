"""REINFORCE++ with a baseline: a trajectory's reward against the mean of its group, whitened over tokens.

A_i = whitened(R_i − mean_g)     over all sampled tokens of the batch, each with the number of its trajectory

arXiv:2501.03262, section 3 (REINFORCE++-baseline). The spread is the batch's, not the group's, so that no
group weighs more for being easy or hard.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steprl.credit._compare import centred
from steprl.credit._groups import GroupEstimator
from steprl.credit._options import switch
from steprl.credit._whiten import whitened_steps
from steprl.types import Bools, Doubles, Scores, StepKey, TrajectoryGroup


class ReinforcePpBaseline(GroupEstimator):
    """``whitened(R_i − mean_g)`` on every sampled token of trajectory i (arXiv:2501.03262).

    Groups with fewer than two trajectories to compare stay out of the whitening and get exactly 0.

    Args:
        whiten: measure by mean and spread over the batch's tokens; without, A_i = R_i − mean_g.
        truncated_in_loss: train on trajectories that a limit of the run ended.
        truncated_in_statistics: let them count in the group's mean and in the batch's statistics.
        kl_beta: refused above 0; this estimator's KL is a term of the loss.
    """

    def __init__(
        self,
        *,
        whiten: bool = True,
        truncated_in_loss: bool = True,
        truncated_in_statistics: bool = True,
        kl_beta: float = 0.0,
    ) -> None:
        super().__init__(
            truncated_in_loss=truncated_in_loss,
            truncated_in_statistics=truncated_in_statistics,
            kl_beta=kl_beta,
        )
        self.whiten = switch("whiten", whiten)

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        return centred(rewards_N, compared_N)

    def step_advantages(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> dict[StepKey, float]:
        found = super().step_advantages(groups, scores)
        if not self.whiten:
            return found
        units: dict[StepKey, Doubles] = {}
        counted: set[str] = set()
        for group in groups:
            counting = {t.uid for t in group.trajectories if self.admission.counts(t)}
            if len(counting) < 2:
                continue
            counted |= counting
            for trajectory in filter(self.admission.takes_part, group.trajectories):
                for index, step in enumerate(trajectory.steps):
                    key = trajectory.key(index)
                    units[key] = np.full(step.sampled_mask.sum(), found[key])
        per_token = whitened_steps(units, counted, "token")
        return found | {key: a_U[0].item() for key, a_U in per_token.items() if len(a_U)}
