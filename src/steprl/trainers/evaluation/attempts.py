"""One attempt at a task, as an evaluation keeps it: what came of it, without the tokens.

It is made from a recorded episode, written as one line of JSON, and read back the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from steprl.errors import ConfigError, ScorerError, ScorerTimeout
from steprl.trajectory.statistics import OUTCOME
from steprl.types import MalformedCall, Step, StopReason, Trajectory

Fault = Literal["environment", "scorer"]
"""Why nobody can say whether an attempt was right: the environment (or engine, or machine) broke or came too
late; or what scores it did."""

REWARD = "reward"
"""The total reward, where a component's name is asked for."""

_SCORERS = frozenset({ScorerError.__name__, ScorerTimeout.__name__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one attempt at a task.

    ``place`` is that of the task among the evaluation tasks, ``attempt`` counts from 0. ``seed`` is the
    environment's, ``sampling_seed`` decides what is sampled. ``reward`` and ``components`` are sums over the
    steps, those of the components before weights; None and empty where there is a fault. ``seconds`` are
    those of engine and environment. ``error`` is the kind of error and its message.
    """

    place: int
    attempt: int
    uid: str
    task_id: str
    task_hash: str
    seed: int
    sampling_seed: int
    stop_reason: str
    fault: Fault | None = None
    by_agent: bool = False
    error: str | None = None
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    calls: int = 0
    malformed_calls: int = 0
    prompt_tokens: int = 0
    action_tokens: int = 0
    seconds: float = 0.0

    @property
    def key(self) -> tuple[int, int]:
        """Which attempt at which task."""
        return self.place, self.attempt

    @property
    def name(self) -> tuple[str, int, int, int]:
        """The same by content: task hash, attempt and both seeds. Two models that meet the same have it in
        common."""
        return self.task_hash, self.attempt, self.seed, self.sampling_seed

    def worth(self, component: str) -> float | None:
        """The component's sum, or the total for "reward"; None where it was not reported."""
        return self.reward if component == REWARD else self.components.get(component)

    def to_json(self) -> dict[str, Any]:
        """Plain values, by field."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What counts as solved: the component ``by`` ("reward": the total), summed over the steps, is
    ``threshold`` or more. An episode that a limit ended before it was reported is not solved."""

    by: str = OUTCOME
    threshold: float = 1.0

    def __post_init__(self) -> None:
        if not self.by or not math.isfinite(self.threshold):
            raise ConfigError(
                f"what counts as solved is a component and a finite number, got {self.by!r} and "
                f"{self.threshold}"
            )

    def __call__(self, attempt: Attempt) -> bool:
        """Whether an attempt is solved; one with a fault is not."""
        worth = attempt.worth(self.by)
        return attempt.fault is None and worth is not None and worth >= self.threshold


def fault_of(trajectory: Trajectory) -> Fault | None:
    """What kept an episode from being judged.

    An error that the agent's action reproduced is a wrong answer, except where it is the scorer's.
    """
    if trajectory.error is not None and trajectory.error.kind in _SCORERS:
        return "scorer"
    return None if trajectory.stop_reason.trains else "environment"


def attempt_of(trajectory: Trajectory, *, place: int, attempt: int, sampling_seed: int) -> Attempt:
    """What is kept of an episode."""
    fault, steps, error = fault_of(trajectory), trajectory.steps, trajectory.error
    calls = [call for step in steps for call in step.calls]
    return Attempt(
        place=place,
        attempt=attempt,
        uid=trajectory.uid,
        task_id=trajectory.task_id,
        task_hash=trajectory.task_hash,
        seed=trajectory.seed,
        sampling_seed=sampling_seed,
        stop_reason=trajectory.stop_reason.value,
        fault=fault,
        by_agent=fault is None and error is not None and trajectory.stop_reason is StopReason.TERMINATED,
        error=None if error is None else f"{error.kind}: {error.message}",
        reward=None if fault else trajectory.reward,
        components={} if fault else _summed(steps),
        steps=len(steps),
        calls=len(calls),
        malformed_calls=sum(isinstance(call, MalformedCall) for call in calls),
        prompt_tokens=sum(len(step.prompt_ids) for step in steps),
        action_tokens=sum(int(step.sampled_mask.sum()) for step in steps),
        seconds=math.fsum(seconds for step in steps for seconds in step.timings.values()),
    )


def _summed(steps: tuple[Step, ...]) -> dict[str, float]:
    names = sorted({name for step in steps for name in step.rewards})
    return {name: math.fsum(step.rewards.get(name, 0.0) for step in steps) for name in names}


def attempt_from(value: object) -> Attempt:
    """What `Attempt.to_json` wrote.

    Raises:
        ConfigError: it is something else.
    """
    fields = Attempt.__dataclass_fields__
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise ConfigError(f"this is no attempt of an evaluation: {str(value)[:120]}")
    return Attempt(**value)
