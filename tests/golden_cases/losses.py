"""Golden cases of losses: each becomes the options of a learner and the trained tokens of a micro-batch.

Every row of a case is a step. Losses see trained tokens only, as in the learner.

Shapes: N rows of a case, L padded tokens of a row, M trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from golden_cases.common import Array, Case, Pairs, Skip, demand
from golden_cases.weights import weights_of_mode, weights_of_rows
from steprl.credit._kl import k1
from steprl.learner.config import LearnerConfig
from steprl.learner.loss_config import LossConfig
from steprl.learner.losses import (
    TokenLosses,
    TrainedTokens,
    importance_weights,
    k2,
    k3,
    token_losses,
    value_clipped,
    value_losses,
)
from steprl.types import Sampling, Scores, Step, StopReason, Trajectory


def matrix(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scattered(values_M: torch.Tensor, masks_NL: Array) -> Array:
    """Figures of trained tokens, back in their rows: [N, L], 0 elsewhere."""
    rows_NL = np.zeros(masks_NL.shape)
    rows_NL[masks_NL] = values_M.detach().numpy()
    return rows_NL


def tokens_of(
    masks_NL: Array,
    logprobs: torch.Tensor,
    old: Any,
    advantages: Any,
    *,
    engine: Any = None,
    reference: Any = None,
) -> TrainedTokens:
    """The trained tokens of some rows, all matrices [N, L] (advantages may be one per row)."""
    trained = torch.from_numpy(masks_NL)

    def chosen(values: Any) -> torch.Tensor:
        given = np.asarray(values, dtype=np.float64)
        given = given if given.ndim == 2 else given[:, None]
        return torch.from_numpy(np.broadcast_to(given, masks_NL.shape).copy())[trained]

    return TrainedTokens(
        logprobs=logprobs[trained],
        old_logprobs=chosen(old),
        advantages=chosen(advantages),
        engine_logprobs=chosen(np.full(masks_NL.shape, np.nan) if engine is None else engine),
        step=torch.from_numpy(np.nonzero(masks_NL)[0]),
        entropy=torch.zeros(int(masks_NL.sum()), dtype=torch.float64),
        ref_logprobs=None if reference is None else chosen(reference),
    )


def loss_pairs(
    tokens: TrainedTokens,
    config: LearnerConfig,
    logprobs: torch.Tensor,
    masks_NL: Array,
    weights_NL: Array,
    expected: Mapping[str, Any],
) -> tuple[Pairs, TokenLosses]:
    """Our loss and gradient beside the expected ones, and what the loss was made of."""
    found = token_losses(tokens, config)
    loss = (found.losses * torch.from_numpy(weights_NL)[torch.from_numpy(masks_NL)]).sum()
    loss.backward()
    assert logprobs.grad is not None
    gradient = "grad_log_prob" if "grad_log_prob" in expected else "grad_logprobs"
    pairs: Pairs = {
        "loss": (loss.item(), expected["loss"]),
        gradient: (logprobs.grad.numpy(), expected[gradient]),
    }
    if "per_token_loss_masked" in expected:
        pairs["per_token_loss_masked"] = (
            scattered(found.losses, masks_NL),
            expected["per_token_loss_masked"],
        )
    if "actor/pg_clipfrac" in expected.get("metrics", {}):
        share = scattered(found.clipped, masks_NL)[masks_NL].mean()
        pairs["clip_share"] = (share, expected["metrics"]["actor/pg_clipfrac"])
    return pairs, found


def check_verl_loss(case: Case) -> Pairs:
    """ppo_clip_dual, alone and with importance weights that are given; gspo; cispo."""
    inputs, params = case["inputs"], case["params"]
    kind = case["algorithm"].removesuffix("+tis")
    masks_NL = np.array(inputs["response_mask"]) > 0
    logprobs = matrix(inputs["log_prob"]).requires_grad_()
    if kind == "cispo":
        demand(params, clip_low=1.0)  # a lower bound on the ratio of CISPO is not in the specification
        config = LearnerConfig(loss=LossConfig(kind="cispo", ratio_max=1 + params["clip_high"]))
    else:
        config = LearnerConfig(
            clip_low=params["clip_low"],
            clip_high=params["clip_high"],
            dual_clip=params.get("clip_c"),
            loss=LossConfig(kind="gspo" if kind == "gspo" else "ppo_clip"),
        )
    engine = None
    if "rollout_is_weights" in inputs:
        config = replace(config, loss=replace(config.loss, importance="full"))
        given = np.where(masks_NL, inputs["rollout_is_weights"], 1.0)
        engine = np.array(inputs["old_log_prob"]) - np.log(given)
    tokens = tokens_of(masks_NL, logprobs, inputs["old_log_prob"], inputs["advantages"], engine=engine)
    weights_NL = weights_of_mode(params["loss_agg_mode"], masks_NL, params)
    return loss_pairs(tokens, config, logprobs, masks_NL, weights_NL, case["expected"])[0]


def check_decoupled(case: Case) -> Pairs:
    """decoupled_ppo: the clip on π/π_prox, and π_prox/μ bounded or masked, per token or per row."""
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    masks_NL = np.array(inputs["loss_mask"]) > 0
    logprobs = matrix(inputs["logprobs"]).requires_grad_()
    config = LearnerConfig(
        clip_low=params["eps_clip"],
        clip_high=params["eps_clip"] if params["eps_clip_higher"] is None else params["eps_clip_higher"],
        dual_clip=params["c_clip"],
        loss=_importance(params["rejection_sampling"]),
    )
    tokens = tokens_of(
        masks_NL,
        logprobs,
        inputs["proximal_logprobs"],
        inputs["advantages"],
        engine=inputs["behave_logprobs"],
    )
    weights_NL = weights_of_rows("token_mean", masks_NL)
    pairs, found = loss_pairs(tokens, config, logprobs, masks_NL, weights_NL, expected)
    if "behave_imp_weight" in expected and found.importance is not None:
        pairs["importance"] = (scattered(found.importance, masks_NL), expected["behave_imp_weight"])
    return pairs


def _importance(rejection: Mapping[str, Any] | None) -> LossConfig:
    """AReaL's rejection sampling as our options."""
    if rejection is None:
        return LossConfig()
    demand(rejection, metric="ratio")
    units = {("token", "mean"): "token", ("token", "sum"): "token", ("sequence", "mean"): "step_mean"}
    units["sequence", "sum"] = "step_product"
    unit = units.get((rejection["level"], rejection.get("agg", "mean")))
    if unit is None or rejection["action"] not in ("clamp", "mask"):
        raise Skip(f"not an importance correction of the specification: {dict(rejection)}")
    return LossConfig(
        importance="truncate" if rejection["action"] == "clamp" else "mask",
        importance_unit=unit,
        importance_low=rejection["lower"] or 0.0,
        importance_high=1e30 if rejection["upper"] is None else rejection["upper"],
    )


def check_importance(case: Case) -> Pairs:
    """tis: truncated weights of the ratio between trainer and engine."""
    inputs, params = case["inputs"], case["params"]
    if params.get("rollout_is_batch_normalize"):
        raise Skip("importance weights divided by their batch mean are not in the specification")
    units = {"token": "token", "sequence": "step_product"}
    if params["rollout_is"] not in units:
        raise Skip(f"not an importance unit of the specification: '{params['rollout_is']}'")
    masks_NL = np.array(inputs["response_mask"]) > 0
    log_ratio_M = matrix(inputs["log_ratio"])[torch.from_numpy(masks_NL)]
    weights_M, _ = importance_weights(
        log_ratio_M,
        torch.zeros_like(log_ratio_M),
        torch.from_numpy(np.nonzero(masks_NL)[0]),
        kind="truncate",
        unit=units[params["rollout_is"]],
        high=params["rollout_is_threshold"],
    )
    return {"weights": (scattered(weights_M, masks_NL), case["expected"]["rollout_is_weights"])}


def check_trl_loss(case: Case) -> Pairs:
    """TRL's losses: every row is a trajectory of one step."""
    inputs, params = case["inputs"], case["params"]
    masks_NL = np.array(inputs["response_mask"]) > 0
    if not masks_NL.any(axis=1).all():
        raise Skip("TRL's denominators count rows without a trained token; ours count those that have some")
    logprobs = matrix(inputs["log_prob"]).requires_grad_()
    product = case["algorithm"] == "trl_rloo_sequence_ratio"
    tokens = tokens_of(
        masks_NL,
        logprobs,
        inputs["old_log_prob"],
        inputs["advantages"],
        reference=inputs.get("ref_log_prob"),
    )
    config = _trl_config(params, product)
    weights_NL = _trl_weights("grpo" if product else params["loss_type"], params, masks_NL)
    return loss_pairs(tokens, config, logprobs, masks_NL, weights_NL, case["expected"])[0]


def _trl_config(params: Mapping[str, Any], product: bool) -> LearnerConfig:
    beta, delta = params.get("beta", 0.0), params.get("delta")
    if params.get("loss_type") == "cispo":
        demand(params, importance_sampling_level="token")
        loss = LossConfig(kind="cispo", ratio_max=params["epsilon_high"], beta=beta)
        return LearnerConfig(loss=loss)
    levels = {"token": "ppo_clip", "sequence": "gspo"}
    kind = "step_product" if product else levels[params["importance_sampling_level"]]
    if delta is not None and delta < 1 + params["epsilon_high"]:
        raise Skip(f"delta = {delta} below 1 + epsilon_high is no dual clip")
    return LearnerConfig(
        clip_low=params["epsilon_low"],
        clip_high=params["epsilon_high"],
        dual_clip=delta,
        loss=LossConfig(kind=kind, beta=beta),
    )


def _trl_weights(loss_type: str, params: Mapping[str, Any], masks_NL: Array) -> Array:
    if loss_type == "grpo":
        return weights_of_rows("seq_mean_token_mean", masks_NL)
    if loss_type == "dr_grpo":
        return weights_of_rows("constant", masks_NL, norm=params["max_completion_length"])
    if loss_type == "bnpo":
        return weights_of_rows("token_mean", masks_NL)
    if loss_type in ("dapo", "cispo"):
        # the rows are a share of a batch that has this many tokens
        return weights_of_rows("token_mean", masks_NL) * (masks_NL.sum() / params["num_items_in_batch"])
    raise Skip(f"not a loss of the specification: '{loss_type}'")


def check_value_loss(case: Case) -> Pairs:
    """value_loss_clipped: loss, gradient and clip share."""
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    masks_NL = np.array(inputs["response_mask"]) > 0
    trained = torch.from_numpy(masks_NL)
    values = matrix(inputs["vpreds"]).requires_grad_()
    given = (values[trained], matrix(inputs["returns"])[trained], matrix(inputs["values"])[trained])
    clip = params["cliprange_value"]
    weights_NL = weights_of_mode(params["loss_agg_mode"], masks_NL, params)
    loss = (value_losses(*given, value_clip=clip) * torch.from_numpy(weights_NL)[trained]).sum()
    loss.backward()
    assert values.grad is not None
    share = value_clipped(*given, value_clip=clip).double().mean().item()
    return {
        "loss": (loss.item(), expected["loss"]),
        "grad_vpreds": (values.grad.numpy(), expected["grad_vpreds"]),
        "clipfrac": (share, expected["clipfrac"]),
    }


ESTIMATORS = {"k2": (k2, k2), "mse": (k2, k2), "k3": (k3, k3), "low_var_kl": (k3, k3)}
ESTIMATORS |= {"k3+": (k3, k2), "low_var_kl+": (k3, k2), "k2+": (k2, k2), "mse+": (k2, k2)}
"""verl's name → our functions for value and gradient; "+" is a value with the gradient of k2."""


def check_kl(case: Case) -> Pairs:
    """kl_estimator: k1 as we have it, in rewards and so without a gradient; the others as losses."""
    inputs, expected, name = case["inputs"], case["expected"], case["params"]["kl_penalty"]
    masks_NL = np.array(inputs["response_mask"]) > 0
    if name in ("k1", "kl"):
        ours_NL = np.zeros(masks_NL.shape)
        for n, mask in enumerate(masks_NL):
            ours_NL[n, mask] = _k1_of_row(mask, inputs["logprob"][n], inputs["ref_logprob"][n])
        return {"kl_masked": (ours_NL, expected["kl_masked"])}
    if name not in ESTIMATORS:
        raise Skip(f"not a KL estimator of the specification: '{name}'")
    value, sloped = ESTIMATORS[name]
    trained = torch.from_numpy(masks_NL)
    logprobs = matrix(inputs["logprob"]).requires_grad_()
    reference_M = matrix(inputs["ref_logprob"])[trained]
    sloped(logprobs[trained], reference_M).sum().backward()
    assert logprobs.grad is not None
    return {
        "kl_masked": (scattered(value(logprobs[trained], reference_M), masks_NL), expected["kl_masked"]),
        "gradient": (logprobs.grad.numpy(), expected["grad_logprob_of_masked_sum"]),
    }


def _k1_of_row(mask_L: Array, old_L: Any, ref_L: Any) -> Array:
    step = Step(
        prompt_ids=[0],
        action_ids=np.zeros(len(mask_L), dtype=np.int32),
        sampled_mask=mask_L,
        logprobs=None,
        policy_versions=np.zeros(len(mask_L), dtype=np.int32),
        sampling=Sampling(),
    )
    row = Trajectory(
        uid="row",
        group_uid="g",
        task_id="g",
        task_hash="",
        seed=0,
        steps=(step,),
        stop_reason=StopReason.TERMINATED,
    )
    key = row.key(0)
    return k1(row, 0, Scores(old_logprobs={key: np.array(old_L)}, ref_logprobs={key: np.array(ref_L)}))


CHECKS: Mapping[str, Callable[[Case], Pairs]] = {
    "ppo_clip_dual": check_verl_loss,
    "ppo_clip_dual+tis": check_verl_loss,
    "gspo": check_verl_loss,
    "cispo": check_verl_loss,
    "decoupled_ppo": check_decoupled,
    "tis": check_importance,
    "trl_grpo": check_trl_loss,
    "trl_dr_grpo": check_trl_loss,
    "trl_bnpo": check_trl_loss,
    "trl_dapo": check_trl_loss,
    "trl_cispo": check_trl_loss,
    "trl_gspo": check_trl_loss,
    "trl_grpo_delta": check_trl_loss,
    "trl_rloo_sequence_ratio": check_trl_loss,
    "value_loss_clipped": check_value_loss,
    "kl_estimator": check_kl,
}
