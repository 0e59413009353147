"""What a filter of trajectories does to the gradient, exactly: all groups there can be, by probability.

A policy chooses one of four episodes by a softmax; episodes 0, 1 and 3 are kept, 2 is taken out. RLOO has no
bias of its own, so what is found is the filter's.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from episodes import grouped, rewarded

from steprl.config import build
from steprl.credit import Rloo
from steprl.trainers.crediting import credits_of
from steprl.trainers.filtering.base import TrajectoryFilter
from steprl.trainers.filtering.choose import choose, filters_of
from steprl.trainers.recipe import Recipe
from steprl.types import Scores, Trajectory

P = np.array([0.1, 0.2, 0.3, 0.4])
REWARDS = np.array([1.0, 0.0, 0.25, 0.5])
KEPT = np.array([1.0, 1.0, 0.0, 1.0])
SIZE = 3


class NotTwo(TrajectoryFilter):
    """Takes episode 2 out."""

    def keeps(self, trajectory: Trajectory) -> bool:
        return trajectory.reward != REWARDS[2]


def gradient(of: Any) -> Any:
    """∇ of E[f] in the logits: p_k (f_k − E[f])."""
    return P * (of - P @ of)


def of_the_filter(in_statistics: bool) -> Any:
    """E[Σ A ∇log π] over all groups of three; the trained members of a group are added up."""
    filtering = {"keep": {"test_filtering_bias:NotTwo": True}, "in_statistics": in_statistics}
    recipe = build(Recipe, {"env": {"id": "courier"}, "filter": filtering})
    total = np.zeros(4)
    for members in product(range(4), repeat=SIZE):
        groups = grouped(*(rewarded(f"{n}:{k}", float(REWARDS[k])) for n, k in enumerate(members)))
        chosen = choose(recipe, filters_of(recipe), Rloo(), groups)
        credits = credits_of(recipe, Rloo(), chosen.groups, Scores(), untrained=chosen.untrained)
        for key, mask in credits.loss_mask.items():
            if mask.any():
                k = int(key.trajectory[-1])
                score = np.eye(4)[k] - P
                total += P[list(members)].prod() * credits.advantages[key][0] * score
    return total


def test_left_out_altogether_the_policy_gets_better_among_what_is_kept() -> None:
    """Along ∇E[R | kept], and not along ∇P(kept): being kept is neither rewarded nor punished."""
    share = P @ KEPT
    among_kept = (gradient(REWARDS * KEPT) - (P @ (REWARDS * KEPT)) / share * gradient(KEPT)) / share
    found = of_the_filter(in_statistics=False)
    scale = found[0] / among_kept[0]
    assert scale > 0 and found == pytest.approx(scale * among_kept)
    assert found[2] == pytest.approx(0.0), "the episode that is taken out becomes neither likelier nor less"


def test_in_statistics_being_kept_is_worth_as_much_as_it_is_better() -> None:
    """P(kept) ∇E[R | kept] + (E[R | kept] − E[R]) ∇P(kept), per member of the group."""
    share = P @ KEPT
    kept_mean = (P @ (REWARDS * KEPT)) / share
    among_kept = (gradient(REWARDS * KEPT) - kept_mean * gradient(KEPT)) / share
    expected = share * among_kept + (kept_mean - P @ REWARDS) * gradient(KEPT)
    # a group in which nobody is kept has nothing to train, so it is dropped and adds nothing either way
    assert of_the_filter(in_statistics=True) == pytest.approx(SIZE * expected)
    assert expected == pytest.approx(
        P * (KEPT * (REWARDS - P @ REWARDS) - P @ (KEPT * (REWARDS - P @ REWARDS)))
    )
