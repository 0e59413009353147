"""How episodes are played, and what happens when one of them does not play along."""

from __future__ import annotations

from dataclasses import dataclass, field

from steprl.errors import ConfigError
from steprl.types import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What becomes of an episode that breaks.

    ``retries``: how often it is played again from its beginning, with the same seed and the same actions, so
    that no retry selects by outcome; ``backoff`` seconds after the first failure, twice as long after each
    further one. An error that the same action reproduces is the agent's doing. What stays broken is dropped
    and counted. A group with fewer than ``minimum_group`` episodes left to train on is dropped whole.
    ``fail_fast``: the first error ends the run instead.
    """

    fail_fast: bool = False
    retries: int = 1
    backoff: float = 1.0
    minimum_group: int = 1

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"rollout.failures.retries must be 0 (none) or above, got {self.retries}")
        if not 0 <= self.backoff < float("inf"):
            raise ConfigError(
                f"rollout.failures.backoff must be 0 (at once) or a number of seconds, got {self.backoff}"
            )
        if self.minimum_group < 1:
            raise ConfigError(f"rollout.failures.minimum_group must be at least 1, got {self.minimum_group}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which an episode is given up (0: never): stop reason ``deadline``, which does not train.

    ``step``: what happens between two requests to the engine, that is ``reset``, a ``step`` of the
    environment, or a context rule. ``episode``: all of it, the engine's time included. ``score``: computing
    the reward components of an episode, after which it is broken by a `ScorerTimeout`. Every ``report``
    seconds in which no episode has ended, a log line names what is pending. A tool call has a deadline of
    its own: ``@tool(deadline=…)`` and ``ToolEnv.tool_deadline``; so has ``ToolEnv.reward``:
    ``reward_deadline``.
    """

    step: float = 300.0
    episode: float = 3600.0
    score: float = 60.0
    report: float = 60.0

    def __post_init__(self) -> None:
        for name in ("step", "episode", "score", "report"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(
                    f"rollout.deadlines.{name} must be 0 (never) or a number of seconds, got {value}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """A limit on actions that grows while the policy learns (0: it does not).

    Training episodes may take ``start`` actions in the first iteration and ``rollout.max_steps`` after
    ``iterations`` of them; in between it grows evenly, every ``every`` iterations. Evaluation always has
    ``rollout.max_steps``.
    """

    start: int = 0
    iterations: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        if self.start < 0 or self.iterations < 0 or (self.start == 0) != (self.iterations == 0):
            raise ConfigError(
                f"rollout.horizon.start = {self.start} and rollout.horizon.iterations = {self.iterations}: a "
                f"horizon that grows needs both, actions in the first iteration and iterations until it is "
                f"rollout.max_steps. Set both to 1 or more, or leave both out."
            )
        if not 1 <= self.every <= max(1, self.iterations):
            raise ConfigError(
                f"rollout.horizon.every must be 1 to rollout.horizon.iterations = {self.iterations}, got "
                f"{self.every}"
            )

    def limit(self, iteration: int, full: int) -> int:
        """Most actions of an episode of an iteration (counted from 1), on the way to ``full``."""
        if not self.start or iteration > self.iterations:
            return full
        grown = min(self.iterations, (iteration - 1) // self.every * self.every)
        return self.start + (full - self.start) * grown // self.iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How episodes are played.

    ``groups`` tasks per iteration, ``group_size`` episodes each; at most ``concurrency`` episodes at
    once. ``max_steps`` actions per episode. ``rewards`` are weights of named components.
    """

    groups: int = 8
    group_size: int = 8
    concurrency: int = 64
    max_steps: int = 16
    rewards: dict[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    deadlines: Deadlines = field(default_factory=Deadlines)
    horizon: Horizon = field(default_factory=Horizon)

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "concurrency", "max_steps", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name} must be at least 1, got {getattr(self, name)}")
        if self.failures.minimum_group > self.group_size:
            raise ConfigError(
                f"rollout.failures.minimum_group = {self.failures.minimum_group} is more than "
                f"rollout.group_size = {self.group_size}: every group would be dropped"
            )
        if self.horizon.start > self.max_steps:
            raise ConfigError(
                f"rollout.horizon.start = {self.horizon.start} is more than rollout.max_steps = "
                f"{self.max_steps}, to which it grows"
            )
        try:
            self.sampling(())
        except ValueError as error:
            raise ConfigError(f"rollout: {error}") from None

    def limit(self, iteration: int) -> int:
        """Most actions of a training episode of this iteration, counted from 1."""
        return self.horizon.limit(iteration, self.max_steps)

    def sampling(self, stop_ids: tuple[int, ...]) -> Sampling:
        """The sampling settings, with the token ids that end an action."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=self.stop,
            stop_ids=stop_ids,
        )
