"""What statistics and view both need to know about token ids.

A step's tokens are its prompt followed by its action: what a later prompt repeats when nothing was rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from steprl.types import Ints, Step

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, control tokens included: ``Renderer.decode``."""


def step_ids(step: Step) -> Ints:
    """i32[P+A]: the prompt and the action of a step, in order."""
    return np.concatenate([step.prompt_ids, step.action_ids])


def common_prefix(left: Ints, right: Ints) -> int:
    """How many leading tokens two sequences share."""
    n = min(len(left), len(right))
    differs = left[:n] != right[:n]
    return int(differs.argmax()) if differs.any() else n
