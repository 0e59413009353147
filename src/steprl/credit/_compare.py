"""Numbers that stand against each other, with or without their spread as the unit.

Shapes: N numbers that are compared, or measured by those that are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from steprl.types import Bools, Doubles, equal_rewards

EPSILON = 1e-6


def compare(x_N: Doubles, compared_N: Bools, formula: Callable[[Doubles, Bools], Doubles]) -> Doubles:
    """``formula`` of the numbers; fewer than two to compare, or equal ones throughout: exactly 0.

    Where only numbers outside the statistics differ, those that are compared still are exactly 0.
    """
    # Equality is tested on the numbers: a float residue of their mean is not signal.
    if compared_N.sum() < 2 or equal_rewards(x_N.tolist()):
        return np.zeros_like(x_N)
    found_N = formula(x_N, compared_N)
    return np.where(compared_N, 0.0, found_N) if equal_rewards(x_N[compared_N].tolist()) else found_N


def centred(x_N: Doubles, compared_N: Bools) -> Doubles:
    """``x − mean``."""
    result_N: Doubles = x_N - x_N[compared_N].mean()
    return result_N


def standardised(x_N: Doubles, compared_N: Bools) -> Doubles:
    """``(x − mean) / (std + ε)``, ddof 1, ε = 1e-6."""
    compared = x_N[compared_N]
    if equal_rewards(compared.tolist()):
        # Only numbers outside the statistics differ: there is no spread to measure them by.
        return np.zeros_like(x_N)
    result_N: Doubles = (x_N - compared.mean()) / (compared.std(ddof=1) + EPSILON)
    return result_N
