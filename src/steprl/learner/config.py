"""The learner's options, checked when they are made. No torch here: reading a recipe does not need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from steprl.errors import ConfigError, unknown
from steprl.learner.loss_config import LossConfig

Dtype = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the policy learns.

    Args:
        lr: step size of AdamW, reached after ``warmup_steps`` of linear growth.
        betas: decay of AdamW's first and second moment.
        weight_decay: decoupled weight decay, on all weights.
        max_grad_norm: gradients longer than this are scaled down to it.
        warmup_steps: optimiser steps until the full step size.
        decay_steps: optimiser steps after that in which ``lr`` falls linearly to ``final_lr``, where it
            stays; 0 keeps it constant.
        final_lr: see ``decay_steps``.
        clip_low: ratios below ``1 − clip_low`` are clipped.
        clip_high: ratios above ``1 + clip_high`` are clipped.
        dual_clip: most loss per unit of negative advantage (arXiv:1912.09729); None is off.
        loss: what is minimised; the clips above belong to it.
        token_budget: most tokens of one forward pass, padding included.
        dtype: precision of the passes. ``bfloat16`` is autocast over float32 weights.
        gradient_checkpointing: recompute activations in the backward pass, to save memory.

    Raises:
        ConfigError: a value is out of its range, or without effect.
    """

    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    decay_steps: int = 0
    final_lr: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    loss: LossConfig = field(default_factory=LossConfig)
    token_budget: int = 8192
    dtype: Dtype = "float32"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        infinity = float("inf")
        _check("lr", self.lr, 0 < self.lr < infinity, "a number above 0")
        _check(
            "betas",
            self.betas,
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "two numbers in [0, 1)",
        )
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < infinity, "0 (off) or above")
        _check("max_grad_norm", self.max_grad_norm, self.max_grad_norm > 0, "above 0; inf never clips")
        _check("warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "0 (off) or above")
        _check("decay_steps", self.decay_steps, self.decay_steps >= 0, "0 (off) or above")
        _check("final_lr", self.final_lr, 0 <= self.final_lr < infinity, "0 or above")
        _check("clip_low", self.clip_low, 0 < self.clip_low <= 1, "in (0, 1]")
        _check("clip_high", self.clip_high, self.clip_high > 0, "above 0")
        _check(
            "dual_clip", self.dual_clip, self.dual_clip is None or self.dual_clip > 1, "above 1, or left out"
        )
        if self.dual_clip is not None and self.loss.kind == "cispo":
            raise ConfigError(
                f"learner.dual_clip = {self.dual_clip} has no effect on the loss 'cispo', which bounds the "
                f"ratio "
                f"at loss.ratio_max. Leave it out, or use another loss.kind."
            )
        _check("token_budget", self.token_budget, self.token_budget >= 1, "1 or above")
        if self.dtype not in get_args(Dtype):
            raise ConfigError(unknown("learner dtype", self.dtype, get_args(Dtype)))


def _check(name: str, value: Any, ok: bool, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"learner option {name} = {value!r} is out of range: it must be {allowed}.")
