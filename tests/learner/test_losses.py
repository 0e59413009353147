"""The clipped policy loss, token by token."""

from __future__ import annotations

import math

import pytest
import torch

from steprl.learner.losses import clipped, ppo_clip, ratios

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def loss_and_slope(log_ratio: float, advantage: float, **options: float) -> tuple[float, float]:
    """The loss of one token, and its derivative by the log-probability."""
    logprob = torch.tensor([log_ratio - 1.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0], dtype=torch.float64)
    loss = ppo_clip(logprob, old, torch.tensor([advantage], dtype=torch.float64), **CLIP, **options)
    loss.sum().backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.0, -2.0, 2.0, 2.0),
        (1.5, 2.0, -2.6, 0.0),  # already more likely than 1 + clip_high: nothing to gain
        (0.5, 2.0, -1.0, -1.0),  # less likely than before: the way back stays open
        (0.5, -2.0, 1.6, 0.0),
        (1.5, -2.0, 3.0, 3.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_each_side_of_the_clip(ratio: float, advantage: float, loss: float, slope: float) -> None:
    assert loss_and_slope(math.log(ratio), advantage) == pytest.approx((loss, slope))


def test_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    assert loss_and_slope(math.log(5), -2.0) == pytest.approx((10.0, 10.0))
    assert loss_and_slope(math.log(5), -2.0, dual_clip=3.0) == pytest.approx((6.0, 0.0))
    assert loss_and_slope(math.log(2), -2.0, dual_clip=3.0) == pytest.approx((4.0, 4.0))
    assert loss_and_slope(math.log(0.1), 2.0, dual_clip=3.0) == pytest.approx((-0.2, -0.2))


def test_ratios_far_out_stay_finite() -> None:
    far = torch.tensor([500.0, -500.0])
    assert torch.equal(ratios(far, torch.zeros(2)), torch.tensor([20.0, -20.0]).exp())


def test_clipped_is_where_the_slope_is_gone() -> None:
    for log_ratio in (-0.5, -0.1, 0.0, 0.2, 0.5):
        for advantage in (-1.0, 1.0):
            shares = clipped(torch.tensor([log_ratio]).exp(), torch.tensor([advantage]), **CLIP)
            assert shares.item() == (loss_and_slope(log_ratio, advantage)[1] == 0.0)
