"""Imitation: the mean cross-entropy of recorded actions, through the same optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from episodes import step, trajectory
from tiny_model import tiny_llama

from steprl.batch import rows
from steprl.learner.config import LearnerConfig
from steprl.learner.supervised import imitate
from steprl.learner.torch_learner import TorchLearner
from steprl.types import Sampling
from steprl.weights.source import FullWeights

SHOWN = rows(
    [
        trajectory("a", [step([1, 2, 3], [4]), step([9], [5, 6], sampling=Sampling(temperature=0.0))]),
        trajectory("b", [step([7], [8, 9, 10, 11, 12])]),
    ]
)


def learner(**config: float) -> TorchLearner:
    model = tiny_llama()
    return TorchLearner(model, LearnerConfig(**config), source=FullWeights(model))


def test_the_loss_is_the_mean_over_action_tokens() -> None:
    model = tiny_llama()
    with torch.no_grad():
        per_token = [
            -model(input_ids=torch.tensor(row.ids[None].astype(np.int64)))
            .logits[0, p - 1]
            .log_softmax(-1)[row.ids[p]]
            for row in SHOWN
            for p in row.action_positions.tolist()
        ]
    assert imitate(learner(), SHOWN)["loss"] == pytest.approx(float(np.mean(per_token)), rel=1e-5)
    assert imitate(learner(), SHOWN)["tokens"] == len(per_token) == 8


@pytest.mark.parametrize("token_budget", [1, 9])
def test_the_budget_changes_nothing_but_memory(token_budget: int) -> None:
    whole, cut = imitate(learner(), SHOWN), imitate(learner(token_budget=token_budget), SHOWN)
    assert cut == pytest.approx(whole, rel=1e-4)


def test_what_is_shown_is_learned() -> None:
    policy = learner(lr=1e-2)
    losses = [imitate(policy, SHOWN)["loss"] for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]


def test_nothing_shown_is_no_step() -> None:
    assert imitate(learner(), []) == {
        "loss": 0.0,
        "tokens": 0.0,
        "grad_norm": 0.0,
        "lr": 1e-5,
        "optimiser_steps": 0.0,
        "skipped_steps": 0.0,
    }
