"""Options that several estimators have, checked where an estimator is made: before the first rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from steprl.errors import ConfigError, unknown


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """``value``, one of the allowed words."""
    if value not in allowed:
        raise ConfigError(unknown(f"{name} of an estimator:", str(value), allowed))
    return value


def share(name: str, value: float) -> float:
    """``value`` in [0, 1]: a discount, a decay."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"an estimator's {name} is {value!r}; it must be a number from 0 to 1 (1 is usual)")
    return float(value)


def amount(name: str, value: float) -> float:
    """``value``, finite and not negative: a coefficient."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"an estimator's {name} is {value!r}; it must be 0 (off) or a positive number")
    return float(value)


def switch(name: str, value: bool) -> bool:
    """``value``, true or false: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"an estimator's {name} is {value!r}; it must be true or false")
    return value


def count(name: str, value: int) -> int:
    """``value``, a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"an estimator's {name} is {value!r}; it must be a whole number, 1 or more")
    return value
