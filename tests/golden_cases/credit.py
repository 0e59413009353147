"""Golden cases of credit assignment: rows become steps of trajectories, and estimators are asked.

Shapes: N rows of a case, L padded tokens of a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from golden_cases.common import Array, Case, Pairs, Skip, demand
from steprl.credit import DrGrpo, Gae, Gigpo, Grpo, ReinforcePp, ReinforcePpBaseline, Rloo
from steprl.credit._compare import EPSILON
from steprl.credit._whiten import whitened
from steprl.types import (
    Credits,
    Estimator,
    Sampling,
    Scores,
    Step,
    StepKey,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)

WHITENED = {"advantages": True, "advantages_masked": True}
UNWHITENED = {"advantages_unwhitened": False, "advantages_unwhitened_masked": False}


class Rows:
    """The rows of a case as groups of trajectories, and what estimators say about each row's tokens.

    A row is a step, cut after every sampled token that has a reward of its own, because ours stand on a
    step's last token. ``anchors_N`` are the states in which rows acted; ours stand on the step before, so a
    trajectory begins with a step without tokens that says where the first row acts. With a ``unit``, rewards
    count at sampled tokens only; the references of group credit sum all of a row.
    """

    def __init__(
        self,
        masks_NL: Array,
        rewards_NL: Sequence[Sequence[float]] | Array,
        *,
        groups_N: Sequence[Any],
        uids_N: Sequence[Any] | None = None,
        order_N: Sequence[int] | None = None,
        anchors_N: Sequence[Any] | None = None,
        truncated: Mapping[str, bool] | None = None,
        unit: Literal["token", "step"] | None = None,
    ) -> None:
        rows = range(len(masks_NL))
        self.masks_NL, self.rewards_NL = masks_NL, np.array(rewards_NL, dtype=np.float64)
        if unit is not None:
            self.rewards_NL[~masks_NL] = 0.0
        self.uids_N = [str(uid) for uid in (rows if uids_N is None else uids_N)]
        self.groups_N = [str(group) for group in groups_N]
        self.anchors_N, self.cut = anchors_N, unit == "token"
        self.cells: dict[StepKey, tuple[int, slice]] = {}
        rows_of: dict[str, list[int]] = defaultdict(list)
        for n in np.argsort(rows if order_N is None else order_N, kind="stable").tolist():
            rows_of[self.uids_N[n]].append(n)
        members: dict[str, list[Trajectory]] = defaultdict(list)
        for uid, own in rows_of.items():
            reason = StopReason.MAX_STEPS if (truncated or {}).get(uid) else StopReason.TERMINATED
            group = self.groups_N[own[0]]
            members[group].append(_trajectory(uid, group, self._steps(uid, own), reason))
        self.groups = [
            TrajectoryGroup(group_uid=group, task_id=group, trajectories=tuple(trajectories))
            for group, trajectories in members.items()
        ]
        self.counts = np.array([len(members[group]) > 1 for group in self.groups_N])
        """Which rows are compared: the references leave a group of one at its raw reward, ours gives 0."""

    @classmethod
    def of(cls, case: Case, *, unit: Literal["token", "step"] | None = None) -> Rows:
        """The rows of a case in the usual layout."""
        inputs = case["inputs"]
        masks_NL = np.array(inputs["response_mask"]) > 0
        uids_N = inputs.get("trajectory_uids", list(range(len(masks_NL))))
        return cls(
            masks_NL,
            inputs["token_level_rewards"],
            groups_N=inputs.get("index", uids_N),
            uids_N=uids_N,
            order_N=inputs.get("step_indices"),
            anchors_N=inputs.get("anchor_obs"),
            truncated=inputs.get("truncated"),
            unit=unit,
        )

    def by_step(self, values_NL: Sequence[Sequence[float]]) -> dict[StepKey, Array]:
        """A number per token of the case as numbers of our steps."""
        return {key: np.array(values_NL)[n, cut] for key, (n, cut) in self.cells.items()}

    def credit(self, estimator: Estimator, scores: Scores | None = None) -> Credits:
        return estimator(self.groups, scores or Scores())

    def laid_out(self, by_step: Mapping[StepKey, Array]) -> Array:
        """Numbers of our steps as [N, L]; 0 where no token was sampled."""
        found_NL = np.zeros(self.masks_NL.shape)
        for key, (n, cut) in self.cells.items():
            found_NL[n, cut] = by_step[key]
        return np.where(self.masks_NL, found_NL, 0.0)

    def pairs(self, estimators: Mapping[bool, Estimator], case: Case, scores: Scores | None = None) -> Pairs:
        """Advantages with and without whitening, what of them the case has."""
        ours = {
            whiten: self.laid_out(self.credit(estimator, scores).advantages)
            for whiten, estimator in estimators.items()
        }
        if not case["algorithm"].startswith("gae_step"):
            plain_M = ours[False][self.masks_NL]
            ours[True][self.masks_NL] = as_masked_whiten(ours[True][self.masks_NL], plain_M)
        return {
            name: (ours[whiten], np.array(case["expected"][name]) * self.masks_NL)
            for name, whiten in (WHITENED | UNWHITENED).items()
            if name in case["expected"]
        }

    def _steps(self, uid: str, own: Sequence[int]) -> list[Step]:
        steps: list[Step] = []
        anchors = [None if self.anchors_N is None else str(self.anchors_N[n]) for n in own]
        if self.anchors_N is not None:
            steps.append(_step(np.zeros(0, dtype=bool), 0.0, None, anchors[0]))
        for n, after in zip(own, [*anchors[1:], None], strict=True):
            start = 0
            for stop in self._cuts(n):
                self.cells[StepKey(uid, len(steps))] = (n, slice(start, stop))
                last = stop == self.masks_NL.shape[1]
                reward = float(self.rewards_NL[n, start:stop].sum())
                parent = len(steps) - 1 if steps else None
                scored = None if np.isnan(reward) else reward
                steps.append(_step(self.masks_NL[n, start:stop], scored, parent, after if last else None))
                start = stop
        return steps

    def _cuts(self, n: int) -> list[int]:
        sampled = np.flatnonzero(self.masks_NL[n])[:-1].tolist() if self.cut else []
        return [*(j + 1 for j in sampled if self.rewards_NL[n, j] != 0), self.masks_NL.shape[1]]


def _step(mask_L: Array, reward: float | None, parent: int | None, anchor: str | None) -> Step:
    length = len(mask_L)
    return Step(
        prompt_ids=np.zeros(1, dtype=np.int32),
        action_ids=np.zeros(length, dtype=np.int32),
        sampled_mask=mask_L,
        logprobs=None,
        policy_versions=np.zeros(length, dtype=np.int32),
        sampling=Sampling(),
        reward=reward,
        parent=parent,
        anchor=anchor,
    )


def _trajectory(uid: str, group: str, steps: Sequence[Step], reason: StopReason) -> Trajectory:
    return Trajectory(
        uid=uid,
        group_uid=group,
        task_id=group,
        task_hash="",
        seed=0,
        steps=tuple(steps),
        stop_reason=reason,
    )


def as_masked_whiten(ours_M: Array, given_M: Array) -> Array:
    """What the reference would make of ours: its means are over n + 1e-8 numbers, which would show at this
    precision. ``given_M`` are the numbers before whitening."""
    n = len(given_M)
    if n < 2:
        return ours_M
    mean, variance = given_M.mean(), given_M.var(ddof=1)
    moved_M = ours_M * np.sqrt(variance + 1e-8) + mean * 1e-8 / (n + 1e-8)
    result_M: Array = moved_M / np.sqrt(variance * n / (n + 1e-8) + 1e-8)
    return result_M


# --- by group -----------------------------------------------------------------------------------------


def check_group_credit(case: Case) -> Pairs:
    """grpo, rloo: rows that are trajectories, or steps of trajectories."""
    params, rows = case["params"], Rows.of(case)
    estimator: Estimator = Rloo()
    if case["algorithm"].startswith("grpo"):
        demand(params, epsilon=EPSILON, std_ddof=1)
        estimator = Grpo() if params["norm_adv_by_std_in_grpo"] else DrGrpo()
    ours_NL = rows.laid_out(rows.credit(estimator).advantages)
    return {"advantages": (ours_NL[rows.counts], np.array(case["expected"]["advantages"])[rows.counts])}


def check_baseline(case: Case) -> Pairs:
    """reinforce_plus_plus_baseline. A group of one is in the reference's mean and spread, so with one in the
    batch the whitening is compared by itself, on the reference's own numbers."""
    rows, expected = Rows.of(case), case["expected"]
    pairs = rows.pairs({True: ReinforcePpBaseline(), False: ReinforcePpBaseline(whiten=False)}, case)
    if not rows.counts.all():
        if "advantages_unwhitened" not in expected:
            raise Skip("a group of one is part of the reference's whitening, and 0 in ours")
        given_M: Array = np.array(expected["advantages_unwhitened"])[rows.masks_NL]
        pairs["advantages"] = (_whitened(given_M), np.array(expected["advantages"])[rows.masks_NL])
        ours_NL, theirs_NL = pairs["advantages_unwhitened"]
        pairs["advantages_unwhitened"] = (ours_NL[rows.counts], theirs_NL[rows.counts])
    return pairs


def check_gigpo(case: Case) -> Pairs:
    """gigpo: both parts together, and the step returns."""
    params, rows = case["params"], Rows.of(case)
    if "STEPS" in params.get("episode_stats", ""):
        raise Skip("episode statistics over step rows; ours are over trajectories, by the specification")
    demand(params, epsilon=EPSILON, std_ddof=1)
    gamma = params["gamma"]
    estimator = Gigpo(mode=params["mode"], omega=params["step_advantage_w"], gamma=gamma, min_trajectories=1)
    ours_NL = rows.laid_out(rows.credit(estimator).advantages)
    pairs = {"advantages": (ours_NL[rows.counts], np.array(case["expected"]["advantages"])[rows.counts])}
    if "step_returns" in case["expected"]:
        returns = rows.credit(ReinforcePp(credit="step", gamma=gamma, whiten=False)).advantages
        trained = rows.masks_NL.any(axis=1)
        first_N = rows.laid_out(returns)[np.arange(len(trained)), rows.masks_NL.argmax(axis=1)]
        pairs["step_returns"] = (first_N[trained], np.array(case["expected"]["step_returns"])[trained])
    return pairs


def check_trl_credit(case: Case) -> Pairs:
    """TRL's advantages: one step per completion, groups are ``num_generations`` in a row."""
    inputs, params = case["inputs"], case["params"]
    rewards = inputs["rewards_per_func"]
    n = len(rewards)
    masks_NL = np.array(inputs.get("completion_mask", np.ones((n, 1)))) > 0
    rewards_NL = np.zeros(masks_NL.shape)
    rewards_NL[:, -1] = [_weighted(scores, params["reward_weights"]) for scores in rewards]
    rows = Rows(masks_NL, rewards_NL, groups_N=[k // params["num_generations"] for k in range(n)])
    if case["algorithm"] == "rloo_trl":
        if params["normalize_advantages"]:
            raise Skip("advantages whitened over the batch; rloo has no whitening in the specification")
        scores = Scores(
            old_logprobs=rows.by_step(inputs["old_per_token_logps"]),
            ref_logprobs=rows.by_step(inputs["ref_per_token_logps"]),
        )
        credits = rows.credit(Rloo(kl_beta=params["beta"]), scores)
    else:
        credits = rows.credit(_trl_grpo(params))
    ours_NL = rows.laid_out(credits.advantages)
    compared = rows.counts & masks_NL.any(axis=1)  # an advantage without a token has no place
    ours_N = ours_NL[np.arange(n), masks_NL.argmax(axis=1)]
    return {"advantages": (ours_N[compared], np.array(case["expected"]["advantages"])[compared])}


def _weighted(scores: Sequence[float | None], weights: Sequence[float]) -> float:
    given = [w * score for w, score in zip(weights, scores, strict=True) if score is not None]
    return sum(given) if given else float("nan")


def _trl_grpo(params: Mapping[str, Any]) -> Estimator:
    scale = params["scale_rewards"]
    if scale == "none":
        return DrGrpo()
    if scale == "group":
        demand(params, eps=EPSILON, std_ddof=1)
        return Grpo()
    raise Skip(f"rewards scaled by the {scale}'s spread; grpo has the group's in the specification")


# --- along chains -------------------------------------------------------------------------------------


def check_reinforce_pp(case: Case) -> Pairs:
    """reinforce_plus_plus, of single rows or chained over the steps of a trajectory."""
    rows, gamma = Rows.of(case, unit="token"), case["params"]["gamma"]
    plain = ReinforcePp(gamma=gamma, whiten=False)
    pairs = rows.pairs({True: ReinforcePp(gamma=gamma), False: plain}, case)
    if "returns" in case["expected"]:
        ours_NL = rows.laid_out(rows.credit(plain).advantages)
        pairs["returns"] = (ours_NL, np.array(case["expected"]["returns"]) * rows.masks_NL)
    return pairs


def check_gae(case: Case) -> Pairs:
    """gae by token or by step, with and without bootstrap."""
    inputs, params = case["inputs"], case["params"]
    demand(params, value_position=0)
    unit: Literal["token", "step"] = "step" if case["algorithm"].startswith("gae_step") else "token"
    rows = Rows.of(case, unit=unit)
    options: dict[str, Any] = {"credit": unit}
    options |= {"gamma": params["gamma"], "lam": params["lam"]}
    scores = Scores(values=rows.by_step(inputs["values"]), bootstrap_values=inputs.get("bootstrap_value", {}))
    pairs = rows.pairs({True: Gae(**options), False: Gae(whiten=False, **options)}, case, scores)
    returns = rows.credit(Gae(**options), scores).returns
    assert returns is not None
    for name in ("returns", "returns_masked"):
        if name in case["expected"]:
            pairs[name] = (rows.laid_out(returns), np.array(case["expected"][name]) * rows.masks_NL)
    return pairs


def check_kl_in_reward(case: Case) -> Pairs:
    """The reward of every token with its KL: what reinforce_pp makes of it with γ = 0, unwhitened."""
    inputs, params = case["inputs"], case["params"]
    demand(params, kl_penalty="k1")
    masks_NL = np.array(inputs["response_mask"]) > 0
    scores_NL = inputs["token_level_scores"]
    rows = Rows(masks_NL, scores_NL, groups_N=range(len(masks_NL)), unit="token")
    scores = Scores(
        old_logprobs=rows.by_step(inputs["old_log_probs"]), ref_logprobs=rows.by_step(inputs["ref_log_prob"])
    )
    estimator = ReinforcePp(gamma=0.0, whiten=False, kl_beta=params["beta"])
    ours_NL = rows.laid_out(rows.credit(estimator, scores).advantages)
    return {"token_level_rewards": (ours_NL, np.array(case["expected"]["token_level_rewards"]) * masks_NL)}


def check_whitening(case: Case) -> Pairs:
    """masked_whiten: over tokens."""
    masks_NL: Array = np.array(case["inputs"]["mask"]) > 0
    values_M: Array = np.array(case["inputs"]["values"])[masks_NL]
    return {"whitened": (_whitened(values_M), np.array(case["expected"]["whitened_masked"])[masks_NL])}


def _whitened(given_M: Array) -> Array:
    return as_masked_whiten(whitened(given_M, np.ones(len(given_M), dtype=bool), "token"), given_M)


CHECKS: Mapping[str, Callable[[Case], Pairs]] = {
    "grpo": check_group_credit,
    "grpo_trajectory": check_group_credit,
    "rloo": check_group_credit,
    "rloo_trajectory": check_group_credit,
    "grpo_trl": check_trl_credit,
    "rloo_trl": check_trl_credit,
    "reinforce_plus_plus": check_reinforce_pp,
    "reinforce_plus_plus_trajectory": check_reinforce_pp,
    "reinforce_plus_plus_baseline": check_baseline,
    "reinforce_plus_plus_baseline_trajectory": check_baseline,
    "gae_token": check_gae,
    "gae_token_chained": check_gae,
    "gae_token_chained_bootstrap": check_gae,
    "gae_step": check_gae,
    "gae_step_bootstrap": check_gae,
    "gigpo": check_gigpo,
    "gigpo_verl_agent": check_gigpo,
    "kl_in_reward": check_kl_in_reward,
    "masked_whiten": check_whitening,
}
