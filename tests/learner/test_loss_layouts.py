"""Every loss and every critic gives the same loss and gradient for every layout of a mini-batch: cut into
micro-batches, some of them empty, or dealt to two ranks, padded with tokens and with rows, permuted, merged
or not. On a model that is float64 throughout: to 1e-10."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from episodes import step, trajectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_model import plain_model

from steprl.batch import RULES, Aggregation, ValueTargets, minibatches, rows
from steprl.learner.config import LearnerConfig
from steprl.learner.critic import Critic
from steprl.learner.critic_config import CriticConfig
from steprl.learner.loss_config import IMPORTANCE, KINDS, KL_KINDS, UNITS, LossConfig
from steprl.learner.torch_learner import TorchLearner
from steprl.types import Credits, MiniBatch, Row, Sample, Scores, Step, StepKey, Trajectory
from steprl.weights.source import FullWeights

TOLERANCE = 1e-10
STILL: dict[str, Any] = {"dtype": "float64", "lr": 1e-300, "max_grad_norm": float("inf")}
"""Options of an optimiser whose steps are too small to move anything from one example to the next."""

LOSSES: dict[str, dict[str, Any]] = {
    "ppo_clip": {},
    "dual clip and clip-higher": {"clip_high": 0.3, "dual_clip": 2.0},
    "gspo": {"loss": LossConfig(kind="gspo"), "clip_low": 0.05, "clip_high": 0.1},
    "gspo, dual clip": {"loss": LossConfig(kind="gspo"), "dual_clip": 1.05},
    "step_product": {"loss": LossConfig(kind="step_product")},
    "cispo": {"loss": LossConfig(kind="cispo", ratio_max=1.3)},
    "decoupled": {"loss": LossConfig(importance="full")},
    "decoupled by the step's mean": {"loss": LossConfig(importance="full", importance_unit="step_mean")},
    "decoupled by the step": {"loss": LossConfig(importance="full", importance_unit="step_product")},
    "truncated": {"loss": LossConfig(importance="truncate", importance_high=1.2)},
    "truncated by the step's mean": {
        "loss": LossConfig(importance="truncate", importance_unit="step_mean", importance_high=1.05)
    },
    "masked": {"loss": LossConfig(importance="mask", importance_high=1.2)},
    "masked by the step's mean": {
        "loss": LossConfig(importance="mask", importance_unit="step_mean", importance_low=0.8)
    },
    "masked by the step": {
        "loss": LossConfig(importance="mask", importance_unit="step_product", importance_high=1.1)
    },
    "k2": {"loss": LossConfig(beta=0.3, kl="k2")},
    "k2, unbiased": {"loss": LossConfig(beta=0.3, kl="k2", kl_unbiased=True)},
    "k3": {"loss": LossConfig(beta=0.3)},
    "k3, unbiased, with entropy": {"loss": LossConfig(beta=0.3, kl_unbiased=True, entropy_bonus=0.1)},
    "entropy": {"loss": LossConfig(entropy_bonus=0.1)},
    "gspo, masked": {"loss": LossConfig(kind="gspo", importance="mask", importance_high=1.2)},
    "everything by steps": {
        "loss": LossConfig(
            kind="step_product", importance="truncate", importance_unit="step_product", beta=0.1
        )
    },
}

Result = tuple[float, torch.Tensor]


def episodes(rng: np.random.Generator) -> list[Trajectory]:
    """Four trajectories of one to four steps, some continuing the last one's tokens, some rewritten."""
    made = []
    for uid in "abcd":
        steps: list[Step] = []
        for _ in range(rng.integers(1, 5)):
            tail = rng.integers(0, 24, rng.integers(1, 4)).tolist()
            kept = [*steps[-1].prompt_ids, *steps[-1].action_ids] if steps and rng.random() < 0.7 else []
            n = int(rng.integers(0, 5))
            sampled = rng.random(n) < 0.8
            logprobs = np.where(sampled, -3 + 0.4 * rng.normal(size=n), np.nan)
            ids = rng.integers(0, 24, n).tolist()
            steps.append(step([*kept, *tail], ids, sampled=sampled, logprobs=logprobs))
        made.append(trajectory(uid, steps))
    return made


def scored(trajectories: Sequence[Trajectory], rng: np.random.Generator) -> tuple[Credits, Scores]:
    """Any credits; what no loss may look at (tokens that do not train) is as wild as can be."""
    wild: dict[str, dict[StepKey, Any]] = {name: {} for name in ("old", "ref", "values")}
    advantages, returns, loss_mask = {}, {}, {}
    for one in trajectories:
        for index, each in enumerate(one.steps):
            key, n = StepKey(one.uid, index), len(each.action_ids)
            loss_mask[key] = each.sampled_mask & (rng.random(n) < 0.9)
            advantages[key] = np.where(loss_mask[key], rng.normal(size=n), 0.0)
            returns[key] = np.where(loss_mask[key], rng.normal(), np.nan)
            for name, values in (("old", -3.0), ("ref", -3.0), ("values", 0.0)):
                given_n = values + 0.4 * rng.normal(size=n)
                keep = loss_mask[key] if name != "values" else loss_mask[key] | (np.arange(n) == 0)
                wild[name][key] = np.where(keep, given_n, -np.inf).astype(np.float32)
    return (
        Credits(advantages=advantages, loss_mask=loss_mask, returns=returns),
        Scores(old_logprobs=wild["old"], ref_logprobs=wild["ref"], values=wild["values"]),
    )


def gradient_of(
    parameters: Iterable[torch.nn.Parameter], update: Callable[[], dict[str, float]], figure: str
) -> Result:
    """The loss that an update reports and the gradient that its optimiser sees (0 where there is none)."""
    of = list(parameters)
    seen: dict[int, torch.Tensor] = {}
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: seen.__setitem__(id(p), p.grad.flatten().clone()))
        for p in of
    ]
    figures = update()
    for hook in hooks:
        hook.remove()
    return figures[figure], torch.cat([seen.get(id(p), torch.zeros(p.numel()).double()) for p in of])


@cache
def policy(name: str) -> TorchLearner:
    model = plain_model()
    return TorchLearner(model, LearnerConfig(**STILL, **LOSSES[name]), source=FullWeights(model))


@cache
def critic(kind: str, value_clip: float | None) -> tuple[Critic, TorchLearner | None]:
    """A critic with a head that is not 0, and the policy's learner where that trains it too."""
    model = plain_model(seed=1)
    shared = {"separate": "separate", "detached": "shared", "joint": "shared"}[kind]
    config = CriticConfig(
        kind=shared, detach=kind == "detached", value_clip=value_clip, learner=LearnerConfig(**STILL)
    )
    made = Critic(model, config)
    with torch.no_grad():
        made.head.weight.copy_(torch.linspace(-0.5, 0.5, 12).double())
    if not made.joint:
        return made, None
    return made, TorchLearner(model, LearnerConfig(**STILL), source=FullWeights(model), critic=made)


def layouts_agree(result: Callable[[MiniBatch], Result], data: st.DataObject, unit: Any = "step") -> None:
    """Draw a batch and other layouts of it; compare."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    trajectories = episodes(rng)
    credits, scores = scored(trajectories, rng)
    aggregation = any_rule(data)

    def whole(made: list[Row]) -> MiniBatch | None:
        options: dict[str, Any] = {"count": 1, "token_budget": 1, "aggregation": aggregation}
        options["value_targets"] = ValueTargets(unit=unit, aggregation=aggregation)
        return next(minibatches(made, credits, scores, rng=np.random.default_rng(0), **options), None)

    apart, merged = whole(rows(trajectories, merge=False)), whole(rows(trajectories))
    if apart is None or merged is None:
        assert apart is merged is None
        return
    loss, gradient = result(apart)
    for parts in (cut(merged, data), dealt(merged, data)):
        found = [result(part) for part in parts]
        close(sum(x for x, _ in found), torch.stack([g for _, g in found]).sum(0), loss, gradient)


def any_rule(data: st.DataObject) -> Aggregation:
    rule = data.draw(st.sampled_from(sorted(RULES)))
    return Aggregation(rule=rule, max_tokens=20 if rule == "constant" else None)


def padding(sample: Sample) -> Sample:
    """A row to fill up with: it has the tokens of another, and neither a mask nor a weight."""
    off = np.zeros(len(sample.weights))
    given: dict[str, Any] = {"loss_mask": off > 0, "weights": off, "advantages": off + 7.0}
    if sample.value_weights is not None:
        given["value_weights"] = np.zeros(len(sample.value_weights))
    return replace(sample, **given)


def cut(batch: MiniBatch, data: st.DataObject) -> list[MiniBatch]:
    """The batch in any order and any micro-batches, with rows of padding and an empty micro-batch."""
    samples = (*batch.samples, *map(padding, data.draw(st.lists(st.sampled_from(batch.samples), max_size=2))))
    order = data.draw(st.permutations(range(len(samples))))
    edges = sorted(data.draw(st.sets(st.integers(0, len(order)), max_size=3)))
    parts = [tuple(map(int, part)) for part in np.split(np.array(order), edges)]
    return [MiniBatch(samples=samples, micro_batches=(*parts, ()))]


def dealt(batch: MiniBatch, data: st.DataObject) -> list[MiniBatch]:
    """The batch on two ranks, whose losses and gradients add up: each has some samples, perhaps none, with
    the weights of the whole. Both have as many micro-batches, some of them empty or nothing but padding."""
    first = data.draw(st.sets(st.integers(0, len(batch.samples) - 1)))
    one = [sample for i, sample in enumerate(batch.samples) if i in first]
    other = [sample for i, sample in enumerate(batch.samples) if i not in first]
    filled = tuple(other) + (padding(batch.samples[0]),)
    count = max(len(one), 2)
    singly = [(i,) for i in range(len(one))] + [()] * (count - len(one))
    at_once = [tuple(range(len(other))), (len(other),)] + [()] * (count - 2)
    return [
        MiniBatch(samples=tuple(one), micro_batches=tuple(singly)),
        MiniBatch(samples=filled, micro_batches=tuple(at_once)),
    ]


def close(loss: float, gradient: torch.Tensor, other: float, other_gradient: torch.Tensor) -> None:
    assert abs(loss - other) <= TOLERANCE * max(1.0, abs(other))
    assert (gradient - other_gradient).norm() <= TOLERANCE * max(1.0, float(other_gradient.norm()))


def test_every_option_of_the_loss_is_laid_out() -> None:
    """A loss that is added belongs into ``LOSSES``."""
    configs = [LearnerConfig(**given) for given in LOSSES.values()]
    losses = [config.loss for config in configs]
    assert {loss.kind for loss in losses} == set(KINDS)
    weighed = {(loss.importance, loss.importance_unit) for loss in losses if loss.importance != "off"}
    assert weighed == set(product(set(IMPORTANCE) - {"off"}, UNITS))
    assert {(x.kl, x.kl_unbiased) for x in losses if x.beta > 0} == set(product(KL_KINDS, (False, True)))
    assert any(loss.entropy_bonus for loss in losses) and any(config.dual_clip for config in configs)


FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", LOSSES)
@FEW
@given(data=st.data())
def test_the_layout_changes_no_loss(name: str, data: st.DataObject) -> None:
    learner = policy(name)

    def result(batch: MiniBatch) -> Result:
        return gradient_of(learner.model.parameters(), lambda: learner.update(batch), "loss")

    layouts_agree(result, data)


@pytest.mark.parametrize("unit", ["step", "token"])
@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("kind", ["separate", "detached", "joint"])
@FEW
@given(data=st.data())
def test_the_layout_changes_no_critic(
    kind: str, value_clip: float | None, unit: Any, data: st.DataObject
) -> None:
    made, learner = critic(kind, value_clip)

    def result(batch: MiniBatch) -> Result:
        if learner is not None:
            parameters = [*learner.model.parameters(), *made.head.parameters()]
            return gradient_of(parameters, lambda: learner.update(batch), "loss")
        parameters = [*made.trunk.parameters(), *made.head.parameters()]
        return gradient_of(parameters, lambda: made.update(batch), "value_loss")

    layouts_agree(result, data, unit)


def test_the_gradients_compared_are_not_0() -> None:
    rng = np.random.default_rng(5)
    trajectories = episodes(rng)
    credits, scores = scored(trajectories, rng)
    made = rows(trajectories)
    options: dict[str, Any] = {"count": 1, "token_budget": 99, "aggregation": Aggregation()}
    (batch,) = minibatches(made, credits, scores, rng=rng, value_targets=ValueTargets(), **options)
    seen = []
    for name in LOSSES:
        learner = policy(name)
        _, gradient = gradient_of(learner.model.parameters(), lambda one=learner: one.update(batch), "loss")
        seen.append(gradient)
        assert gradient.norm() > 1e-3, name
    different = torch.stack(seen)
    assert (torch.cdist(different, different) + torch.eye(len(seen)) > 1e-6).all()  # no loss is another
    free = replace(batch, samples=tuple(replace(s, advantages=s.advantages * 0) for s in batch.samples))
    joint, learner_of = critic("joint", 0.3)
    assert learner_of is not None
    _, gradient = gradient_of(joint.trunk.parameters(), lambda: learner_of.update(free), "loss")
    assert gradient.norm() > 1e-3  # without advantages the trunk learns from values
