"""Tokens in, tokens out: what an engine is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from steprl.types._arrays import Floats, Ints, frozen, put
from steprl.types.interaction import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. The defaults are neutral: the model's own distribution.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 are off. ``stop_ids`` end an action and
    belong to it; ``stop`` are strings that do the same.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or above, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or above, got {self.top_k}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if "" in self.stop:
            raise ValueError("stop strings must not be empty")

    @property
    def neutral(self) -> bool:
        """True when nothing but the temperature shapes the distribution."""
        return self.top_p == 1.0 and self.top_k == 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """``ids`` i32[P]: exactly what the engine is given. ``media`` waits for multimodal models."""

    ids: Ints
    media: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        put(self, "ids", frozen(self.ids, np.int32, "prompt ids"))
        if len(self.ids) == 0:
            raise ValueError("a prompt needs at least one token")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine sampled.

    ``ids`` i32[A]; ``logprobs`` f32[A] of the distribution sampled from (temperature and filters
    included), or None when the engine has none; ``policy_versions`` i32[A], the weights each token
    was sampled with.
    """

    ids: Ints
    logprobs: Floats | None
    policy_versions: Ints
    finish: Finish

    def __post_init__(self) -> None:
        put(self, "ids", frozen(self.ids, np.int32, "completion ids"))
        n = len(self.ids)
        if self.logprobs is not None:
            put(self, "logprobs", frozen(self.logprobs, np.float32, "logprobs", length=n))
            if not np.isfinite(self.logprobs).all():
                raise ValueError("logprobs of sampled tokens must be finite")
        put(self, "policy_versions", frozen(self.policy_versions, np.int32, "policy_versions", length=n))
