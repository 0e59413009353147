"""KL to the reference model as part of the reward: the estimator k1 = logπ_old − logπ_ref, token by token.

Its gradient as a loss would be 0 in expectation (http://joschu.net/blog/kl-approx.html), so k1 stands in
rewards only; k2 and k3 are terms of the loss.
"""

from __future__ import annotations

import numpy as np

from steprl.errors import ConfigError
from steprl.types import Doubles, Scores, Trajectory


def k1(trajectory: Trajectory, index: int, scores: Scores) -> Doubles:
    """``logπ_old − logπ_ref`` f64[n] at the n sampled tokens of a step.

    Raises:
        ConfigError: the scores lack one of the two.
    """
    key, sampled = trajectory.key(index), trajectory.steps[index].sampled_mask
    reference = scores.ref_logprobs or {}
    if key not in scores.old_logprobs or key not in reference:
        raise ConfigError(
            f"kl_beta is above 0, so the reward needs old and reference log-probabilities of every step; "
            f"there are none of step {index} of {trajectory.uid}. Provide a reference model, or set "
            f"kl_beta = 0."
        )
    old_n = np.asarray(scores.old_logprobs[key], dtype=np.float64)[sampled]
    ref_n = np.asarray(reference[key], dtype=np.float64)[sampled]
    difference_n: Doubles = old_n - ref_n
    return difference_n
