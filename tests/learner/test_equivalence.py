"""The same loss and gradient for every layout of a mini-batch: merged or not, padded, cut, permuted."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from episodes import grouped, step, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import tiny_llama

from steprl.batch import RULES, Aggregation, minibatches, rows
from steprl.learner.config import LearnerConfig
from steprl.learner.torch_learner import TorchLearner
from steprl.types import Credits, MiniBatch, Scores, Step, StepKey, Trajectory
from steprl.weights.source import FullWeights

TOLERANCE = 1e-6  # stock models compute norms and softmax in float32, whatever their own precision


@cache
def learner() -> TorchLearner:
    """A learner in float64 whose step size is too small to move it from one example to the next."""
    model = tiny_llama(dtype=torch.float64)
    config = LearnerConfig(dtype="float64", lr=1e-300, max_grad_norm=float("inf"))
    return TorchLearner(model, config, source=FullWeights(model))


def episodes(rng: np.random.Generator) -> list[Trajectory]:
    """Four trajectories of one to five steps, some continuing the last one's tokens, some rewritten."""
    made = []
    for uid in "abcd":
        steps: list[Step] = []
        for _ in range(rng.integers(1, 6)):
            tail = rng.integers(0, 64, rng.integers(1, 5)).tolist()
            kept = [*steps[-1].prompt_ids, *steps[-1].action_ids] if steps and rng.random() < 0.7 else []
            action = rng.integers(0, 64, rng.integers(0, 5)).tolist()
            steps.append(step([*kept, *tail], action, sampled=rng.random(len(action)) < 0.8))
        made.append(trajectory(uid, steps))
    return made


def credits_of(trajectories: list[Trajectory], rng: np.random.Generator) -> tuple[Credits, Scores]:
    """Any advantages, some sampled tokens left out, and old log-probabilities some way off."""
    advantages, loss_mask, old = {}, {}, {}
    for one in trajectories:
        for index, each in enumerate(one.steps):
            n = len(each.action_ids)
            key = StepKey(one.uid, index)
            advantages[key] = rng.normal(size=n)
            loss_mask[key] = each.sampled_mask & (rng.random(n) < 0.9)
            old[key] = (-4 + rng.normal(size=n)).astype(np.float32)
    return Credits(advantages=advantages, loss_mask=loss_mask), Scores(old_logprobs=old)


def loss_and_gradient(batch: MiniBatch) -> tuple[float, torch.Tensor]:
    """What a real update computes: its loss, and the gradient that its optimiser sees."""
    policy = learner()
    gradients: dict[torch.Tensor, torch.Tensor] = {}

    def keep(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        gradients[parameter] = parameter.grad.flatten().clone()  # the sum so far: the last call has it all

    hooks = [p.register_post_accumulate_grad_hook(keep) for p in policy.model.parameters()]
    figures = policy.update(batch)
    for hook in hooks:
        hook.remove()
    return figures["loss"], torch.cat([gradients[p] for p in policy.model.parameters()])


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rule=st.sampled_from(sorted(RULES)), data=st.data())
def test_the_layout_changes_neither_loss_nor_gradient(seed: int, rule: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    trajectories = episodes(rng)
    credits, scores = credits_of(trajectories, rng)
    aggregation = Aggregation(rule=rule, max_tokens=20 if rule == "constant" else None)

    def whole(merge: bool) -> MiniBatch | None:
        made = rows(trajectories, merge=merge)
        options = {"aggregation": aggregation, "count": 1, "token_budget": 1}
        return next(minibatches(made, credits, scores, rng=np.random.default_rng(0), **options), None)

    row_by_row, merged = whole(False), whole(True)
    if row_by_row is None or merged is None:
        assert row_by_row is merged is None
        return
    loss, gradient = loss_and_gradient(row_by_row)
    order = data.draw(st.permutations(range(len(merged.samples))))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=3)))
    parts = [tuple(part) for part in np.split(order, cuts) if len(part)]
    other_loss, other_gradient = loss_and_gradient(
        MiniBatch(samples=merged.samples, micro_batches=tuple(tuple(map(int, part)) for part in parts))
    )
    assert abs(other_loss - loss) <= TOLERANCE * max(1.0, abs(loss))
    assert (other_gradient - gradient).norm() <= TOLERANCE * gradient.norm()


def test_merged_rows_are_fewer_and_score_the_same() -> None:
    trajectories = episodes(np.random.default_rng(3))
    assert len(grouped(*trajectories)) == 1
    merged, apart = rows(trajectories), rows(trajectories, merge=False)
    assert len(merged) < len(apart)
    np.testing.assert_allclose(
        np.concatenate(learner().score(merged)), np.concatenate(learner().score(apart)), rtol=1e-5
    )
