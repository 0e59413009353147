"""From recorded groups to loss and gradient: every estimator teaches the same, in whatever order groups and
trajectories come, merged or not, cut, padded, on one rank or on two. In float64 throughout: to 1e-10."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from episodes import chained, grouped, step, trajectory
from hypothesis import given
from hypothesis import strategies as st
from test_loss_layouts import FEW, Result, any_rule, close, critic, cut, dealt, gradient_of, policy

from steprl.batch import Aggregation, ValueTargets, minibatches, rows
from steprl.credit import DrGrpo, Gae, Gigpo, Grpo, ReinforcePp, ReinforcePpBaseline, Rloo
from steprl.types import Estimator, MiniBatch, Scores, Step, StopReason, Trajectory

ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "grpo": Grpo,
    "dr_grpo": lambda: DrGrpo(truncated_in_statistics=False),
    "rloo": lambda: Rloo(kl_beta=0.1),
    "reinforce_pp token": lambda: ReinforcePp(gamma=0.9, kl_beta=0.1),
    "reinforce_pp step": lambda: ReinforcePp(credit="step", gamma=0.9, truncated_in_loss=False),
    "reinforce_pp_baseline": ReinforcePpBaseline,
    "gae token": lambda: Gae(gamma=0.9, lam=0.8, kl_beta=0.1),
    "gae step": lambda: Gae(credit="step", gamma=0.9, lam=0.8),
    "gigpo": Gigpo,
    "gigpo std": lambda: Gigpo(mode="mean_std_norm", omega=0.5, gamma=0.9),
}
REASONS = [*StopReason, StopReason.TERMINATED, StopReason.TERMINATED]


def recorded(rng: np.random.Generator) -> list[Trajectory]:
    """Two groups of three trajectories of one to three steps, some continuing the last one's tokens."""
    made = []
    for uid in ("g0", "g1", "g2", "h0", "h1", "h2"):
        steps: list[Step] = []
        for _ in range(rng.integers(1, 4)):
            kept = [*steps[-1].prompt_ids, *steps[-1].action_ids] if steps and rng.random() < 0.7 else []
            n = int(rng.integers(0, 4))
            steps.append(
                step(
                    [*kept, *rng.integers(0, 24, rng.integers(1, 4)).tolist()],
                    rng.integers(0, 24, n).tolist(),
                    sampled=rng.random(n) < 0.8,
                    reward=None if rng.random() < 0.03 else float(rng.choice([0.0, 0.0, 0.1, 1.0, -0.5])),
                    anchor=str(rng.choice(["hall", "cellar"])),
                    kind=str(rng.choice(["act", "act", "act", "summary"])),
                )
            )
        reason = REASONS[rng.integers(len(REASONS))]
        made.append(trajectory(uid, chained(*steps), group=uid[0], stop_reason=reason))
    return made


def scored(trajectories: Sequence[Trajectory], rng: np.random.Generator) -> Scores:
    """What models might say, with NaN at the tokens that were not sampled, as they do."""
    said: dict[str, dict[Any, Any]] = {"old": {}, "ref": {}, "values": {}}
    for one in trajectories:
        for index, each in enumerate(one.steps):
            for name, base in (("old", -3.0), ("ref", -3.0), ("values", 0.0)):
                given_A = base + 0.4 * rng.normal(size=len(each.action_ids))
                keep_A = each.sampled_mask | (name == "values") & (np.arange(len(given_A)) == 0)
                said[name][one.key(index)] = np.where(keep_A, given_A, np.nan).astype(np.float32)
    after = {one.uid: float(rng.normal()) for one in trajectories if one.stop_reason.bootstraps}
    return Scores(
        old_logprobs=said["old"], ref_logprobs=said["ref"], values=said["values"], bootstrap_values=after
    )


def taught(estimator: Estimator, batch: MiniBatch) -> Result:
    """Loss and gradient of the policy, and of the critic on its trunk where there is one."""
    if not isinstance(estimator, Gae):
        learner = policy("ppo_clip")
        return gradient_of(learner.model.parameters(), lambda: learner.update(batch), "loss")
    made, joint = critic("joint", 0.3)
    assert joint is not None
    parameters = [*joint.model.parameters(), *made.head.parameters()]
    return gradient_of(parameters, lambda: joint.update(batch), "loss")


@pytest.mark.parametrize("name", ESTIMATORS)
@FEW
@given(data=st.data())
def test_neither_order_nor_layout_changes_what_is_learned(name: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    trajectories = recorded(rng)
    scores, estimator, aggregation = scored(trajectories, rng), ESTIMATORS[name](), any_rule(data)
    targets = None
    if isinstance(estimator, Gae):
        targets = ValueTargets(unit=estimator.credit, aggregation=aggregation)

    def whole(members: Sequence[Trajectory], merge: bool) -> MiniBatch | None:
        """The mini-batch of a rollout batch in this order."""
        credits = estimator(grouped(*members), scores)
        made = rows([t for t in members if t.stop_reason.trains], merge=merge)
        options: dict[str, Any] = {"count": 1, "token_budget": 1, "aggregation": aggregation}
        options |= {"rng": np.random.default_rng(0), "value_targets": targets}
        return next(minibatches(made, credits, scores, **options), None)

    row_by_row = whole(trajectories, merge=False)
    other = whole(data.draw(st.permutations(trajectories)), merge=True)
    if row_by_row is None or other is None:
        assert row_by_row is other is None
        return
    loss, gradient = taught(estimator, row_by_row)
    for parts in (cut(other, data), dealt(other, data)):
        found = [taught(estimator, part) for part in parts]
        close(sum(x for x, _ in found), torch.stack([g for _, g in found]).sum(0), loss, gradient)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_something_is_learned(name: str) -> None:
    """The gradients that are compared are not 0."""
    estimator, seen = ESTIMATORS[name](), []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        trajectories = recorded(rng)
        scores = scored(trajectories, rng)
        credits = estimator(grouped(*trajectories), scores)
        made = rows([t for t in trajectories if t.stop_reason.trains])
        options: dict[str, Any] = {"aggregation": Aggregation(), "count": 1, "token_budget": 99}
        batch = next(minibatches(made, credits, scores, rng=rng, **options))
        seen.append(float(taught(estimator, batch)[1].norm()))
    assert sorted(seen)[2] > 1e-3
