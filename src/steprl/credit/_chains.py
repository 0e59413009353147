"""Credit along chains: what follows an action is the next one of the same agent, along ``parent``.

    A_u = r_u + γ·V_next − V_u + γ·λ·A_next                GAE, arXiv:1506.02438, eq. 16

over units u: the sampled tokens of all steps, or the steps. With V = 0 and λ = 1 that is the return to go
G_u = r_u + γ·G_next. Where several steps continue one (branches), *next* is their mean: branches are samples
of what follows, and the mean of samples is unbiased.

Shapes: T steps of a trajectory; U units of a step; n sampled tokens of a step; A action tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from steprl.credit._kl import k1
from steprl.credit._whiten import Unit
from steprl.types import Doubles, Scores, Trajectory


class _Onward(NamedTuple):
    """What follows a unit: reward of steps without sampled tokens, value and advantage of the next unit."""

    reward: float
    value: float
    advantage: float


def chain_parents(trajectory: Trajectory) -> list[int | None]:
    """For each step the one before it in its chain: the nearest ancestor of the same agent, or None."""
    steps, found = trajectory.steps, []
    for step in steps:
        parent = step.parent
        while parent is not None and steps[parent].agent != step.agent:
            parent = steps[parent].parent
        found.append(parent)
    return found


def unit_rewards(trajectory: Trajectory, unit: Unit, scores: Scores, kl_beta: float) -> list[Doubles]:
    """T arrays f64[U]: a step's reward on its last sampled token, or on the step, less β·k1 of its tokens.

    A step without sampled tokens has no unit; `along` moves its reward to the one before.
    """
    found = []
    for index, step in enumerate(trajectory.steps):
        assert step.reward is not None
        rewards_n = np.zeros(int(step.sampled_mask.sum()))
        if len(rewards_n):
            rewards_n[-1] = step.reward
            if kl_beta > 0:
                rewards_n -= kl_beta * k1(trajectory, index, scores)
        whole = unit == "step" and len(rewards_n) > 0
        found.append(rewards_n.sum(keepdims=True) if whole else rewards_n)
    return found


def along(
    trajectory: Trajectory,
    rewards: Sequence[Doubles],
    values: Sequence[Doubles],
    *,
    gamma: float,
    lam: float,
    after: float = 0.0,
) -> list[Doubles]:
    """Advantages, T arrays f64[U], from rewards and values of the same shapes.

    A summary is no transition of the environment: what follows its units is not discounted. ``after`` is the
    value of what comes after the last step recorded; chains that end elsewhere end there.
    """
    steps, before = trajectory.steps, chain_parents(trajectory)
    advantages: list[Doubles] = [np.zeros(0)] * len(steps)
    children: list[list[_Onward]] = [[] for _ in steps]
    for t in reversed(range(len(steps))):
        end = _Onward(0.0, after if t == len(steps) - 1 else 0.0, 0.0)
        onward = _mean(children[t]) if children[t] else end
        discount = 1.0 if steps[t].kind == "summary" else gamma
        found: list[float] = []
        for reward, value in zip(reversed(rewards[t].tolist()), reversed(values[t].tolist()), strict=True):
            ahead = discount * onward.value + discount * lam * onward.advantage
            found.append(reward + onward.reward + ahead - value)
            onward = _Onward(0.0, value, found[-1])
        if not found:
            moved = steps[t].reward
            assert moved is not None
            onward = onward._replace(reward=onward.reward + moved)
        advantages[t] = np.array(found[::-1])
        parent = before[t]
        if parent is not None:
            children[parent].append(onward)
    return advantages


def returns_to_go(trajectory: Trajectory, rewards: Sequence[Doubles], *, gamma: float) -> list[Doubles]:
    """``G_u = r_u + γ·G_next``, T arrays f64[U]."""
    return along(trajectory, rewards, [np.zeros_like(r) for r in rewards], gamma=gamma, lam=1.0)


def _mean(children: Sequence[_Onward]) -> _Onward:
    columns = zip(*children, strict=True)
    return _Onward(*(sum(column) / len(children) for column in columns))
