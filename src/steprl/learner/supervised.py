"""Learning by imitation: the warm start that gives a policy something to be rewarded for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steprl.batch import micro_batches
from steprl.learner.torch_learner import TorchLearner
from steprl.types import Row


def imitate(learner: TorchLearner, rows: Sequence[Row]) -> dict[str, float]:
    """One optimiser step towards the recorded actions: cross-entropy, the mean over their tokens.

    The model's own distribution is fitted (temperature 1), however the actions were sampled. Clipping,
    warm-up and the refusal of bad steps are those of the reinforcement learner.

    Returns:
        ``loss`` in nats per token, ``tokens``, and what ``Optimiser.step`` says.
    """
    acted = [row for row in rows if len(row.action_positions)]
    tokens = sum(len(row.action_positions) for row in acted)
    learner.optimiser.clear()
    loss = 0.0
    for micro in micro_batches([len(row.ids) for row in acted], learner.config.token_budget):
        chosen = [acted[i] for i in micro]
        scores = learner.forward(chosen, temperatures=[np.ones_like(row.temperature) for row in chosen])
        share = -scores.logprobs.sum() / tokens
        share.backward()
        loss += share.item()
    return {"loss": loss, "tokens": float(tokens), **learner.optimiser.step(loss)}
