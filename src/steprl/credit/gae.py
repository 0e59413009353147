"""Generalised advantage estimation with a critic, per token or per step.

δ = r + γ·V_next − V,   A = δ + γ·λ·A_next,   returns = A + V,   then A whitened     arXiv:1506.02438, eq. 16

token    *next* is the next sampled token, across environment tokens and across steps; γ is per token
step     V is read at the last prompt token, V(o_t); *next* is the next step; γ is per step; the same number
         on every sampled token of the step          Agent-R1, arXiv:2511.14460

Truncated: what comes after the last step has the value ``scores.bootstrap_values`` says. Terminated: 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from steprl.credit._chains import along, unit_rewards
from steprl.credit._members import scored, spread
from steprl.credit._options import amount, count, one_of, share, switch
from steprl.credit._whiten import Unit, whitened_steps
from steprl.errors import ConfigError
from steprl.types import Credits, Doubles, Need, Scores, StepKey, Trajectory, TrajectoryGroup


class Gae:
    """A critic's advantages along the chain of each agent (arXiv:1506.02438).

    Args:
        credit: what gets one advantage each: "token" or "step".
        gamma: discount, per token or per step as ``credit`` says.
        lam: 1 trusts the rewards alone, 0 trusts the critic after one unit.
        whiten: measure advantages by mean and spread of the batch; returns never are.
        values: who says what a state is worth: "critic", or "rollout", the mean of ``continuations`` fresh
            episodes from it (VinePPO, arXiv:2410.01679), by step only.
        kl_beta: r_j is less ``kl_beta`` · (logπ_old − logπ_ref) of each token; above 0 it needs a reference.

    Raises:
        ConfigError: an option has a value that it cannot have.
    """

    requires: frozenset[Need] = frozenset({Need.CRITIC})

    def __init__(
        self,
        *,
        credit: Unit = "token",
        gamma: float = 1.0,
        lam: float = 1.0,
        whiten: bool = True,
        values: Literal["critic", "rollout"] = "critic",
        continuations: int = 4,
        kl_beta: float = 0.0,
    ) -> None:
        one_of("credit", credit, ("token", "step"))
        self.credit = credit
        self.gamma = share("gamma", gamma)
        self.lam = share("lam", lam)
        self.whiten = switch("whiten", whiten)
        self.kl_beta = amount("kl_beta", kl_beta)
        if one_of("values", values, ("critic", "rollout")) == "rollout":
            if credit == "token" or self.gamma < 1 or self.kl_beta > 0:
                raise ConfigError('values = "rollout" need credit = "step", gamma = 1 and kl_beta = 0')
            self.requires = frozenset({Need.SNAPSHOTS})
        elif continuations != 4:
            raise ConfigError(f'continuations = {continuations} has no effect without values = "rollout"')
        self.continuations = count("continuations", continuations)
        if self.kl_beta > 0:
            self.requires = self.requires | {Need.REFERENCE}

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        """Advantages, and returns: with token credit at the sampled tokens, with step credit the step's
        return at every action token, ``returns[key][0]`` being the target of V(o_t).

        Raises:
            ConfigError: the scores lack a value that is needed.
        """
        units: dict[StepKey, Doubles] = {}
        returns: dict[StepKey, Doubles] = {}
        for trajectory in (t for group in groups for t in group.trajectories if scored(t)):
            values = [self._values(trajectory, index, scores) for index in range(len(trajectory.steps))]
            rewards = unit_rewards(trajectory, self.credit, scores, self.kl_beta)
            ahead = _after(trajectory, scores) if any(map(len, values)) else 0.0
            found = along(trajectory, rewards, values, gamma=self.gamma, lam=self.lam, after=ahead)
            for index, step in enumerate(trajectory.steps):
                key, advantages_U = trajectory.key(index), found[index]
                units[key] = advantages_U
                returns[key] = np.zeros(len(step.action_ids))
                everywhere = self.credit == "step" and len(advantages_U) > 0
                where = slice(None) if everywhere else step.sampled_mask
                returns[key][where] = advantages_U + values[index]
        if self.whiten:
            units = whitened_steps(units, {key.trajectory for key in units}, self.credit)
        return spread(groups, units, returns)

    def _values(self, trajectory: Trajectory, index: int, scores: Scores) -> Doubles:
        """f64[U] of a step: before each sampled token, or V(o_t); none where no token was sampled."""
        key, sampled = trajectory.key(index), trajectory.steps[index].sampled_mask
        if not sampled.any():
            return np.zeros(0)
        if scores.values is None or key not in scores.values:
            raise ConfigError(
                f"gae needs a value of every step, of a critic: step {index} of {trajectory.uid}"
            )
        values_A = np.asarray(scores.values[key], dtype=np.float64)
        return values_A[:1] if self.credit == "step" else values_A[sampled]


def _after(trajectory: Trajectory, scores: Scores) -> float:
    """V(o_{T+1}) of a truncated trajectory; 0 after the task's own end."""
    if not trajectory.stop_reason.bootstraps:
        return 0.0
    known = scores.bootstrap_values or {}
    if trajectory.uid not in known:
        raise ConfigError(
            f"{trajectory.uid} was truncated ({trajectory.stop_reason}), and scores.bootstrap_values has no "
            f"value of what comes after: that of its final prompt, or else after its last token."
        )
    return float(known[trajectory.uid])
