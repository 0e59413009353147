"""REINFORCE++: the return to go of each token, or each step, whitened over the whole batch.

token    G_j = r_j + γ·G_next     over the sampled tokens of the trajectory, across steps
step     G_t = r_t + γ·G_{t+1}    the same number on every sampled token of step t
         A   = whitened(G)        over the tokens, or the steps, of the batch

arXiv:2501.03262, section 3. Chains run on across steps, so that the first step of a trajectory that is
rewarded for its outcome gets the outcome. No critic, no groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from steprl.credit._chains import returns_to_go, unit_rewards
from steprl.credit._members import Admission, spread
from steprl.credit._options import amount, one_of, share, switch
from steprl.credit._whiten import Unit, whitened_steps
from steprl.types import Credits, Doubles, Need, Scores, StepKey, TrajectoryGroup


class ReinforcePp:
    """Whitened returns to go (arXiv:2501.03262).

    Args:
        credit: what gets one return each: "token" or "step".
        gamma: discount, per token or per step as ``credit`` says.
        whiten: measure by mean and spread of the batch; without, A = G.
        kl_beta: r_j is less ``kl_beta`` · (logπ_old − logπ_ref) of each token; above 0 it needs a reference.
        truncated_in_loss: train on trajectories that a limit of the run ended.
        truncated_in_statistics: let them count in mean and spread.

    Raises:
        ConfigError: an option has a value that it cannot have.
    """

    requires: frozenset[Need] = frozenset()

    def __init__(
        self,
        *,
        credit: Unit = "token",
        gamma: float = 1.0,
        whiten: bool = True,
        kl_beta: float = 0.0,
        truncated_in_loss: bool = True,
        truncated_in_statistics: bool = True,
    ) -> None:
        one_of("credit", credit, ("token", "step"))
        self.credit = credit
        self.gamma = share("gamma", gamma)
        self.whiten = switch("whiten", whiten)
        self.kl_beta = amount("kl_beta", kl_beta)
        self.admission = Admission(
            truncated_in_loss=truncated_in_loss, truncated_in_statistics=truncated_in_statistics
        )
        if self.kl_beta > 0:
            self.requires = self.requires | {Need.REFERENCE}

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        """Credits for every step of every trajectory given; ``scores`` matter only with ``kl_beta``."""
        members = [t for group in groups for t in group.trajectories if self.admission.takes_part(t)]
        units: dict[StepKey, Doubles] = {}
        for trajectory in members:
            rewards = unit_rewards(trajectory, self.credit, scores, self.kl_beta)
            for index, returns_U in enumerate(returns_to_go(trajectory, rewards, gamma=self.gamma)):
                units[trajectory.key(index)] = returns_U
        if self.whiten:
            counted = {t.uid for t in members if self.admission.counts(t)}
            units = whitened_steps(units, counted, self.credit)
        trained = {t.uid for t in members if self.admission.trains(t)}
        return spread(groups, {key: units[key] for key in units if key.trajectory in trained})
