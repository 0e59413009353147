"""A recipe: every choice of a run in one typed, frozen value. Free of torch, so it is read anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from steprl.batch import Aggregation
from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.critic_config import CriticConfig
from steprl.rollout import RolloutConfig
from steprl.tools.cassette import Mode
from steprl.trainers.curriculum.config import CurriculumConfig
from steprl.trainers.filtering.config import FilterConfig
from steprl.trainers.watch import WatchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy: ``path`` is a model folder, a hub id, or "quickstart" (shipped with the package).

    ``format`` is how the model writes tool calls, ``format_args`` are its options. ``chat_template`` is a
    Jinja file that replaces the tokenizer's own. With ``allow_control_tokens``, a control token that is
    spelled in a message is one; otherwise it is text.
    """

    path: str = "quickstart"
    format: str = "hermes"
    format_args: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    allow_control_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The environment and where its tasks come from: a file, or a split that the environment knows.

    ``cassette`` is a file of what external tools answered; ``cassette_mode`` says whether they are asked.
    """

    id: str
    train: str = "train"
    eval: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    cassette: str | None = None
    cassette_mode: Mode = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """The context rule: what the model sees next."""

    id: str = "append_only"
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The inference engine. ``dtype`` is the precision of its weights; ``args`` go to other engines.

    ``max_context`` is the longest prompt plus action; left out, 2048 or the model's own limit.
    """

    id: str = "torch"
    slots: int = 64
    max_context: int | None = None
    prefill_tokens: int = 2048
    dtype: Literal["float32", "bfloat16"] = "float32"
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """Credit assignment, and how a rollout batch becomes optimiser steps.

    ``minibatches`` of trajectories per epoch, so optimiser steps per iteration = epochs x minibatches.
    ``summaries`` multiplies the weights of summary steps: 0 takes them out of the loss and of every
    denominator, any other factor leaves the denominators as they are.
    """

    estimator: str = "grpo"
    args: dict[str, Any] = field(default_factory=dict)
    aggregation: Aggregation = field(default_factory=Aggregation)
    epochs: int = 1
    minibatches: int = 1
    merge: bool = True
    summaries: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.summaries < float("inf"):
            raise ConfigError(
                f"algorithm.summaries must be 0 (not trained) or a number above, got {self.summaries}; "
                f"1 trains summaries as any other step"
            )
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"algorithm.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How long, and how often to save and to show a sample episode (0: never)."""

    iterations: int = 40
    checkpoint_every: int = 20
    show_every: int = 10

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"train.iterations must be at least 1, got {self.iterations}")
        for name in ("checkpoint_every", "show_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"train.{name} must be 0 (never) or above, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluation: its own tasks, sampling and seeds.

    The first ``tasks`` of the evaluation tasks, each once, sampled at ``temperature`` and, with
    ``greedy``, greedily as well. Before and after training, and every ``every`` iterations (0: not).
    """

    tasks: int = 200
    temperature: float = 1.0
    greedy: bool = True
    every: int = 0

    def __post_init__(self) -> None:
        if self.tasks < 0 or self.every < 0:
            raise ConfigError(
                f"evaluation.tasks and evaluation.every must be 0 or above, got {self.tasks} and {self.every}"
            )
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(
                f"evaluation.temperature must be a number above 0, got {self.temperature}; "
                f"greedy has its own switch"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything a run depends on. ``runs/<name>/config.toml`` is this, resolved.

    ``threads`` are torch's; leaving it out takes what the environment gives. With ``deterministic`` the same
    recipe gives the same bits, whatever delays tools and environments have, and after a kill: one thread, and
    the engine answers in rounds. It is slower, since everyone waits for the slowest environment.
    """

    env: EnvConfig
    name: str = "run"
    runs: str = "runs"
    seed: int = 0
    threads: int | None = None
    deterministic: bool = False
    model: ModelConfig = field(default_factory=ModelConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(?!\.)[A-Za-z0-9._-]{1,128}", self.name):
            raise ConfigError(
                f"name must be a plain folder name: 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', "
                f"not beginning with '.'; got {self.name!r}"
            )
        if self.critic.warmup_iterations >= self.train.iterations:
            raise ConfigError(
                f"critic.warmup_iterations = {self.critic.warmup_iterations} leaves nothing of "
                f"train.iterations = {self.train.iterations} for the policy. Lower one or raise the other."
            )
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads must be at least 1, got {self.threads}")
        if self.deterministic and self.threads not in (None, 1):
            raise ConfigError(
                f"deterministic = true computes with one thread, and threads = {self.threads}: sums over "
                f"several threads may differ in their last bits. Set threads = 1 or leave it out."
            )
