"""Losses per token, as pure functions of tensors. They see trained tokens only: through ``exp`` a masked one
can be 0·inf, a NaN. What they return is multiplied with explicit weights and summed, never averaged here.

Shapes: M trained tokens, V value targets; ``step_M`` numbers the steps the tokens belong to, from 0.
"""

from steprl.learner.losses.cispo import cispo
from steprl.learner.losses.importance import importance_weights
from steprl.learner.losses.kl import k2, k3, kl_losses
from steprl.learner.losses.objective import TokenLosses, TrainedTokens, token_losses
from steprl.learner.losses.ppo import clipped, ppo_clip
from steprl.learner.losses.ratios import LOG_RATIO_LIMIT, ratios
from steprl.learner.losses.slopes import slopes
from steprl.learner.losses.steps import gspo, gspo_ratios, step_product, step_product_ratios
from steprl.learner.losses.value import value_clipped, value_losses

__all__ = [
    "LOG_RATIO_LIMIT",
    "TokenLosses",
    "TrainedTokens",
    "cispo",
    "clipped",
    "gspo",
    "gspo_ratios",
    "importance_weights",
    "k2",
    "k3",
    "kl_losses",
    "ppo_clip",
    "ratios",
    "slopes",
    "step_product",
    "step_product_ratios",
    "token_losses",
    "value_clipped",
    "value_losses",
]
