"""Read-only one-dimensional arrays, checked where they enter a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]

_KINDS = {"i": "iu", "f": "fiu", "b": "b"}


def frozen(
    value: Sequence[Any] | NDArray[Any],
    dtype: type[np.generic],
    name: str,
    *,
    length: int | None = None,
) -> NDArray[Any]:
    """A read-only 1-d copy of ``value`` as ``dtype``.

    Raises:
        TypeError: the values are of another kind (floats where ids are meant).
        ValueError: not one-dimensional, of the wrong length, or out of the range of ``dtype``.
    """
    given = np.asarray(value)
    wanted = np.dtype(dtype)
    if given.size == 0:
        given = given.astype(wanted)
    if given.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {given.shape}")
    if given.dtype.kind not in _KINDS[wanted.kind]:
        raise TypeError(f"{name} must hold {wanted.name}, got {given.dtype.name}")
    if length is not None and len(given) != length:
        raise ValueError(f"{name} must have length {length}, got {len(given)}")
    if wanted.kind == "i" and given.size:
        low, high = int(given.min()), int(given.max())
        bounds = np.iinfo(wanted)
        if low < bounds.min or high > bounds.max:
            raise ValueError(f"{name} holds {low if low < bounds.min else high}, outside {wanted.name}")
    array = given.astype(wanted)  # always a copy: the caller keeps its own
    array.flags.writeable = False
    return array


def put(record: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass during its construction."""
    object.__setattr__(record, name, value)
