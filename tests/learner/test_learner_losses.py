"""The learner with every kind of loss: what its defaults compute to the last bit, what moves the policy, and
what no loss may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episodes import step, trajectory
from tiny_model import tiny_llama

from steprl.batch import rows
from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.loss_config import LossConfig
from steprl.learner.model import prepare, score_tokens
from steprl.learner.reference import Reference
from steprl.learner.torch_learner import TorchLearner
from steprl.types import MiniBatch, Sample
from steprl.weights.source import FullWeights

ENGINE = [-3.0, -3.5, -4.0]
STEPS = (step([1, 2], [3, 4, 5], logprobs=ENGINE), step([1, 2, 3, 4, 5, 6], [7, 8, 9], logprobs=ENGINE))
ROWS = rows([trajectory("a", STEPS), trajectory("b", [step([5] * 4, [1, 2, 3], logprobs=ENGINE)])])
"""One row of two merged steps and one of a single step."""

KINDS: list[dict[str, Any]] = [
    {},
    {"kind": "gspo"},
    {"kind": "step_product"},
    {"kind": "cispo"},
    {"importance": "truncate"},
    {"importance": "mask", "importance_unit": "step_product"},
    {"beta": 0.1},
    {"beta": 0.1, "kl": "k2", "kl_unbiased": True},
    {"entropy_bonus": 0.1},
]


def learner(loss: dict[str, Any] | None = None, **config: Any) -> TorchLearner:
    model = tiny_llama()
    made = LearnerConfig(**{"lr": 1e-2, **config}, loss=LossConfig(**loss or {}))
    return TorchLearner(model, made, source=FullWeights(model))


def batch(advantages: Sequence[float] = (1.0, -0.5), **changed: Any) -> MiniBatch:
    """Both rows, with old log-probabilities that are off by a little and a reference that is off by more."""
    rng = np.random.default_rng(0)
    scored = learner().score(ROWS)
    samples = [
        Sample(
            row=row,
            advantages=np.full(len(old), advantage),
            old_logprobs=old + 0.2 * rng.normal(size=len(old)),
            ref_logprobs=old + 0.5 * rng.normal(size=len(old)),
            loss_mask=np.ones(len(old), dtype=bool),
            weights=np.full(len(old), 0.5 / len(old)),
        )
        for row, old, advantage in zip(ROWS, scored, advantages, strict=True)
    ]
    samples = [replace(sample, **changed) for sample in samples]
    return MiniBatch(samples=tuple(samples), micro_batches=((0, 1),))


def weights_of(policy: TorchLearner) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in policy.model.state_dict().values()]


@pytest.mark.parametrize("cut", [((0, 1),), ((1,), (0,))])
@pytest.mark.parametrize("dual_clip", [None, 1.1])
def test_the_defaults_are_plain_ppo_bit_for_bit(cut: Any, dual_clip: float | None) -> None:
    """The formula, written out with nothing around it."""
    given = replace(batch(), micro_batches=cut)
    model = tiny_llama()
    prepare(model, gradient_checkpointing=False)
    total = 0.0
    for micro in cut:
        samples = [given.samples[i] for i in micro]
        found = score_tokens(
            model,
            [s.row.ids for s in samples],
            [s.row.action_positions for s in samples],
            [s.row.temperature for s in samples],
        )
        old, advantages, weights = (
            torch.from_numpy(np.concatenate([getattr(s, name) for s in samples]))
            for name in ("old_logprobs", "advantages", "weights")
        )
        ratio = (found.logprobs - old).clamp(-20, 20).exp()
        losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - 0.2, 1 + 0.2))
        if dual_clip is not None:
            losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
        loss = (weights * losses).sum()
        loss.backward()
        total += loss.item()

    policy = learner(dual_clip=dual_clip)
    seen: dict[str, torch.Tensor] = {}
    for name, p in policy.model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.__setitem__(name, p.grad.clone()))
    assert policy.update(given)["loss"] == total
    for name, p in model.named_parameters():
        assert p.grad is not None and torch.equal(seen[name], p.grad), name


@pytest.mark.parametrize("loss", KINDS, ids=str)
def test_what_does_not_train_is_never_looked_at(loss: dict[str, Any]) -> None:
    """Through ``exp`` a masked token could make 0·inf: its figures here are as wild as can be."""
    after = []
    for wild in (-3.0, -np.inf, np.nan, 1e30):
        masks = [np.array([True, False, True, True, True, False]), np.array([False, False, True])]
        samples = []
        for sample, mask in zip(batch().samples, masks, strict=True):
            figures = {
                name: np.where(mask, getattr(sample, name), wild) for name in ("old_logprobs", "ref_logprobs")
            }
            figures["advantages"] = np.where(mask, sample.advantages, 5.0)
            row = replace(sample.row, engine_logprobs=np.where(mask, sample.row.engine_logprobs, np.nan))
            samples.append(
                replace(sample, row=row, loss_mask=mask, weights=np.where(mask, 0.1, 0.0), **figures)
            )
        policy = learner(loss)
        figures = policy.update(MiniBatch(samples=tuple(samples), micro_batches=((0, 1),)))
        assert figures["optimiser_steps"] == 1 and figures["tokens"] == 5
        after.append(weights_of(policy))
    for other in after[1:]:
        assert all(map(torch.equal, after[0], other))


@pytest.mark.parametrize("loss", KINDS, ids=str)
def test_an_all_masked_micro_batch_adds_nothing(loss: dict[str, Any]) -> None:
    given = batch()
    silent = replace(
        given.samples[0], loss_mask=np.zeros(6, dtype=bool), weights=np.zeros(6), advantages=np.zeros(6)
    )
    alone, beside = learner(loss), learner(loss)
    alone.update(MiniBatch(samples=given.samples[1:], micro_batches=((0,),)))
    beside.update(MiniBatch(samples=(silent, given.samples[1]), micro_batches=((0,), (1,))))
    assert all(map(torch.equal, weights_of(alone), weights_of(beside)))


@pytest.mark.parametrize("loss", KINDS, ids=str)
def test_every_loss_raises_what_was_good_and_lowers_what_was_bad(loss: dict[str, Any]) -> None:
    policy = learner({**loss, **({"beta": 1e-3} if "beta" in loss else {})}, lr=1e-3)
    before = policy.score(ROWS)
    samples = tuple(replace(s, old_logprobs=old) for s, old in zip(batch().samples, before, strict=True))
    policy.update(MiniBatch(samples=samples, micro_batches=((0, 1),)))
    after = policy.score(ROWS)
    assert after[0].mean() > before[0].mean() and after[1].mean() < before[1].mean()


def test_importance_masks_change_no_denominator() -> None:
    """A token outside the bounds is lost; what the others count stays what it was."""
    base = batch(advantages=(1.0, 1.0))
    policy = learner({"importance": "mask", "importance_high": 1.5})
    scores = policy.score(ROWS)
    factors = [np.array([2.0, 1, 1, 1, 1, 1]), np.ones(3)]  # π_old/μ; the first token is outside
    samples = tuple(
        replace(
            s, old_logprobs=old, row=replace(s.row, engine_logprobs=old - np.log(factor).astype(np.float32))
        )
        for s, old, factor in zip(base.samples, scores, factors, strict=True)
    )
    figures = policy.update(MiniBatch(samples=samples, micro_batches=((0, 1),)))
    # nine tokens at ρ = 1, the six of the first row weighing 1/12 each: 11/12 is left, not 1
    assert figures["loss"] == pytest.approx(-11 / 12, rel=1e-5)
    assert figures["importance_bounded_share"] == pytest.approx(1 / 9)
    assert figures["importance_mean"] == pytest.approx(8 / 9, rel=1e-5)
    assert figures["max_importance"] == pytest.approx(1.0, rel=1e-5)


def test_a_kl_pulls_rows_without_advantage_to_the_reference() -> None:
    policy = learner({"beta": 1.0}, lr=1e-3)
    given = batch(advantages=(0.0, 0.0))
    kl = [policy.update(given)["ref_kl"] for _ in range(30)]
    assert kl[-1] < 0.5 * kl[0]


def test_an_entropy_bonus_raises_the_entropy() -> None:
    given = batch(advantages=(0.0, 0.0))
    policy = learner({"entropy_bonus": 1.0}, lr=1e-3)
    entropy = [policy.update(given)["entropy"] for _ in range(10)]
    assert entropy[-1] > entropy[0]
    assert learner().update(given)["rows"] == 0.0  # without it such rows are not even run


def test_what_the_loss_needs_and_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"beta = 0.5 needs log-probabilities of a reference"):
        learner({"beta": 0.5}).update(batch(ref_logprobs=None))
    silent = batch()
    samples = tuple(
        replace(s, row=replace(s.row, engine_logprobs=np.full(len(s.weights), np.nan)))
        for s in silent.samples
    )
    with pytest.raises(ConfigError, match="the engine gave no log-probability μ for 9 of 9 trained tokens"):
        learner({"importance": "full"}).update(replace(silent, samples=samples))


def test_a_reference_of_equal_weights_says_what_the_policy_says() -> None:
    policy = learner({"beta": 0.1})
    reference = Reference(tiny_llama(), policy.config)
    for ours, theirs in zip(reference.score(ROWS), policy.score(ROWS), strict=True):
        assert np.array_equal(ours, theirs)
    assert not any(p.requires_grad for p in reference.model.parameters())
    before = reference.score(ROWS)
    policy.update(batch())
    for then, now in zip(before, reference.score(ROWS), strict=True):
        assert np.array_equal(then, now)
    assert not np.array_equal(before[0], policy.score(ROWS)[0])


def test_a_step_ratio_does_not_depend_on_the_row() -> None:
    """The two steps of the merged row, as rows of their own: the same loss, and not that of one long step."""
    steps = [trajectory("a", STEPS)]
    merged, apart = rows(steps), rows(steps, merge=False)
    assert len(merged) == 1 and len(apart) == 2
    old = np.array([-3.0, -5.0, -4.0, -6.0, -2.0, -4.5])

    def loss(made: Sequence[Any], old_of: Sequence[np.ndarray[Any, Any]]) -> float:
        samples = tuple(
            Sample(
                row=row,
                advantages=np.ones(len(o)),
                old_logprobs=o,
                loss_mask=np.ones(len(o), dtype=bool),
                weights=np.full(len(o), 1 / 6),
            )
            for row, o in zip(made, old_of, strict=True)
        )
        cut = MiniBatch(samples=samples, micro_batches=tuple((i,) for i in range(len(samples))))
        return learner({"kind": "gspo"}, clip_low=1.0, clip_high=1e6).update(cut)["loss"]

    scored = learner().score(merged)[0]
    by_hand = -np.mean([np.exp((scored - old)[part].mean()) for part in (slice(0, 3), slice(3, 6))])
    assert loss(merged, [old]) == pytest.approx(by_hand, rel=1e-5)
    assert loss(apart, [old[:3], old[3:]]) == pytest.approx(by_hand, rel=1e-5)
