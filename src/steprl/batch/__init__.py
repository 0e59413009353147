"""From credits to mini-batches: rows of tokens, explicit weights, and cuts into mini- and micro-batches.

The aggregation rule becomes a weight per token over the global mini-batch, so no later cut changes it.
"""

from steprl.batch.aggregation import RULES, Aggregation
from steprl.batch.merge import gather, prompt_ends, rows, split_by_step
from steprl.batch.minibatch import micro_batches, minibatches, split_trajectories
from steprl.batch.value_targets import ValueTargets

__all__ = [
    "RULES",
    "Aggregation",
    "ValueTargets",
    "gather",
    "micro_batches",
    "minibatches",
    "prompt_ends",
    "rows",
    "split_by_step",
    "split_trajectories",
]
