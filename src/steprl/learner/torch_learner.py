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

from steprl.batch import micro_batches
from steprl.learner import checkpoint
from steprl.learner.config import LearnerConfig
from steprl.learner.losses import ppo_clip
from steprl.learner.metrics import PolicyMetrics
from steprl.learner.model import TokenScores, prepare, score_tokens
from steprl.learner.optimiser import Optimiser
from steprl.types import Floats, MiniBatch, Row, Sample, WeightSource


class TorchLearner:
    """A policy and its optimiser.

    Args:
        model: trained in place, on the device it is on, with weights in float32 (float64 for that dtype).
        config: how it learns.
        source: how engines read the weights of ``model``, such as ``weights.source.FullWeights(model)``.
    """

    def __init__(self, model: PreTrainedModel, config: LearnerConfig, *, source: WeightSource) -> None:
        self.model = model
        self.config = config
        self._source = source
        torch.nn.Module.to(model, torch.float64 if config.dtype == "float64" else torch.float32)
        prepare(model, gradient_checkpointing=config.gradient_checkpointing)
        self.optimiser = Optimiser(model.parameters(), config)

    def score(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities f32[N] of each row's action tokens under the current weights.

        Raises:
            ConfigError: a token was sampled with temperature 0.
        """
        scored: list[Floats] = [np.zeros(0, dtype=np.float32) for _ in rows]
        acted = [i for i, row in enumerate(rows) if len(row.action_positions)]
        lengths = [len(rows[i].ids) for i in acted]
        for micro in micro_batches(lengths, self.config.token_budget):
            indices = [acted[k] for k in micro]
            with torch.no_grad():
                logprobs_M = self.forward([rows[i] for i in indices]).logprobs
            counts = [len(rows[i].action_positions) for i in indices]
            parts = np.split(logprobs_M.float().cpu().numpy(), np.cumsum(counts)[:-1])
            for i, part in zip(indices, parts, strict=True):
                scored[i] = part
        return scored

    def update(self, batch: MiniBatch) -> dict[str, float]:
        """One optimiser step on ``Σ weights · ppo_clip``, gradients summed over the micro-batches.

        Rows whose advantages are all 0 add exactly nothing to loss and gradient; they are not run, and
        the figures below are over the rest. A non-finite loss or gradient, or a mini-batch in which
        nothing trains, leaves weights and optimiser state as they were (``skipped_steps``,
        ``optimiser_steps``).

        Returns:
            ``loss``, what ``Optimiser.step`` says, and over trained tokens ``clip_share``,
            ``approx_kl``, ``entropy``, ``max_ratio_deviation`` (max |ρ − 1|), ``engine_gap`` (mean
            |old − engine log-probability|, where engines gave one), ``tokens``, ``rows``,
            ``padding_share``.

        Raises:
            ConfigError: a trained token was sampled with temperature 0.
        """
        self.optimiser.clear()
        metrics = PolicyMetrics(clip_low=self.config.clip_low, clip_high=self.config.clip_high)
        loss = 0.0
        for micro in batch.micro_batches:
            samples = [batch.samples[i] for i in micro if _pulls(batch.samples[i])]
            if samples:
                loss += self._accumulate(samples, metrics)
        return {"loss": loss, **metrics.result(), **self.optimiser.step(loss)}

    def forward(
        self,
        rows: Sequence[Row],
        positions: Sequence[NDArray[np.int32]] | None = None,
        temperatures: Sequence[Floats] | None = None,
    ) -> TokenScores:
        """Score tokens of some rows in one pass; those at every action position unless told otherwise."""
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            return score_tokens(
                self.model,
                [row.ids for row in rows],
                positions or [row.action_positions for row in rows],
                temperatures or [row.temperature for row in rows],
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

    def _accumulate(self, samples: Sequence[Sample], metrics: PolicyMetrics) -> float:
        """Add the gradient of these samples' share of the loss; returns that share."""
        masks = [sample.loss_mask for sample in samples]
        rows = [sample.row for sample in samples]
        scores = self.forward(
            rows,
            [row.action_positions[mask] for row, mask in zip(rows, masks, strict=True)],
            [row.temperature[mask] for row, mask in zip(rows, masks, strict=True)],
        )
        logprobs_M = scores.logprobs

        def trained(arrays: Sequence[NDArray[Any]]) -> Tensor:
            chosen = [array[mask] for array, mask in zip(arrays, masks, strict=True)]
            return torch.from_numpy(np.concatenate(chosen)).to(logprobs_M)

        old_logprobs_M = trained([sample.old_logprobs for sample in samples])
        advantages_M = trained([sample.advantages for sample in samples])
        losses_M = ppo_clip(
            logprobs_M,
            old_logprobs_M,
            advantages_M,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            dual_clip=self.config.dual_clip,
        )
        loss = (trained([sample.weights for sample in samples]) * losses_M).sum()
        loss.backward()
        engine_logprobs_M = trained([row.engine_logprobs for row in rows])
        metrics.add_tokens(logprobs_M, old_logprobs_M, advantages_M, engine_logprobs_M, scores.entropy)
        metrics.add_rows([len(row.ids) for row in rows])
        return loss.item()


def _pulls(sample: Sample) -> bool:
    """Whether a sample moves the weights at all."""
    return bool((sample.advantages * sample.weights != 0).any())
