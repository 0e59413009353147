"""RLOO: a trajectory's reward against the mean reward of the others in its group.

A_i = R_i − 1/(n−1) · Σ_{k≠i} R_k          arXiv:2402.14740, section 2.2 ("REINFORCE leave-one-out")
    = n/(n−1) · (R_i − mean_g)             the same number, computed like this: symmetric in floats too

With ``kl_beta``, R_i is less β · Σ (logπ_old − logπ_ref) over the sampled tokens of trajectory i, as in
section 2 of the paper.
"""

from __future__ import annotations

import numpy as np

from steprl.credit._groups import GroupEstimator
from steprl.types import Bools, Doubles


class Rloo(GroupEstimator):
    """``R_i − mean of the others`` on every sampled token of trajectory i (arXiv:2402.14740).

    A trajectory that trains but is left out of the statistics is compared with all that are in them.
    """

    kl_in_reward = True

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        compared = rewards_N[compared_N]
        own_part_N = np.where(compared_N, len(compared) / (len(compared) - 1), 1.0)
        advantages_N: Doubles = own_part_N * (rewards_N - compared.mean())
        return advantages_N
