"""AdamW with warm-up and gradient clipping that refuses steps it should not take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from steprl.learner.config import LearnerConfig


class Optimiser:
    """Takes a step from the gradients that have piled up, if they are any good.

    A non-finite loss or gradient skips the step and is counted; a gradient of exactly 0 (nothing
    trained, or nothing to learn) is no step either, since momentum would move the weights all the
    same. In both cases weights and optimiser state stay as they are, bit for bit.
    """

    def __init__(self, parameters: Iterable[Parameter], config: LearnerConfig) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._config = config
        self._adam = torch.optim.AdamW(
            self._parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )
        self.steps = 0
        """Steps taken so far."""

    def clear(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def step(self, loss: float) -> dict[str, float]:
        """Clip, step, and clear the gradients.

        Returns:
            ``grad_norm`` before clipping, ``lr``, and 1 or 0 for ``optimiser_steps`` and ``skipped_steps``.
        """
        lr = self._lr()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm).item()
        finite = math.isfinite(loss) and math.isfinite(norm)
        take = finite and norm > 0
        if take:
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self.steps += 1
        self.clear()
        return {
            "grad_norm": norm,
            "lr": lr,
            "optimiser_steps": float(take),
            "skipped_steps": float(not finite),
        }

    def _lr(self) -> float:
        """Step size of the next step: warm-up, then the way down to ``final_lr``, both linear."""
        config = self._config
        if self.steps < config.warmup_steps:
            return config.lr * (self.steps + 1) / config.warmup_steps
        if config.decay_steps == 0:
            return config.lr
        gone = min(1.0, (self.steps - config.warmup_steps) / config.decay_steps)
        return config.lr + gone * (config.final_lr - config.lr)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to continue bit for bit."""
        return {"adam": self._adam.state_dict(), "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the configuration is the present one.

        Raises:
            KeyError, ValueError: it is not of these parameters; nothing is changed.
        """
        steps = state["steps"]
        self._adam.load_state_dict(state["adam"])
        for group in self._adam.param_groups:
            group["betas"], group["weight_decay"] = self._config.betas, self._config.weight_decay
        self.steps = steps
