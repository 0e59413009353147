"""GRPO and Dr. GRPO: a trajectory's reward against the mean of its group, with or without the spread.

GRPO     A_i = (R_i − mean_g) / (std_g + ε)     DeepSeekMath, arXiv:2402.03300, section 4.1.2
Dr. GRPO A_i = R_i − mean_g                     arXiv:2503.20783, section 3.2

``std_g`` is the sample standard deviation (ddof 1) and ε is 1e-6. The length normalisation that
Dr. GRPO also changes is not credit but aggregation: its rule is ``constant``.
"""

from __future__ import annotations

import numpy as np

from steprl.credit._groups import GroupEstimator
from steprl.types import Bools, Doubles, equal_rewards

EPSILON = 1e-6


class Grpo(GroupEstimator):
    """``(R_i − mean_g) / (std_g + ε)`` on every sampled token of trajectory i (arXiv:2402.03300)."""

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        compared = rewards_N[compared_N]
        if equal_rewards(compared.tolist()):
            # Only trajectories outside the statistics differ: there is no spread to measure them by.
            return np.zeros_like(rewards_N)
        advantages_N: Doubles = (rewards_N - compared.mean()) / (compared.std(ddof=1) + EPSILON)
        return advantages_N


class DrGrpo(GroupEstimator):
    """``R_i − mean_g`` on every sampled token of trajectory i (arXiv:2503.20783)."""

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        advantages_N: Doubles = rewards_N - rewards_N[compared_N].mean()
        return advantages_N
