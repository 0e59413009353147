"""Golden cases of aggregation: the weights that we give the rows of a case.

Shapes: N rows of a case, L padded tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from golden_cases.common import Array, Case, Pairs, Skip
from steprl.batch import Aggregation
from steprl.types import StepKey

RULES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "constant",
}


def weights_of_rows(
    rule: str,
    masks_NL: Array,
    uids_N: Sequence[Any] | None = None,
    *,
    whole: Mapping[str, Any] | None = None,
    norm: int | None = None,
) -> Array:
    """Our weights [N, L]. Rows are steps of the trajectories ``uids_N``, or trajectories of their own.

    ``whole`` describes the global mini-batch of which the rows are one rank's share: its other rows
    are put beside them, and the weights scale by the number of ranks, as gradients are averaged.
    """
    whole = whole or {}
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
    ranks = whole.get("dp_size", 1)
    stacked: Array = np.stack([weights[key] for key in list(masks)[: len(masks_NL)]]) * ranks
    return stacked


def weights_of_mode(mode: str, masks_NL: Array, whole: Mapping[str, Any]) -> Array:
    """Our weights [N, L] under verl's name of a rule; the norm is the row's length unless it is given."""
    if mode not in RULES:
        raise Skip(f"not one of the aggregation rules of the specification: '{mode}'")
    norm = whole.get("loss_scale_factor", masks_NL.shape[1])
    weights_NL = weights_of_rows(RULES[mode], masks_NL, whole=whole, norm=norm)
    if mode == "seq-mean-token-mean":
        # the reference divides by n + 1e-8, which would show at this precision
        tokens_N1 = masks_NL.sum(axis=1, keepdims=True)
        weights_NL *= tokens_N1 / (tokens_N1 + 1e-8)
    return weights_NL


def check_aggregation(case: Case) -> Pairs:
    """agg_loss: the same loss matrix under a rule, alone and as a share of a global batch."""
    losses_NL, masks_NL = np.array(case["inputs"]["loss_mat"]), np.array(case["inputs"]["loss_mask"]) > 0
    expected, mode = case["expected"], case["params"]["loss_agg_mode"]
    batches: dict[str, Mapping[str, Any]] = {
        "local": {},
        "global_batch": expected.get("global_batch_params", {}),
    }
    return {
        name: ((weights_of_mode(mode, masks_NL, whole) * losses_NL).sum(), expected[name])
        for name, whole in batches.items()
        if name in expected
    }


def check_trajectory_aggregation(case: Case) -> Pairs:
    """agg_loss_trajectory: mean over the tokens of a trajectory, then over trajectories."""
    inputs, expected = case["inputs"], case["expected"]
    masks_NL, uids = np.array(inputs["loss_mask"]) > 0, inputs["trajectory_uids"]
    weights_NL = weights_of_rows("traj_mean_token_mean", masks_NL, uids)
    mean = (weights_NL * np.array(inputs["loss_mat"])).sum()
    trained = len({uid for uid, mask in zip(uids, masks_NL, strict=True) if mask.any()})
    return {
        "mean_over_trajectories": (mean, expected["mean_over_trajectories"]),
        "sum_over_trajectories": (mean * trained, expected["sum_over_trajectories"]),
    }


CHECKS: Mapping[str, Callable[[Case], Pairs]] = {
    "agg_loss": check_aggregation,
    "agg_loss_trajectory": check_trajectory_aggregation,
}
