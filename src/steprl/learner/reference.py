"""The reference policy of a KL: weights that stay as they are, and what they say about recorded tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steprl.learner.config import LearnerConfig
from steprl.learner.model import prepare, score_tokens
from steprl.learner.scoring import score_rows
from steprl.types import Floats, Row


class Reference:
    """A frozen model that scores rows as the learner does, so that equal weights give a KL of 0.

    It is a model of its own: full training changes every weight of the policy, so nothing can be shared once
    it has begun. That costs the weights once more, without gradients or optimiser state. Until the policy's
    first optimiser step a reference that is the start model says what the policy says, and need not be asked.

    Args:
        model: used as it is given, on the device it is on; must not be the policy's own.
        config: the policy's, for ``dtype`` and ``token_budget``.
    """

    def __init__(self, model: PreTrainedModel, config: LearnerConfig) -> None:
        self.model = model
        self.config = config
        torch.nn.Module.to(model, torch.float64 if config.dtype == "float64" else torch.float32)
        model.requires_grad_(False)
        prepare(model, gradient_checkpointing=False)

    def score(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities f32[N] of each row's action tokens under the reference.

        Raises:
            ConfigError: a token was sampled with temperature 0.
        """
        return score_rows(rows, self.config.token_budget, self._forward)

    def _forward(self, rows: Sequence[Row]) -> Tensor:
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            return score_tokens(
                self.model,
                [row.ids for row in rows],
                [row.action_positions for row in rows],
                [row.temperature for row in rows],
            ).logprobs
