"""Losses whose ratio belongs to a step, and CISPO: values and slopes by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from steprl.learner.losses import cispo, gspo, ppo_clip, step_product

CLIP = {"clip_low": 0.2, "clip_high": 0.2}
STEPS = torch.tensor([0, 1, 0, 1, 1])
"""Two steps whose tokens are not in order: three of step 1, two of step 0."""


def tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def run(loss: Callable[[Tensor], Tensor], log_ratios: Sequence[float]) -> tuple[list[float], list[float]]:
    """Losses per token, and the slope of their sum by each log-probability (old ones are 0)."""
    logprobs = tensor(log_ratios).requires_grad_()
    losses = loss(logprobs)
    losses.sum().backward()
    assert logprobs.grad is not None
    return losses.tolist(), logprobs.grad.tolist()


def test_gspo_has_the_geometric_mean_of_the_step() -> None:
    log_ratios = [0.1, -0.3, 0.05, 0.0, 0.0]
    s0, s1 = math.exp(0.075), math.exp(-0.1)
    losses, slopes = run(
        lambda p: gspo(p, torch.zeros(5), tensor([2, -1, 2, -1, -1]), STEPS, **CLIP), log_ratios
    )
    assert losses == pytest.approx([-2 * s0, s1, -2 * s0, s1, s1])
    assert slopes == pytest.approx([-2 * s0, s1, -2 * s0, s1, s1])


def test_gspo_clips_a_step_as_a_whole() -> None:
    # step 0: mean 0.25, beyond 1.2 although one of its tokens is not; step 1: mean −0.1, within
    log_ratios = [0.5, -0.3, 0.0, 0.0, 0.0]
    losses, slopes = run(lambda p: gspo(p, torch.zeros(5), tensor([1] * 5), STEPS, **CLIP), log_ratios)
    assert [losses[0], losses[2]] == pytest.approx([-1.2, -1.2])
    assert [slopes[0], slopes[2]] == [0, 0]
    assert slopes[1] == pytest.approx(-math.exp(-0.1))


def test_gspo_is_the_gradient_of_the_papers_objective_when_advantages_are_the_steps() -> None:
    """With weights 1/n, Σ w·l is −A·s, and its slope by a token is −A·s/n."""
    log_ratios, advantages = [0.05, -0.1, 0.02, 0.08, -0.03], [2.0, -1.0, 2.0, -1.0, -1.0]
    counts = tensor([2, 3, 2, 3, 3])
    _, slopes = run(lambda p: gspo(p, torch.zeros(5), tensor(advantages), STEPS, **CLIP) / counts, log_ratios)
    logprobs = tensor(log_ratios).requires_grad_()
    s = [(logprobs[STEPS == k].mean()).exp() for k in (0, 1)]
    (-2 * s[0] + s[1]).backward()
    assert logprobs.grad is not None
    assert slopes == pytest.approx(logprobs.grad.tolist())


def test_step_product_multiplies_over_the_step() -> None:
    log_ratios = [0.1, -0.3, 0.05, 0.1, 0.05]
    r0, r1 = math.exp(0.15), math.exp(-0.15)
    losses, slopes = run(
        lambda p: step_product(p, torch.zeros(5), tensor([2, -1, 2, -1, -1]), STEPS, **CLIP), log_ratios
    )
    assert losses == pytest.approx([-2 * r0, r1, -2 * r0, r1, r1])
    assert slopes == pytest.approx([-4 * r0, 3 * r1, -4 * r0, 3 * r1, 3 * r1])  # each token is in all losses


def test_step_product_under_dual_clip() -> None:
    log_ratios = [1.0, 0.0, 1.0, 0.0, 0.0]
    losses, slopes = run(
        lambda p: step_product(p, torch.zeros(5), tensor([-1] * 5), STEPS, **CLIP, dual_clip=3.0), log_ratios
    )
    assert losses == pytest.approx([3, 1, 3, 1, 1])
    assert slopes == pytest.approx([0, 3, 0, 3, 3])


@pytest.mark.parametrize("loss", [gspo, step_product])
def test_a_step_of_one_token_is_plain_ppo(loss: Callable[..., Tensor]) -> None:
    old, advantages = tensor([-1, -2, -3, -1, -2]), tensor([1, -1, 2, -2, 1])
    given = (tensor([-1.1, -1.6, -3.5, -0.9, -2.0]), old, advantages)
    ours = loss(*given, torch.arange(5), **CLIP)
    assert torch.allclose(ours, ppo_clip(*given, **CLIP), rtol=1e-14)


@pytest.mark.parametrize("loss", [gspo, step_product])
def test_ratios_of_steps_stay_finite(loss: Callable[..., Tensor]) -> None:
    losses, slopes = run(
        lambda p: loss(p, torch.zeros(5), tensor([-1] * 5), STEPS, **CLIP), [300.0, -300, 0, 0, 0]
    )
    assert all(map(math.isfinite, [*losses, *slopes]))
    assert losses[0] == pytest.approx(math.exp(20))


def test_cispo_keeps_every_gradient_and_bounds_its_weight() -> None:
    logprobs, old = tensor([-1.0, -1.0, -2.0]).requires_grad_(), tensor([-1.0, -3.0, -1.0])
    losses = cispo(logprobs, old, tensor([2, 1, -1]), ratio_max=1.5)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([2.0, 1.5, -2 * math.exp(-1)])
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-2.0, -1.5, math.exp(-1)])
