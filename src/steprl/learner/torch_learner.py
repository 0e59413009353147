"""The learner on one device, in plain PyTorch: scores rows, takes optimiser steps, saves and loads.

Shapes: N action positions of a row, M chosen tokens of all rows of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from steprl.learner import checkpoint
from steprl.learner.config import LearnerConfig
from steprl.learner.critic import Critic, value_positions
from steprl.learner.losses import TrainedTokens, token_losses
from steprl.learner.metrics import PolicyMetrics, ValueMetrics
from steprl.learner.model import TokenScores, prepare, score_tokens
from steprl.learner.optimiser import Optimiser
from steprl.learner.scoring import score_rows
from steprl.types import Floats, MiniBatch, Row, Sample, StepKey, WeightSource


class TorchLearner:
    """A policy and its optimiser.

    Args:
        model: trained in place, on the device it is on, with weights in float32 (float64 for that dtype).
        config: how it learns.
        source: how engines read the weights of ``model``, such as ``weights.source.FullWeights(model)``.
        critic: a head on ``model`` whose loss is part of each update (``Critic.joint``).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        *,
        source: WeightSource,
        critic: Critic | None = None,
    ) -> None:
        if critic is not None and not (critic.joint and critic.trunk is model.base_model):
            raise ValueError("only a joint critic of the same model trains in the policy's own pass")
        self.model = model
        self.config = config
        self.critic = critic
        self._source = source
        torch.nn.Module.to(model, torch.float64 if config.dtype == "float64" else torch.float32)
        prepare(model, gradient_checkpointing=config.gradient_checkpointing)
        self.optimiser = Optimiser(model.parameters(), config)

    def score(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities f32[N] of each row's action tokens under the current weights.

        Raises:
            ConfigError: a token was sampled with temperature 0.
        """
        return score_rows(rows, self.config.token_budget, lambda some: self.forward(some).logprobs)

    def update(self, batch: MiniBatch) -> dict[str, float]:
        """One optimiser step on ``Σ weights · loss``, gradients summed over the micro-batches.

        The loss is the configured one (``losses.token_losses``). Rows that add exactly nothing to loss and
        gradient are not run, and the figures below are over the rest: those whose advantages are all 0,
        unless a KL, an entropy bonus or values are learned from them too. A non-finite loss or gradient, or a
        mini-batch in which nothing trains, leaves weights and optimiser state as they were
        (``skipped_steps``, ``optimiser_steps``).

        Returns:
            ``loss``, what ``Optimiser.step`` says, and over trained tokens ``clip_share``,
            ``approx_kl``, ``entropy``, ``max_ratio_deviation`` (max |ρ − 1|), ``engine_gap`` (mean
            |old − engine log-probability|, where engines gave one), ``tokens``, ``rows``,
            ``padding_share``. With a KL ``ref_kl``; with importance weights ``importance_mean``,
            ``max_importance``, ``importance_bounded_share`` (truncated or masked). With a joint critic also
            what ``Critic.update`` says of values.

        Raises:
            ConfigError: a trained token was sampled with temperature 0, or the loss needs log-probabilities
                of reference or engine that are not there.
        """
        self.optimiser.clear()
        metrics, values = PolicyMetrics(), None
        if self.critic is not None:
            self.critic.optimiser.clear()
            values = self.critic.metrics()
        loss = 0.0
        for micro in batch.micro_batches:
            samples = [batch.samples[i] for i in micro if self._pulls(batch.samples[i])]
            if samples:
                loss += self._accumulate(samples, metrics, values)
        figures = {"loss": loss, **metrics.result(), **self.optimiser.step(loss)}
        if self.critic is None or values is None:
            return figures
        if not figures["skipped_steps"]:
            self.critic.optimiser.step(loss)
        return {**figures, **values.result()}

    def forward(
        self,
        rows: Sequence[Row],
        positions: Sequence[NDArray[np.int32]] | None = None,
        temperatures: Sequence[Floats] | None = None,
        *,
        read: Sequence[NDArray[np.int32]] | None = None,
    ) -> TokenScores:
        """Score tokens of some rows in one pass; those at every action position unless told otherwise.

        ``read`` are positions whose hidden state is wanted as well.
        """
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            return score_tokens(
                self.model,
                [row.ids for row in rows],
                positions or [row.action_positions for row in rows],
                temperatures or [row.temperature for row in rows],
                read=read,
                entropy_gradient=self.config.loss.entropy_bonus > 0,
            )

    def source(self) -> WeightSource:
        """The current weights, for engines to take."""
        return self._source

    def save(self, folder: str) -> None:
        """Write weights and optimiser state into a fresh folder, which ``from_pretrained`` can read too.

        Raises:
            OSError, SafetensorError: something cannot be written; the folder is partial then.
        """
        checkpoint.save(folder, self.model, self.optimiser)

    def load(self, folder: str) -> None:
        """Continue from what ``save`` wrote, bit for bit.

        Raises:
            CheckpointError: missing, partial, or of another architecture.
        """
        checkpoint.load(folder, self.model, self.optimiser)

    def _accumulate(
        self, samples: Sequence[Sample], metrics: PolicyMetrics, values: ValueMetrics | None
    ) -> float:
        """Add the gradient of these samples' share of the loss; returns that share."""
        masks = [sample.loss_mask for sample in samples]
        rows = [sample.row for sample in samples]
        scores = self.forward(
            rows,
            [row.action_positions[mask] for row, mask in zip(rows, masks, strict=True)],
            [row.temperature[mask] for row, mask in zip(rows, masks, strict=True)],
            read=None if values is None else value_positions(samples),
        )

        def trained(arrays: Sequence[NDArray[Any]]) -> Tensor:
            chosen = [array[mask] for array, mask in zip(arrays, masks, strict=True)]
            return torch.from_numpy(np.concatenate(chosen)).to(scores.logprobs)

        references = [sample.ref_logprobs for sample in samples if sample.ref_logprobs is not None]
        tokens = TrainedTokens(
            logprobs=scores.logprobs,
            old_logprobs=trained([sample.old_logprobs for sample in samples]),
            advantages=trained([sample.advantages for sample in samples]),
            engine_logprobs=trained([row.engine_logprobs for row in rows]),
            step=_step_numbers(samples).to(scores.logprobs.device),
            entropy=scores.entropy,
            ref_logprobs=trained(references) if len(references) == len(samples) else None,
        )
        found = token_losses(tokens, self.config)
        loss = (trained([sample.weights for sample in samples]) * found.losses).sum()
        if self.critic is not None and values is not None and scores.states is not None:
            value_loss = self.critic.loss(self.critic.read_off(scores.states), samples, values)
            loss = loss + self.critic.config.coefficient * value_loss
        loss.backward()
        metrics.add_tokens(tokens, found)
        metrics.add_rows([len(row.ids) for row in rows])
        return loss.item()

    def _pulls(self, sample: Sample) -> bool:
        """Whether a sample moves the weights at all."""
        if self.critic is not None and sample.value_weights is not None and sample.value_weights.any():
            return True
        if self.config.loss.beta > 0 or self.config.loss.entropy_bonus > 0:
            return bool(sample.weights.any())
        trained = sample.loss_mask
        return bool((sample.advantages[trained] * sample.weights[trained] != 0).any())


def _step_numbers(samples: Sequence[Sample]) -> Tensor:
    """i64[M]: which step each trained token belongs to, the same number in whatever row its step stands."""
    numbers: dict[StepKey, int] = {}
    of_samples = []
    for sample in samples:
        of_keys = [numbers.setdefault(key, len(numbers)) for key in sample.row.step_keys]
        of_samples.append(np.array(of_keys, dtype=np.int64)[sample.row.step_index[sample.loss_mask]])
    return torch.from_numpy(np.concatenate(of_samples))
