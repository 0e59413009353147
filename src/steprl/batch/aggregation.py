"""The aggregation rule as an explicit weight per token, over the global mini-batch.

A learner that minimises ``Σ w·l`` and divides by nothing gets the same loss for every cut into
micro-batches, ranks, padding or merged rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from steprl.errors import ConfigError, unknown
from steprl.types import Bools, Doubles, StepKey


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """What a denominator can be made of. Only trained tokens, and steps and trajectories that have some."""

    tokens: int
    steps: int
    trajectories: int
    tokens_of_trajectory: int
    steps_of_trajectory: int
    tokens_of_step: int
    max_tokens: int


RULES: Mapping[str, Callable[[_Counts], int]] = {
    "token_mean": lambda n: n.tokens,
    "seq_mean_token_mean": lambda n: n.steps * n.tokens_of_step,
    "seq_mean_token_sum": lambda n: n.steps,
    "traj_mean_token_mean": lambda n: n.trajectories * n.tokens_of_trajectory,
    "traj_mean_step_mean": lambda n: n.trajectories * n.steps_of_trajectory * n.tokens_of_step,
    "traj_mean_token_sum": lambda n: n.trajectories,
    "constant": lambda n: n.trajectories * n.max_tokens,
}
"""Rule → 1/w: the denominator of a trained token's weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How token losses add up to the loss of a mini-batch.

    Args:
        rule: one of ``RULES``. The default lets every trajectory count the same, however long.
        max_tokens: ``L_max`` per trajectory, for ``constant`` only (Dr. GRPO, arXiv:2503.20783).

    Raises:
        ConfigError: an unknown rule, or ``max_tokens`` missing, not positive, or without use.
    """

    rule: str = "traj_mean_token_mean"
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(unknown("aggregation rule", self.rule, RULES))
        if self.rule == "constant":
            if self.max_tokens is None or self.max_tokens < 1:
                raise ConfigError(
                    f"aggregation rule 'constant' divides by max_tokens, got {self.max_tokens}. "
                    f"Set it to the most action tokens a trajectory can have."
                )
        elif self.max_tokens is not None:
            raise ConfigError(
                f"max_tokens = {self.max_tokens} has no effect under the aggregation rule '{self.rule}'. "
                f"Remove it, or use the rule 'constant'."
            )

    def weights(self, loss_mask: Mapping[StepKey, Bools]) -> dict[StepKey, Doubles]:
        """Weight f64[A] of every token of every step given, which together are the whole mini-batch.

        A token outside the mask has weight 0. Steps and trajectories without a trained token count
        in no denominator.
        """
        tokens_of_step = {key: int(mask.sum()) for key, mask in loss_mask.items()}
        tokens_of_trajectory: Counter[str] = Counter()
        steps_of_trajectory: Counter[str] = Counter()
        for key, tokens in tokens_of_step.items():
            if tokens:
                tokens_of_trajectory[key.trajectory] += tokens
                steps_of_trajectory[key.trajectory] += 1
        tokens, steps = tokens_of_trajectory.total(), steps_of_trajectory.total()
        weights: dict[StepKey, Doubles] = {}
        for key, mask in loss_mask.items():
            weights[key] = np.zeros(len(mask), dtype=np.float64)
            if tokens_of_step[key]:
                weights[key][mask] = 1.0 / RULES[self.rule](
                    _Counts(
                        tokens=tokens,
                        steps=steps,
                        trajectories=len(tokens_of_trajectory),
                        tokens_of_trajectory=tokens_of_trajectory[key.trajectory],
                        steps_of_trajectory=steps_of_trajectory[key.trajectory],
                        tokens_of_step=tokens_of_step[key],
                        max_tokens=self.max_tokens or 0,
                    )
                )
        return weights
