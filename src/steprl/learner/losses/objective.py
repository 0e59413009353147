"""The loss of every trained token as the configuration wants it: surrogate, importance weights, KL, entropy.

Shapes: M trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.losses.cispo import cispo
from steprl.learner.losses.importance import importance_weights
from steprl.learner.losses.kl import kl_losses
from steprl.learner.losses.ppo import clipped, ppo_clip
from steprl.learner.losses.ratios import ratios
from steprl.learner.losses.steps import gspo, gspo_ratios, step_product, step_product_ratios

STEP_LOSSES: Mapping[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "gspo": (gspo, gspo_ratios),
    "step_product": (step_product, step_product_ratios),
}
"""Losses whose ratio belongs to a whole step, and that ratio."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedTokens:
    """What is known of the trained tokens of a micro-batch, all [M].

    ``step`` i64 numbers the (trajectory, step) of each; ``engine_logprobs`` are NaN where there was none.
    ``logprobs`` carry the gradient, and so does ``entropy`` when there is a bonus on it.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    engine_logprobs: Tensor
    step: Tensor
    entropy: Tensor
    ref_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLosses:
    """``losses`` [M] to weigh and to sum, and what went into them: ``clipped`` bool[M], ``kl`` [M] to the
    reference, ``importance`` weights [M] and bool[M] where these were ``bounded``."""

    losses: Tensor
    clipped: Tensor
    kl: Tensor | None = None
    importance: Tensor | None = None
    bounded: Tensor | None = None


def token_losses(tokens: TrainedTokens, config: LearnerConfig) -> TokenLosses:
    """``w·l + beta·KL − entropy_bonus·H`` per token, with l of the configured kind and w the importance
    weight.

    Raises:
        ConfigError: the loss needs log-probabilities, of the reference or the engine, that are not there.
    """
    loss = config.loss
    losses_M, clipped_M = _policy_losses(tokens, config)
    importance_M = bounded_M = kl_M = None
    if loss.importance != "off":
        importance_M, bounded_M = importance_weights(
            tokens.old_logprobs,
            _engine_logprobs(tokens, loss.importance),
            tokens.step,
            kind=loss.importance,
            unit=loss.importance_unit,
            low=loss.importance_low,
            high=loss.importance_high,
        )
        losses_M = importance_M * losses_M
    if loss.beta > 0:
        if tokens.ref_logprobs is None:
            raise ConfigError(
                f"learner.loss.beta = {loss.beta} needs log-probabilities of a reference, and the samples "
                f"have "
                f"none. Fill Scores.ref_logprobs, or set beta = 0."
            )
        kl_M = kl_losses(
            tokens.logprobs,
            tokens.old_logprobs,
            tokens.ref_logprobs,
            kind=loss.kl,
            unbiased=loss.kl_unbiased,
        )
        losses_M = losses_M + loss.beta * kl_M
    if loss.entropy_bonus > 0:
        losses_M = losses_M - loss.entropy_bonus * tokens.entropy
    return TokenLosses(
        losses=losses_M, clipped=clipped_M, kl=kl_M, importance=importance_M, bounded=bounded_M
    )


def _policy_losses(tokens: TrainedTokens, config: LearnerConfig) -> tuple[Tensor, Tensor]:
    """The surrogate [M] of the configured kind, and bool[M] where its ratio is beyond a bound."""
    given = (tokens.logprobs, tokens.old_logprobs)
    kind = config.loss.kind
    if kind == "cispo":
        ratio_max = config.loss.ratio_max
        return cispo(*given, tokens.advantages, ratio_max=ratio_max), ratios(*given).detach() > ratio_max
    low, high, dual = config.clip_low, config.clip_high, config.dual_clip
    if kind == "ppo_clip":
        losses_M = ppo_clip(*given, tokens.advantages, clip_low=low, clip_high=high, dual_clip=dual)
        ratio_M = ratios(*given)
    else:
        loss, ratios_of = STEP_LOSSES[kind]
        losses_M = loss(*given, tokens.advantages, tokens.step, clip_low=low, clip_high=high, dual_clip=dual)
        ratio_M = ratios_of(*given, tokens.step)
    return losses_M, clipped(ratio_M.detach(), tokens.advantages, clip_low=low, clip_high=high)


def _engine_logprobs(tokens: TrainedTokens, importance: str) -> Tensor:
    missing = int(tokens.engine_logprobs.isnan().sum())
    if missing:
        raise ConfigError(
            f"learner.loss.importance = '{importance}' weighs with π_old/μ, and the engine gave no "
            f"log-probability μ for {missing} of {len(tokens.engine_logprobs)} trained tokens. Use an engine "
            f"that "
            f'returns log-probabilities, or set learner.loss.importance = "off".'
        )
    return tokens.engine_logprobs
