"""What stands beside the surrogate: importance weights, the KL to a reference, the entropy bonus."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.loss_config import LossConfig
from steprl.learner.losses import TrainedTokens, importance_weights, k2, k3, kl_losses, token_losses

DOUBLE: dict[str, Any] = {"dtype": torch.float64}


def tokens(**given: Any) -> TrainedTokens:
    """Four tokens of two steps, all with advantage 1 and ρ = 1."""
    made = {
        "logprobs": torch.full((4,), -1.0, **DOUBLE),
        "old_logprobs": torch.full((4,), -1.0, **DOUBLE),
        "advantages": torch.ones(4, **DOUBLE),
        "engine_logprobs": torch.full((4,), math.nan, **DOUBLE),
        "step": torch.tensor([0, 0, 1, 1]),
        "entropy": torch.zeros(4, **DOUBLE),
    }
    return TrainedTokens(**{**made, **given})


# --- importance weights -------------------------------------------------------------------------------

OLD = torch.tensor([4.0, 0.5, 1.5, 0.25], **DOUBLE).log()
"""π_old/μ of four tokens, for an engine that gave each of them probability 1."""


@pytest.mark.parametrize(
    ("options", "weights", "bounded"),
    [
        ({"kind": "full"}, [4, 0.5, 1.5, 0.25], [0, 0, 0, 0]),
        ({"kind": "truncate"}, [2, 0.5, 1.5, 0.25], [1, 0, 0, 0]),
        ({"kind": "truncate", "low": 0.5}, [2, 0.5, 1.5, 0.5], [1, 0, 0, 1]),
        ({"kind": "mask"}, [0, 0.5, 1.5, 0.25], [1, 0, 0, 0]),
        ({"kind": "mask", "low": 0.5}, [0, 0.5, 1.5, 0], [1, 0, 0, 1]),
        ({"kind": "full", "unit": "step_product"}, [2, 2, 0.375, 0.375], [0, 0, 0, 0]),
        ({"kind": "full", "unit": "step_mean"}, [2**0.5, 2**0.5, 0.375**0.5, 0.375**0.5], [0, 0, 0, 0]),
        ({"kind": "mask", "unit": "step_mean", "low": 0.7}, [2**0.5, 2**0.5, 0, 0], [0, 0, 1, 1]),
    ],
)
def test_importance_weights(options: dict[str, Any], weights: list[float], bounded: list[int]) -> None:
    found, outside = importance_weights(OLD, torch.zeros(4), torch.tensor([0, 0, 1, 1]), **options)
    assert found.tolist() == pytest.approx(weights)
    assert outside.tolist() == [bool(one) for one in bounded]


def test_importance_weights_multiply_the_policy_loss_and_nothing_else() -> None:
    config = LearnerConfig(loss=LossConfig(importance="mask", beta=0.5, entropy_bonus=0.1))
    given = tokens(
        old_logprobs=OLD,
        logprobs=OLD.clone().requires_grad_(),
        engine_logprobs=torch.zeros(4, **DOUBLE),
        ref_logprobs=OLD - math.log(2),
        entropy=torch.full((4,), 3.0, **DOUBLE),
    )
    found = token_losses(given, config)
    penalty = 0.5 * (0.5 - 1 + math.log(2)) - 0.1 * 3.0
    # the masked token loses its policy loss; no other token gains by it
    assert found.losses.tolist() == pytest.approx([w + penalty for w in (-0.0, -0.5, -1.5, -0.25)])


def test_the_weight_is_a_constant() -> None:
    logprobs = torch.full((4,), -1.0, **DOUBLE).requires_grad_()
    config = LearnerConfig(loss=LossConfig(importance="full"))
    given = tokens(logprobs=logprobs, old_logprobs=logprobs.detach() + 0, engine_logprobs=-1 - OLD)
    token_losses(given, config).losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-4, -0.5, -1.5, -0.25])
    weights, _ = importance_weights(
        OLD.clone().requires_grad_(), torch.zeros(4), torch.tensor([0, 0, 1, 1]), kind="truncate"
    )
    assert not weights.requires_grad


def test_without_engine_logprobs_there_is_no_correction() -> None:
    config = LearnerConfig(loss=LossConfig(importance="truncate"))
    engine = torch.tensor([-1.0, math.nan, -1.0, -1.0], **DOUBLE)
    with pytest.raises(ConfigError, match="importance = 'truncate'.* for 1 of 4 trained tokens"):
        token_losses(tokens(engine_logprobs=engine), config)


# --- KL -----------------------------------------------------------------------------------------------


def test_values_and_slopes_of_the_estimators() -> None:
    logprob = torch.tensor([math.log(0.5)], **DOUBLE).requires_grad_()
    reference = torch.tensor([math.log(0.25)], **DOUBLE)
    assert k2(logprob, reference).item() == pytest.approx(0.5 * math.log(2) ** 2)
    assert k3(logprob, reference).item() == pytest.approx(0.5 - 1 + math.log(2))
    (slope,) = torch.autograd.grad(k2(logprob, reference).sum(), logprob)
    assert slope.item() == pytest.approx(math.log(2))
    (slope,) = torch.autograd.grad(k3(logprob, reference).sum(), logprob)
    assert slope.item() == pytest.approx(1 - 0.5)


def test_far_references_stay_finite() -> None:
    logprobs = torch.tensor([-500.0, 0.0], **DOUBLE).requires_grad_()
    found = k3(logprobs, torch.tensor([0.0, -500.0], **DOUBLE))
    found.sum().backward()
    assert torch.isfinite(found).all() and logprobs.grad is not None and torch.isfinite(logprobs.grad).all()


def expectation(kind: str, unbiased: bool, sampled_from: str) -> tuple[float, Tensor]:
    """Mean value and gradient (by logits) of an estimator over all tokens of a distribution."""
    logits = torch.tensor([0.3, -0.5, 1.1], **DOUBLE).requires_grad_()
    logprobs = logits.log_softmax(0)
    old = torch.tensor([0.5, 0.1, 0.4], **DOUBLE).log()
    reference = torch.tensor([0.2, 0.5, 0.3], **DOUBLE).log()
    weights = (old if sampled_from == "old" else logprobs.detach()).exp()
    value = (weights * kl_losses(logprobs, old, reference, kind=kind, unbiased=unbiased)).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return value.item(), gradient


def exact() -> tuple[float, Tensor]:
    logits = torch.tensor([0.3, -0.5, 1.1], **DOUBLE).requires_grad_()
    logprobs = logits.log_softmax(0)
    reference = torch.tensor([0.2, 0.5, 0.3], **DOUBLE).log()
    value = (logprobs.exp() * (logprobs - reference)).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return value.item(), gradient


def test_which_estimators_are_unbiased_is_found_by_enumeration() -> None:
    """The table in docs/algorithms/losses.md."""
    value, gradient = exact()
    unbiased = {}
    for kind in ("k2", "k3"):
        for corrected in (False, True):
            for sampled_from in ("new", "old"):
                if corrected and sampled_from == "new":
                    continue  # then ρ = 1 in value, and π_old would have to be π
                found, slope = expectation(kind, corrected, sampled_from)
                unbiased[kind, corrected, sampled_from] = (
                    abs(found - value) < 1e-12,
                    bool((slope - gradient).abs().max() < 1e-12),
                )
    assert unbiased == {
        ("k2", False, "new"): (False, True),
        ("k2", False, "old"): (False, False),
        ("k2", True, "old"): (False, True),
        ("k3", False, "new"): (True, False),
        ("k3", False, "old"): (False, False),
        ("k3", True, "old"): (True, True),
    }


def test_the_slope_of_plain_k3_is_that_of_the_other_kl() -> None:
    logits = torch.tensor([0.3, -0.5, 1.1], **DOUBLE).requires_grad_()
    reference = torch.tensor([0.2, 0.5, 0.3], **DOUBLE)
    (forward,) = torch.autograd.grad((reference * (reference.log() - logits.log_softmax(0))).sum(), logits)
    assert torch.allclose(expectation("k3", False, "new")[1], forward, atol=1e-12)


def test_a_kl_without_a_reference_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"beta = 0.1 needs log-probabilities of a reference"):
        token_losses(tokens(), LearnerConfig(loss=LossConfig(beta=0.1)))


# --- the sum ------------------------------------------------------------------------------------------


def test_no_trained_token_is_no_loss() -> None:
    config = LearnerConfig(loss=LossConfig(kind="gspo", beta=0.1, importance="mask", entropy_bonus=0.1))
    empty = {name: getattr(tokens(), name)[:0] for name in ("logprobs", "old_logprobs", "advantages")}
    empty |= {"engine_logprobs": OLD[:0], "ref_logprobs": OLD[:0], "entropy": OLD[:0]}
    given = replace(tokens(), **empty, step=torch.zeros(0, dtype=torch.int64))
    assert token_losses(given, config).losses.sum().item() == 0.0


def test_the_entropy_bonus_is_subtracted() -> None:
    entropy = torch.tensor([1.0, 2.0, 0.0, 0.5], **DOUBLE)
    found = token_losses(tokens(entropy=entropy), LearnerConfig(loss=LossConfig(entropy_bonus=0.1)))
    assert found.losses.tolist() == pytest.approx([-1.1, -1.2, -1.0, -1.05])
