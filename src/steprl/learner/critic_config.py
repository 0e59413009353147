"""The critic's options, checked when they are made. No torch here: reading a recipe does not need it."""

from __future__ import annotations

from dataclasses import dataclass, field

from steprl.batch import Aggregation
from steprl.errors import ConfigError, unknown
from steprl.learner.config import LearnerConfig
from steprl.learner.loss_config import LossConfig

KINDS = ("separate", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """How values are learned. It is used when the estimator needs a critic.

    Args:
        kind: ``separate`` is a model of its own, which starts as a copy of the policy; ``shared`` is a head
            on the policy's last hidden state.
        detach: with ``shared``, keep the value loss out of the trunk, so that only the head learns from it.
        coefficient: with ``shared`` and without ``detach``, what the value loss counts beside the policy's.
        value_clip: how far a value may move from the old one before its loss stops pulling; None is off.
        warmup_iterations: iterations at the start in which only the critic learns.
        aggregation: how value losses add up. It has its own weights, since a step's value is one target.
        learner: its optimiser, precision and token budget. What belongs to a policy's loss is refused.

    Raises:
        ConfigError: an unknown kind, a value out of range, or an option without effect.
    """

    kind: str = "separate"
    detach: bool = False
    coefficient: float = 0.5
    value_clip: float | None = 0.5
    warmup_iterations: int = 0
    aggregation: Aggregation = field(default_factory=Aggregation)
    learner: LearnerConfig = field(default_factory=LearnerConfig)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(unknown("critic kind", self.kind, KINDS))
        _check("coefficient", self.coefficient, 0 < self.coefficient < float("inf"), "above 0")
        _check(
            "value_clip",
            self.value_clip,
            self.value_clip is None or self.value_clip > 0,
            "above 0, or left out",
        )
        _check("warmup_iterations", self.warmup_iterations, self.warmup_iterations >= 0, "0 (none) or above")
        if self.detach and self.kind != "shared":
            raise ConfigError(
                'critic.detach = true has an effect only with critic.kind = "shared": a separate critic has '
                "a "
                "trunk of its own. Remove it, or share the trunk."
            )
        if self.coefficient != 0.5 and not self.joint:
            raise ConfigError(
                f"critic.coefficient = {self.coefficient} has an effect only when policy and values train "
                f"the same "
                f'weights: critic.kind = "shared" without detach. Set critic.learner.lr instead.'
            )
        self._refuse_policy_options()

    @property
    def joint(self) -> bool:
        """True when one pass of the policy's trunk learns from both losses."""
        return self.kind == "shared" and not self.detach

    def _refuse_policy_options(self) -> None:
        ours, default = self.learner, LearnerConfig()
        for name in ("clip_low", "clip_high", "dual_clip"):
            if getattr(ours, name) != getattr(default, name):
                raise ConfigError(
                    f"critic.learner.{name} = {getattr(ours, name)} has no effect: it clips a policy's "
                    f"ratio. "
                    f"A critic has critic.value_clip."
                )
        if ours.loss != LossConfig():
            raise ConfigError(
                "critic.learner.loss has no effect: it is a policy's loss. A critic regresses its returns; "
                "see "
                "critic.value_clip and critic.aggregation."
            )


def _check(name: str, value: float | None, ok: bool, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"critic option {name} = {value!r} is out of range: it must be {allowed}.")
