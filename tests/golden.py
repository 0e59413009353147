"""Compare our credit, weights and losses with values that reference implementations computed.

    python tests/golden.py FILE.json

turns each case of the file into our own types, runs our own functions in float64 and compares (rtol
1e-9, atol 1e-11). Prints a line per failing case, each skipped case with its reason, and the counts;
exits 1 when a case failed.

Shapes: N rows of a case, L padded tokens of a row.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steprl.batch import Aggregation
from steprl.credit import DrGrpo, Grpo, Rloo
from steprl.credit.grpo import EPSILON
from steprl.learner.losses import clipped, ppo_clip
from steprl.types import (
    Estimator,
    Sampling,
    Scores,
    Step,
    StepKey,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)

Array = np.ndarray[Any, np.dtype[Any]]
Case = Mapping[str, Any]
Pairs = dict[str, tuple[Any, Any]]
"""What is compared: name → (ours, the reference's)."""

RULES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "constant",
}


class Skip(Exception):
    """The case asks for something that we do not have, or do otherwise on purpose."""


# --- credit -------------------------------------------------------------------------------------------


def advantages_of_rows(
    estimator: Estimator,
    rewards_N: Sequence[float | None],
    masks_NL: Array,
    groups_N: Sequence[Any],
    uids_N: Sequence[Any],
    order_N: Sequence[int],
) -> tuple[Array, Array]:
    """Our advantages [N, L], and which rows count: bool[N], False in groups of one trajectory.

    Row n is a step of trajectory ``uids_N[n]``; ``order_N`` sorts the steps of a trajectory.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for n in np.argsort(order_N, kind="stable").tolist():
        rows_of[str(uids_N[n])].append(n)
    members: dict[str, list[Trajectory]] = defaultdict(list)
    for uid, rows in rows_of.items():
        group = str(groups_N[rows[0]])
        steps = tuple(_step(masks_NL[n], rewards_N[n]) for n in rows)
        members[group].append(
            Trajectory(
                uid=uid,
                group_uid=group,
                task_id=group,
                task_hash="",
                seed=0,
                steps=steps,
                stop_reason=StopReason.TERMINATED,
            )
        )
    groups = [
        TrajectoryGroup(group_uid=group, task_id=group, trajectories=tuple(trajectories))
        for group, trajectories in members.items()
    ]
    credits = estimator(groups, Scores())
    ours_NL = np.zeros(masks_NL.shape)
    for uid, rows in rows_of.items():
        for t, n in enumerate(rows):
            ours_NL[n] = credits.advantages[StepKey(uid, t)]
    return ours_NL, np.array([len(members[str(group)]) > 1 for group in groups_N])


def _step(mask_L: Array, reward: float | None) -> Step:
    length = len(mask_L)
    return Step(
        prompt_ids=np.zeros(1, dtype=np.int32),
        action_ids=np.zeros(length, dtype=np.int32),
        sampled_mask=mask_L,
        logprobs=None,
        policy_versions=np.zeros(length, dtype=np.int32),
        sampling=Sampling(),
        reward=reward,
    )


def check_group_credit(case: Case) -> Pairs:
    """grpo, rloo: rows that are trajectories, or steps of trajectories."""
    inputs, params = case["inputs"], case["params"]
    masks_NL = np.array(inputs["response_mask"]) > 0
    rewards_N = np.array(inputs["token_level_rewards"]).sum(axis=1).tolist()
    rows = list(range(len(rewards_N)))
    uids_N, order_N = inputs.get("trajectory_uids", rows), inputs.get("step_indices", rows)
    estimator: Estimator = Rloo()
    if case["algorithm"].startswith("grpo"):
        _demand(params, epsilon=EPSILON, std_ddof=1)
        estimator = Grpo() if params["norm_adv_by_std_in_grpo"] else DrGrpo()
    ours, counts = advantages_of_rows(estimator, rewards_N, masks_NL, inputs["index"], uids_N, order_N)
    return {"advantages": (ours[counts], np.array(case["expected"]["advantages"])[counts])}


def check_trl_credit(case: Case) -> Pairs:
    """TRL's advantages: one token per completion, groups are ``num_generations`` in a row."""
    params, rewards = case["params"], case["inputs"]["rewards_per_func"]
    if case["algorithm"] == "rloo_trl":
        if params["beta"] != 0 or params["normalize_advantages"]:
            raise Skip(
                "not implemented in this version: KL in the reward, advantages whitened over the batch"
            )
        estimator: Estimator = Rloo()
    else:
        estimator = _trl_grpo(params)
    rewards_N = [
        None
        if all(score is None for score in scores)
        else sum(
            w * score for w, score in zip(params["reward_weights"], scores, strict=True) if score is not None
        )
        for scores in rewards
    ]
    rows = list(range(len(rewards)))
    groups_N = [n // params["num_generations"] for n in rows]
    ours, counts = advantages_of_rows(
        estimator, rewards_N, np.ones((len(rows), 1), bool), groups_N, rows, rows
    )
    return {"advantages": (ours[counts, 0], np.array(case["expected"]["advantages"])[counts])}


def _trl_grpo(params: Mapping[str, Any]) -> Estimator:
    scale = params["scale_rewards"]
    if scale == "none":
        return DrGrpo()
    if scale == "group":
        _demand(params, eps=EPSILON, std_ddof=1)
        return Grpo()
    raise Skip(f"not implemented in this version: grpo with rewards scaled by the {scale}'s spread")


# --- weights and losses -------------------------------------------------------------------------------


def weights_of_rows(
    rule: str, masks_NL: Array, uids_N: Sequence[Any] | None = None, *, whole: Mapping[str, Any], norm: int
) -> Array:
    """Our weights [N, L]. Rows are steps of the trajectories ``uids_N``, or trajectories of their own.

    ``whole`` describes the global mini-batch of which the rows are one rank's share: its other rows
    are put beside them, and the weights scale by the number of ranks, as gradients are averaged.
    """
    uids = [str(n) for n in range(len(masks_NL))] if uids_N is None else [str(uid) for uid in uids_N]
    masks = {StepKey(uid, n): mask for n, (uid, mask) in enumerate(zip(uids, masks_NL, strict=True))}
    if "global_batch_size" in whole:
        others = whole["global_batch_size"] - int(masks_NL.any(axis=1).sum())
        tokens = whole["batch_num_tokens"] - int(masks_NL.sum())
        for i in range(others):
            share = tokens // others + (i < tokens % others)
            masks[StepKey(f"other rank {i}", 0)] = np.ones(share, dtype=bool)
    aggregation = Aggregation(rule=rule, max_tokens=norm if rule == "constant" else None)
    weights = aggregation.weights(masks)
    weights_NL: Array = np.stack([weights[key] for key in list(masks)[: len(masks_NL)]]) * whole.get(
        "dp_size", 1
    )
    if rule == "seq_mean_token_mean":
        # the reference divides by n + 1e-8, which would show at this precision
        tokens_N1 = masks_NL.sum(axis=1, keepdims=True)
        weights_NL *= tokens_N1 / (tokens_N1 + 1e-8)
    return weights_NL


def check_aggregation(case: Case) -> Pairs:
    """agg_loss: the same loss matrix under a rule, alone and as a share of a global batch."""
    losses_NL, masks_NL = np.array(case["inputs"]["loss_mat"]), np.array(case["inputs"]["loss_mask"]) > 0
    expected, rule = case["expected"], _rule(case["params"]["loss_agg_mode"])
    pairs: Pairs = {}
    batches: dict[str, Mapping[str, Any]] = {
        "local": {},
        "global_batch": expected.get("global_batch_params", {}),
    }
    for name, whole in batches.items():
        if name in expected:
            norm = whole.get("loss_scale_factor", masks_NL.shape[1])
            weights_NL = weights_of_rows(rule, masks_NL, whole=whole, norm=norm)
            pairs[name] = ((weights_NL * losses_NL).sum(), expected[name])
    return pairs


def check_trajectory_aggregation(case: Case) -> Pairs:
    """agg_loss_trajectory: mean over the tokens of a trajectory, then over trajectories."""
    inputs, expected = case["inputs"], case["expected"]
    masks_NL, uids = np.array(inputs["loss_mask"]) > 0, inputs["trajectory_uids"]
    weights_NL = weights_of_rows("traj_mean_token_mean", masks_NL, uids, whole={}, norm=0)
    mean = (weights_NL * np.array(inputs["loss_mat"])).sum()
    trained = len({uid for uid, mask in zip(uids, masks_NL, strict=True) if mask.any()})
    return {
        "mean_over_trajectories": (mean, expected["mean_over_trajectories"]),
        "sum_over_trajectories": (mean * trained, expected["sum_over_trajectories"]),
    }


def check_ppo(case: Case) -> Pairs:
    """ppo_clip_dual: loss, gradient, per-token losses and clip share."""
    inputs, params = case["inputs"], case["params"]
    masks_NL = np.array(inputs["response_mask"]) > 0
    norm = params.get("loss_scale_factor", masks_NL.shape[1])
    weights_NL = weights_of_rows(_rule(params["loss_agg_mode"]), masks_NL, whole=params, norm=norm)
    clip = {"clip_low": params["clip_low"], "clip_high": params["clip_high"]}
    pairs, losses_NL, clipped_NL = _ppo(case, masks_NL, weights_NL, **clip, dual_clip=params.get("clip_c"))
    expected = case["expected"]
    if "per_token_loss_masked" in expected:
        pairs["per_token_loss_masked"] = (losses_NL, expected["per_token_loss_masked"])
    if "actor/pg_clipfrac" in expected.get("metrics", {}):
        pairs["clip_share"] = (clipped_NL[masks_NL].mean(), expected["metrics"]["actor/pg_clipfrac"])
    return pairs


def check_trl_loss(case: Case) -> Pairs:
    """TRL's Dr. GRPO loss: every row is a trajectory, the denominator a constant."""
    params, masks_NL = case["params"], np.array(case["inputs"]["response_mask"]) > 0
    _demand(params, beta=0.0, delta=None, importance_sampling_level="token")
    weights_NL = weights_of_rows("constant", masks_NL, whole={}, norm=params["max_completion_length"])
    clip = {"clip_low": params["epsilon_low"], "clip_high": params["epsilon_high"]}
    return _ppo(case, masks_NL, weights_NL, **clip, dual_clip=None)[0]


def _ppo(
    case: Case,
    masks_NL: Array,
    weights_NL: Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Pairs, Array, Array]:
    """Run the loss on trained tokens only, as the learner does: pairs, losses [N, L], clipped [N, L]."""
    inputs = case["inputs"]
    logprobs_NL = torch.tensor(inputs["log_prob"], dtype=torch.float64, requires_grad=True)
    advantages = np.array(inputs["advantages"], dtype=np.float64)
    advantages_NL = np.broadcast_to(
        advantages if advantages.ndim == 2 else advantages[:, None], masks_NL.shape
    )
    trained = torch.from_numpy(masks_NL)
    old_M = torch.tensor(inputs["old_log_prob"], dtype=torch.float64)[trained]
    advantages_M = torch.from_numpy(advantages_NL.copy())[trained]
    chosen = (logprobs_NL[trained], old_M, advantages_M)
    losses_M = ppo_clip(*chosen, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    loss = (losses_M * torch.from_numpy(weights_NL)[trained]).sum()
    loss.backward()
    losses_NL, clipped_NL = np.zeros(masks_NL.shape), np.zeros(masks_NL.shape, dtype=bool)
    losses_NL[masks_NL] = losses_M.detach().numpy()
    clipped_NL[masks_NL] = clipped(*chosen, clip_low=clip_low, clip_high=clip_high).numpy()
    assert logprobs_NL.grad is not None
    pairs: Pairs = {
        "loss": (loss.item(), case["expected"]["loss"]),
        "grad_log_prob": (logprobs_NL.grad.numpy(), case["expected"]["grad_log_prob"]),
    }
    return pairs, losses_NL, clipped_NL


def _rule(mode: str) -> str:
    if mode not in RULES:
        raise Skip(f"not implemented in this version: aggregation '{mode}'")
    return RULES[mode]


def _demand(params: Mapping[str, Any], **ours: Any) -> None:
    for name, value in ours.items():
        if params.get(name, value) != value:
            raise Skip(f"we have {name} = {value} only, the case has {params[name]}")


# --- the run ------------------------------------------------------------------------------------------

CHECKS: Mapping[str, Callable[[Case], Pairs]] = {
    "grpo": check_group_credit,
    "grpo_trajectory": check_group_credit,
    "rloo": check_group_credit,
    "rloo_trajectory": check_group_credit,
    "grpo_trl": check_trl_credit,
    "rloo_trl": check_trl_credit,
    "agg_loss": check_aggregation,
    "agg_loss_trajectory": check_trajectory_aggregation,
    "ppo_clip_dual": check_ppo,
    "trl_dr_grpo": check_trl_loss,
}


def run(path: str | Path) -> Counter[str]:
    """Check every case of a file and print what there is to say; counts of passed, failed, skipped."""
    outcome: Counter[str] = Counter(passed=0, failed=0, skipped=0)
    for case in json.loads(Path(path).read_text(encoding="utf-8"))["cases"]:
        try:
            problem = _check(case)
        except Skip as reason:
            outcome["skipped"] += 1
            print(f"skipped {case['id']}: {reason}")
            continue
        outcome["failed" if problem else "passed"] += 1
        if problem:
            print(f"FAILED {case['id']}: {problem}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**outcome))
    return outcome


def _check(case: Case) -> str | None:
    """What is wrong with our answer to a case, or None."""
    if case["status"] == "reference_buggy":
        raise Skip("the reference is wrong for this input; the value is no target")
    if case["algorithm"] not in CHECKS:
        raise Skip(f"not implemented in this version: {case['algorithm']}")
    for name, (ours, expected) in CHECKS[case["algorithm"]](case).items():
        try:
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-11)
        except AssertionError as difference:
            return f"{name}: " + " ".join(str(difference).split())
    return None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/golden.py FILE.json")
    sys.exit(1 if run(sys.argv[1])["failed"] else 0)
