"""The options of the policy loss, checked when they are made. No torch here: reading a recipe does not need
it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from steprl.errors import ConfigError, unknown

KINDS = ("ppo_clip", "gspo", "step_product", "cispo")
IMPORTANCE = ("off", "full", "truncate", "mask")
UNITS = ("token", "step_mean", "step_product")
KL_KINDS = ("k2", "k3")

KNOWN_AS = {
    "ppo": 'learner.loss.kind = "ppo_clip"',
    "turn_ppo": 'learner.loss.kind = "step_product", with the estimator gae and credit = "step"',
    # old log-probabilities are the proximal policy's already
    "decoupled_ppo": 'learner.loss.kind = "ppo_clip" and learner.loss.importance = "full"',
}
"""Names from elsewhere of what is a kind or a combination here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What the policy minimises, per trained token; docs/algorithms/losses.md has the equations.

    Args:
        kind: ``ppo_clip``; ``gspo`` and ``step_product``, whose ratio is a step's mean or product; ``cispo``.
            The first three clip at ``learner.clip_low``, ``learner.clip_high`` and ``learner.dual_clip``.
        ratio_max: the largest weight of a token under ``cispo``.
        importance: how tokens are weighed by π_old/μ, μ being what the engine sampled from: ``off``, ``full``
            (decoupled PPO), ``truncate`` to the bounds, ``mask`` outside them.
        importance_unit: what is weighed as one: a token, or a step by its mean or product.
        importance_low: lower bound of ``truncate`` and ``mask``.
        importance_high: upper bound of ``truncate`` and ``mask``.
        beta: coefficient of the KL to the reference; 0 is off and needs no reference.
        kl: its estimator.
        kl_unbiased: multiply it with ρ, so that it is unbiased on tokens of an older policy.
        entropy_bonus: coefficient of the entropy that is subtracted; 0 is off.

    Raises:
        ConfigError: an unknown name, a value out of range, or an option without effect.
    """

    kind: str = "ppo_clip"
    ratio_max: float = 5.0
    importance: str = "off"
    importance_unit: str = "token"
    importance_low: float = 0.0
    importance_high: float = 2.0
    beta: float = 0.0
    kl: str = "k3"
    kl_unbiased: bool = False
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        self._check_names()
        infinity = float("inf")
        self._check("ratio_max", 0 < self.ratio_max < infinity, "above 0")
        self._check(
            "importance_low", 0 <= self.importance_low < self.importance_high, "in [0, importance_high)"
        )
        self._check("importance_high", self.importance_high < infinity, "a number; 'full' has no bounds")
        self._check("beta", 0 <= self.beta < infinity, "0 (off) or above")
        self._check("entropy_bonus", 0 <= self.entropy_bonus < infinity, "0 (off) or above")
        self._refuse_idle("kind is 'cispo'", self.kind == "cispo", "ratio_max")
        self._refuse_idle("importance is not 'off'", self.importance != "off", "importance_unit")
        bounded = self.importance in ("truncate", "mask")
        self._refuse_idle("importance is 'truncate' or 'mask'", bounded, "importance_low", "importance_high")
        self._refuse_idle("beta is above 0", self.beta > 0, "kl", "kl_unbiased")

    @property
    def needs_reference(self) -> bool:
        """True when the samples must have ``ref_logprobs``."""
        return self.beta > 0

    @property
    def needs_engine_logprobs(self) -> bool:
        """True when the engine must give log-probabilities."""
        return self.importance != "off"

    def _check_names(self) -> None:
        if self.kind in KNOWN_AS:
            raise ConfigError(f"loss kind '{self.kind}' is written here as {KNOWN_AS[self.kind]}.")
        for name, label, allowed in (
            ("kind", "loss kind", KINDS),
            ("importance", "importance correction", IMPORTANCE),
            ("importance_unit", "importance unit", UNITS),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(unknown(label, getattr(self, name), allowed))
        if self.kl == "k1":
            raise ConfigError(
                "learner.loss.kl = 'k1': as a loss its mean gradient is 0, whatever the reference. Use k2 or "
                "k3 "
                "here; k1 belongs into the reward."
            )
        if self.kl not in KL_KINDS:
            raise ConfigError(unknown("KL estimator", self.kl, KL_KINDS))

    def _check(self, name: str, ok: bool, allowed: str) -> None:
        if not ok:
            raise ConfigError(
                f"learner option loss.{name} = {getattr(self, name)!r} is out of range: it must be {allowed}."
            )

    def _refuse_idle(self, condition: str, met: bool, *names: str) -> None:
        """Refuse options that were set and would do nothing."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(self)}
        for name in names:
            if not met and getattr(self, name) != defaults[name]:
                raise ConfigError(
                    f"learner.loss.{name} = {getattr(self, name)!r} has an effect only when {condition}. "
                    f"Remove it, or change that."
                )
