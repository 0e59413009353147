"""The warm start: a policy imitates demonstrations until it is worth rewarding.

Supervised steps on recorded rows, through the reinforcement learner and its masks: only what was sampled,
which here is what the demonstrator said, has a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.small_policy import Model
from steprl.learner.supervised import imitate
from steprl.learner.torch_learner import TorchLearner
from steprl.trainers.progress import Display
from steprl.types import Row
from steprl.weights.source import FullWeights

_AVERAGED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """How a policy imitates.

    Args:
        steps: optimiser steps.
        batch: demonstrations (rows) per step.
        lr: step size of the first 60 % of the steps.
        final_lr: step size of the rest, which begins with fresh moments.
        warmup_steps: steps until the full step size, in both parts.

    Raises:
        ConfigError: a number is out of its range.
    """

    steps: int = 900
    batch: int = 16
    lr: float = 2e-3
    final_lr: float = 5e-4
    warmup_steps: int = 30

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a warm start must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "final_lr"):
            LearnerConfig(lr=getattr(self, name), warmup_steps=self.warmup_steps)


def imitator(model: Model, lr: float, *, warmup_steps: int = 30) -> TorchLearner:
    """A learner for imitation; it trains ``model`` in place."""
    config = LearnerConfig(lr=lr, betas=(0.9, 0.99), warmup_steps=warmup_steps, token_budget=4096)
    return TorchLearner(model, config, source=FullWeights(model))


def warm_start(
    model: Model, demonstrations: Sequence[Row], config: WarmStart, *, seed: int, display: Display
) -> dict[str, int | float]:
    """Imitate the demonstrations, at least one, in a new order every time all have been seen.

    Returns:
        ``steps``; ``loss_first`` and ``loss_last`` in nats per token, the latter a mean over the last 20
        steps; ``skipped_steps``, whose loss or gradient was not finite.
    """
    rng = np.random.default_rng(seed)
    turn, shown = config.steps * 6 // 10, max(1, config.steps // 6)
    losses: list[float] = []
    skipped = 0
    with display.phase("warm start", config.steps) as bar:
        for lr, steps in ((config.lr, turn), (config.final_lr, config.steps - turn)):
            learner = imitator(model, lr, warmup_steps=config.warmup_steps)
            order: list[int] = []
            for _ in range(steps):
                while len(order) < config.batch:
                    order += rng.permutation(len(demonstrations)).tolist()
                chosen, order = order[: config.batch], order[config.batch :]
                metrics = imitate(learner, [demonstrations[index] for index in chosen])
                losses.append(metrics["loss"])
                skipped += int(metrics["skipped_steps"])
                bar.advance(f"loss {metrics['loss']:.4f}")
                if len(losses) % shown == 0:
                    display.say(f"warm start: step {len(losses)}  loss {metrics['loss']:.4f}")
    return {
        "steps": config.steps,
        "loss_first": losses[0],
        "loss_last": float(np.mean(losses[-_AVERAGED:])),
        "skipped_steps": skipped,
    }
