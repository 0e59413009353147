"""The derivative of a loss in the log-probabilities, for whoever has a policy of another kind than a model.

Shapes: M trained tokens.
"""

from __future__ import annotations

import torch

from steprl.learner.config import LearnerConfig
from steprl.learner.losses.objective import TrainedTokens, token_losses
from steprl.types import Doubles, Ints


def slopes(
    logprobs_M: Doubles,
    *,
    old_logprobs_M: Doubles,
    engine_logprobs_M: Doubles,
    advantages_M: Doubles,
    weights_M: Doubles,
    step_M: Ints,
    config: LearnerConfig,
) -> Doubles:
    """``d Σ w·l / d logπ``, f64[M], of the configured loss; ``step_M`` numbers the step of each token.

    Raises:
        ConfigError: the loss needs a reference.
    """
    learning_M = torch.tensor(logprobs_M, requires_grad=True)
    tokens = TrainedTokens(
        logprobs=learning_M,
        old_logprobs=torch.tensor(old_logprobs_M),
        advantages=torch.tensor(advantages_M),
        engine_logprobs=torch.tensor(engine_logprobs_M),
        step=torch.tensor(step_M, dtype=torch.int64),
        entropy=torch.zeros_like(learning_M),
    )
    objective = (torch.tensor(weights_M) * token_losses(tokens, config).losses).sum()
    (slopes_M,) = torch.autograd.grad(objective, learning_M)
    found: Doubles = slopes_M.numpy()
    return found
