"""The options of ``build_policy``, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from steprl.errors import ConfigError
from steprl.learner.small_policy import PolicySize
from steprl.trainers.imitation.warm_start import WarmStart


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """How a policy is built.

    Args:
        size: of the model.
        warm_start: how it imitates.
        seed: decides the initial weights, the order of imitation, and which tasks are held out.
        threads: torch's; the same seed and threads give the same weights. None: what the environment gives.
        count: tasks to demonstrate; None: all that are not held out.
        min_reward: demonstrations with less are dropped; None: none are.
        args: options of the environment.
        demo_args: options of a demonstrator named ``module:attribute``.
        context: the context rule; ``context_args`` are its options.
        format: how tool calls are written; ``format_args`` are its options.
        chat_template: a Jinja file; None: the short ChatML that comes along.
        model: whose tokenizer stored trajectories have, if not their run's own.
        vocabulary: most tokens of a trained tokenizer, tags not counted.
        vocabulary_demos: tasks whose demonstrations the tokenizer is trained on, the first ones.
        max_steps: actions per episode, demonstrated or evaluated.
        evaluation_tasks: most tasks to evaluate on, each sampled and greedily; 0: no evaluation.

    Raises:
        ConfigError: a number is out of its range.
    """

    size: PolicySize = field(default_factory=PolicySize)
    warm_start: WarmStart = field(default_factory=WarmStart)
    seed: int = 0
    threads: int | None = 1
    count: int | None = None
    min_reward: float | None = None
    args: dict[str, Any] = field(default_factory=dict)
    demo_args: dict[str, Any] = field(default_factory=dict)
    context: str = "append_only"
    context_args: dict[str, Any] = field(default_factory=dict)
    format: str = "hermes"
    format_args: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    model: str | None = None
    vocabulary: int = 1024
    vocabulary_demos: int = 1000
    max_steps: int = 32
    evaluation_tasks: int = 200

    def __post_init__(self) -> None:
        for name in ("count", "threads", "vocabulary_demos", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.evaluation_tasks < 0:
            raise ConfigError(f"evaluation_tasks must be 0 (none) or above, got {self.evaluation_tasks}")
        if self.min_reward is not None and not math.isfinite(self.min_reward):
            raise ConfigError(f"min_reward must be a finite number, got {self.min_reward}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or above, got {self.seed}")
