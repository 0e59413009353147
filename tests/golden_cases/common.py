"""What all checks of golden cases share: how they say what is compared, and what they leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Case = Mapping[str, Any]
Pairs = dict[str, tuple[Any, Any]]
"""What is compared: name → (ours, the reference's)."""


class Skip(Exception):
    """The case asks for something that we do not have, or do otherwise on purpose."""


def demand(params: Mapping[str, Any], **ours: Any) -> None:
    """Skip a case that was made with another value of something that is fixed here."""
    for name, value in ours.items():
        if params.get(name, value) != value:
            raise Skip(f"we have {name} = {value} only, the case has {params[name]}")
