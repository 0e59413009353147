"""Whitening: numbers of a batch with their mean taken off, in units of their spread (ddof 1).

over tokens   (x − mean) · (var + 1e-8)^−½
over steps    (x − mean) / (std + 1e-8)

One number alone, or numbers that are all equal, give exactly 0.  Shapes: N numbers of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np

from steprl.types import Bools, Doubles, StepKey, equal_rewards

EPSILON = 1e-8

Unit = Literal["token", "step"]
"""What gets one number of credit each: every sampled token, or every step."""


def whitened(x_N: Doubles, counted_N: Bools, unit: Unit) -> Doubles:
    """f64[N]: all numbers, measured by the mean and the spread of those that count."""
    counted = x_N[counted_N]
    # Equality is tested on the numbers: a float residue of their mean is not signal.
    if len(counted) < 2 or equal_rewards(counted.tolist()):
        return np.zeros_like(x_N)
    variance = counted.var(ddof=1)
    scale = 1 / np.sqrt(variance + EPSILON) if unit == "token" else 1 / (np.sqrt(variance) + EPSILON)
    result_N: Doubles = (x_N - counted.mean()) * scale
    return result_N


def whitened_steps(
    units: Mapping[StepKey, Doubles], counted: Collection[str], unit: Unit
) -> dict[StepKey, Doubles]:
    """The same for numbers that stand by step; ``counted`` trajectories make up the statistics."""
    if not units:
        return {}
    lengths = [len(x_U) for x_U in units.values()]
    counted_N = np.repeat([key.trajectory in counted for key in units], lengths)
    result_N = whitened(np.concatenate(list(units.values())), counted_N, unit)
    return dict(zip(units, np.split(result_N, np.cumsum(lengths)[:-1]), strict=True))
