"""GiGPO: a trajectory against its group, and each step against others taken in the same state.

A_it = A_i + ω·A_t                          arXiv:2505.10978, section 4
A_i  = (R_i − mean_g) / F                   over the trajectories of the group
A_t  = (G_t − mean) / F,  G_t = Σ_k γ^{k−t} r_k      over the steps with the same (group, anchor)

F is 1 (``mean_norm``), or std + 1e-6 with ddof 1 (``mean_std_norm``), each time of what is compared. The
anchor of a step is the state in which it acted: what the environment called the state reached by the step
before (`Step.anchor` there); the first step acts in the task itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from steprl.credit._chains import returns_to_go, unit_rewards
from steprl.credit._compare import centred, compare, standardised
from steprl.credit._groups import GroupEstimator
from steprl.credit._options import amount, count, one_of, share
from steprl.credit._states import State, states
from steprl.types import Bools, Doubles, Need, Scores, StepKey, TrajectoryGroup


class Gigpo(GroupEstimator):
    """Group-in-group credit (arXiv:2505.10978).

    Args:
        mode: F of both comparisons: "mean_norm" (1) or "mean_std_norm" (the spread).
        omega: ω, the weight of the step's part.
        gamma: discount of step returns, per step.
        min_trajectories: from how many of a group's trajectories the steps in a state must come to be
            compared; below, A_t = 0. With 1, a trajectory's visits to one state are compared too.
        truncated_in_loss: train on trajectories that a limit of the run ended.
        truncated_in_statistics: let them count in both comparisons.
        kl_beta: refused above 0; it would enter the group's spread.

    Raises:
        ConfigError: an option has a value that it cannot have.
    """

    requires = frozenset({Need.GROUPS, Need.ANCHORS})

    def __init__(
        self,
        *,
        mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm",
        omega: float = 1.0,
        gamma: float = 1.0,
        min_trajectories: int = 2,
        truncated_in_loss: bool = True,
        truncated_in_statistics: bool = True,
        kl_beta: float = 0.0,
    ) -> None:
        super().__init__(
            truncated_in_loss=truncated_in_loss,
            truncated_in_statistics=truncated_in_statistics,
            kl_beta=kl_beta,
        )
        one_of("mode", mode, ("mean_norm", "mean_std_norm"))
        self._formula = centred if mode == "mean_norm" else standardised
        self.omega, self.gamma = amount("omega", omega), share("gamma", gamma)
        self.min_trajectories = count("min_trajectories", min_trajectories)
        self.smallest_group = max(2, min_trajectories)

    def advantages(self, rewards_N: Doubles, compared_N: Bools) -> Doubles:
        return self._formula(rewards_N, compared_N)

    def step_advantages(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> dict[StepKey, float]:
        found = super().step_advantages(groups, scores)
        for group in groups:
            for key, advantage in self._in_states(group).items():
                found[key] += self.omega * advantage
        return found

    def _in_states(self, group: TrajectoryGroup) -> dict[StepKey, float]:
        """``A_t`` of the steps that meet others in their state: acts with acts, summaries with summaries."""
        met: dict[tuple[str, str, State], list[tuple[StepKey, float, bool]]] = defaultdict(list)
        for trajectory in filter(self.admission.takes_part, group.trajectories):
            counts = self.admission.counts(trajectory)
            rewards = unit_rewards(trajectory, "step", Scores(), 0.0)
            returns = returns_to_go(trajectory, rewards, gamma=self.gamma)
            for index, state in enumerate(states(trajectory)):
                if state is not None and len(returns[index]):
                    step, key = trajectory.steps[index], trajectory.key(index)
                    met[step.agent, step.kind, state].append((key, returns[index].item(), counts))
        found: dict[StepKey, float] = {}
        for visits in met.values():
            keys, returns_N, counted_N = zip(*visits, strict=True)
            if len({key.trajectory for key, _, counts in visits if counts}) >= self.min_trajectories:
                advantages_N = compare(np.array(returns_N), np.array(counted_N), self._formula)
                found |= zip(keys, advantages_N.tolist(), strict=True)
        return found
