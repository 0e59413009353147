"""Credit assignment: one file per estimator, pure functions from groups and scores to credits.

Estimators see records and numbers only; they know neither the model nor how the batch will be cut.
"""

from steprl.credit._chains import returns_to_go, unit_rewards
from steprl.credit._groups import GroupEstimator, check_group_size, smallest_group
from steprl.credit._members import scored
from steprl.credit._states import states
from steprl.credit.gae import Gae
from steprl.credit.gigpo import Gigpo
from steprl.credit.grpo import DrGrpo, Grpo
from steprl.credit.reinforce_pp import ReinforcePp
from steprl.credit.reinforce_pp_baseline import ReinforcePpBaseline
from steprl.credit.rloo import Rloo

__all__ = [
    "DrGrpo",
    "Gae",
    "Gigpo",
    "Grpo",
    "GroupEstimator",
    "ReinforcePp",
    "ReinforcePpBaseline",
    "Rloo",
    "check_group_size",
    "returns_to_go",
    "scored",
    "smallest_group",
    "states",
    "unit_rewards",
]
