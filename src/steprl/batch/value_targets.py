"""What a critic regresses on: the positions, returns, old values and weights of a row's value targets.

They have weights of their own: with one target per step, a long step counts no more than a short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from steprl.batch.aggregation import Aggregation
from steprl.batch.merge import prompt_ends
from steprl.types import Bools, Credits, Doubles, Row, Scores, StepKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTargets:
    """Which values learn, and how their losses add up.

    Args:
        unit: ``step`` regresses V(o_t), read after the last prompt token of each step that trains; ``token``
            the value before every trained token.
        aggregation: the rule over targets. Under ``step`` each step counts as one token.
    """

    unit: Literal["step", "token"] = "step"
    aggregation: Aggregation = field(default_factory=Aggregation)

    def weights(self, loss_mask: Mapping[StepKey, Bools]) -> dict[StepKey, Doubles]:
        """Weights of the steps of a whole mini-batch: f64[A] per token, or f64[1] per step."""
        if self.unit == "token":
            return self.aggregation.weights(loss_mask)
        return self.aggregation.weights({key: np.array([mask.any()]) for key, mask in loss_mask.items()})

    def of_row(
        self, row: Row, credits: Credits, scores: Scores, weights: Mapping[StepKey, Doubles]
    ) -> dict[str, Any]:
        """The fields of a `Sample` that a critic needs, all [V].

        Raises:
            ValueError: a target has no finite return or old value.
        """
        if credits.returns is None or scores.values is None:
            raise ValueError(
                "value targets need Credits.returns and Scores.values: an estimator with a critic"
            )
        positions: list[int] = []
        found: dict[str, list[float]] = {"returns": [], "old_values": [], "value_weights": []}
        for key, prompt_end, _ in prompt_ends(row):
            trained = np.flatnonzero(credits.loss_mask[key])
            if not len(trained):
                continue
            # a step's return stands on its tokens; its old value stands before the first of them
            at = trained if self.unit == "token" else trained[:1]
            old = scores.values[key][at if self.unit == "token" else [0]]
            returns = credits.returns[key][at]
            if not (np.isfinite(returns).all() and np.isfinite(old).all()):
                raise ValueError(f"{key}: a value target has no finite return or no finite old value")
            positions += (prompt_end + at).tolist() if self.unit == "token" else [prompt_end]
            found["returns"] += returns.tolist()
            found["old_values"] += old.tolist()
            found["value_weights"] += weights[key][at if self.unit == "token" else [0]].tolist()
        return {
            "value_positions": np.array(positions, dtype=np.int32),
            **{name: np.array(values, dtype=np.float32) for name, values in found.items()},
        }
