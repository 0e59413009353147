"""GRPO and Dr. GRPO: a trajectory's reward against the mean of its group, with or without the spread.

GRPO     A_i = (R_i − mean_g) / (std_g + ε)     DeepSeekMath, arXiv:2402.03300, section 4.1.2
Dr. GRPO A_i = R_i − mean_g                     arXiv:2503.20783, section 3.2

``std_g`` is the sample standard deviation (ddof 1) and ε is 1e-6. The length normalisation that
Dr. GRPO also changes is not credit but aggregation: its rule is ``constant``.
"""

from __future__ import annotations

from steprl.credit._compare import centred, standardised
from steprl.credit._groups import GroupEstimator
from steprl.types import Bools, Doubles


class Grpo(GroupEstimator):
    """``(R_i − mean_g) / (std_g + ε)`` on every sampled token of trajectory i (arXiv:2402.03300)."""

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        return standardised(rewards_N, compared_N)


class DrGrpo(GroupEstimator):
    """``R_i − mean_g`` on every sampled token of trajectory i (arXiv:2503.20783)."""

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        return centred(rewards_N, compared_N)
