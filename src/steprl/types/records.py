"""Steps, trajectories, groups: the record that rollout writes and credit assignment reads.

Shapes: P prompt tokens, A action tokens of one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from steprl.types._arrays import Bools, Floats, Ints, frozen, put
from steprl.types.interaction import Finish
from steprl.types.messages import MalformedCall, Message, ToolCall, finite
from steprl.types.tokens import Sampling


class StopReason(StrEnum):
    """Why a trajectory ended. Terminated is the task's end; the rest are limits or failures."""

    TERMINATED = "terminated"
    MAX_STEPS = "max_steps"
    CONTEXT_FULL = "context_full"
    DEADLINE = "deadline"
    ABORTED = "aborted"
    ERROR = "error"

    @property
    def bootstraps(self) -> bool:
        """True when a critic's value of the final observation continues the return."""
        return self in (StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)

    @property
    def trains(self) -> bool:
        """True when the trajectory enters loss and statistics by default.

        A deadline depends on machine load and an error on infrastructure, so both stay out; an
        aborted trajectory was cut by the run itself.
        """
        return self in (StopReason.TERMINATED, StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)


_EXPLAINED = frozenset({StopReason.ERROR, StopReason.TERMINATED, StopReason.DEADLINE})


class StepKey(NamedTuple):
    """Names one step: the trajectory's uid and the index of the step in it."""

    trajectory: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeError:
    """What broke an episode. A value on the trajectory, never a reward of 0.

    On a trajectory that was terminated it is an error that the same action reproduced: the agent's doing. On
    one that met a deadline it says what was being waited for.
    """

    kind: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """``z_t``: exactly what the engine was given and exactly what it sampled.

    ``prompt_ids`` i32[P], ``action_ids`` i32[A], ``sampled_mask`` bool[A] (False: added by a
    template or a forced stop, no log-probability), ``logprobs`` f32[A] (NaN where not sampled) or
    None, ``policy_versions`` i32[A]. ``reward`` is composed once from ``rewards``; None means that
    it could not be scored. ``parent`` is the index of the step whose outcome this one continues.
    """

    prompt_ids: Ints = field(repr=False)
    action_ids: Ints = field(repr=False)
    sampled_mask: Bools = field(repr=False)
    logprobs: Floats | None = field(repr=False)
    policy_versions: Ints = field(repr=False)
    sampling: Sampling = field(repr=False)
    finish: Finish = "stop"
    kind: Literal["act", "summary"] = "act"
    agent: str = "policy"
    parent: int | None = None
    reward: float | None = 0.0
    rewards: Mapping[str, float] = field(default_factory=dict)
    feedback: tuple[Message, ...] = field(default=(), repr=False)
    anchor: str | None = None
    calls: tuple[ToolCall | MalformedCall, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        put(self, "prompt_ids", frozen(self.prompt_ids, np.int32, "prompt_ids"))
        put(self, "action_ids", frozen(self.action_ids, np.int32, "action_ids"))
        n = len(self.action_ids)
        if len(self.prompt_ids) == 0:
            raise ValueError("a step needs a prompt of at least one token")
        put(self, "sampled_mask", frozen(self.sampled_mask, np.bool_, "sampled_mask", length=n))
        put(self, "policy_versions", frozen(self.policy_versions, np.int32, "policy_versions", length=n))
        if self.logprobs is not None:
            put(self, "logprobs", frozen(self.logprobs, np.float32, "logprobs", length=n))
            has = np.isfinite(self.logprobs)
            if not has[self.sampled_mask].all():
                raise ValueError("every sampled token needs a finite log-probability")
            if not np.isnan(self.logprobs[~self.sampled_mask]).all():
                raise ValueError("a token that was not sampled has no log-probability (use NaN)")
        if self.reward is not None:
            put(self, "reward", finite(self.reward, "reward"))
        for name, value in self.rewards.items():
            finite(value, f"reward '{name}'")
        if self.parent is not None and self.parent < 0:
            raise ValueError(f"parent must be the index of an earlier step, got {self.parent}")
        for call in self.calls:
            if not 0 <= call.span[0] <= call.span[1] <= n:
                raise ValueError(f"call span {call.span} lies outside the action's {n} tokens")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One episode: its steps in order, why it ended, and which task and seed it came from.

    ``final_prompt_ids`` is ``o_{T+1}`` of a truncated trajectory, for a critic to bootstrap from.
    """

    uid: str
    group_uid: str
    task_id: str
    task_hash: str
    seed: int
    steps: tuple[Step, ...] = field(repr=False)
    stop_reason: StopReason
    final_prompt_ids: Ints | None = field(default=None, repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: EpisodeError | None = None

    def __post_init__(self) -> None:
        if self.final_prompt_ids is not None:
            put(self, "final_prompt_ids", frozen(self.final_prompt_ids, np.int32, "final_prompt_ids"))
        if self.stop_reason is StopReason.ERROR and self.error is None:
            raise ValueError("stop reason 'error' needs an EpisodeError that says what broke")
        if self.error is not None and self.stop_reason not in _EXPLAINED:
            raise ValueError(
                f"an EpisodeError explains the stop reasons {', '.join(sorted(_EXPLAINED))}, "
                f"not '{self.stop_reason}'"
            )
        for index, step in enumerate(self.steps):
            if step.parent is not None and step.parent >= index:
                raise ValueError(f"step {index} has parent {step.parent}, which is not an earlier step")

    @property
    def reward(self) -> float | None:
        """``R_i``: sum of the step rewards; None when a step could not be scored."""
        rewards = [step.reward for step in self.steps if step.reward is not None]
        # rounded once: the same rewards in another order are the same sum
        return math.fsum(rewards) if len(rewards) == len(self.steps) else None

    def key(self, step: int) -> StepKey:
        """The name of one of its steps."""
        return StepKey(self.uid, step)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryGroup:
    """Trajectories of one task instance: the unit that group-relative credit compares."""

    group_uid: str
    task_id: str
    trajectories: tuple[Trajectory, ...] = field(repr=False)

    def __post_init__(self) -> None:
        for trajectory in self.trajectories:
            if trajectory.group_uid != self.group_uid:
                raise ValueError(
                    f"trajectory {trajectory.uid} belongs to group {trajectory.group_uid}, "
                    f"not {self.group_uid}"
                )
        uids = [trajectory.uid for trajectory in self.trajectories]
        if len(set(uids)) != len(uids):
            raise ValueError(f"group {self.group_uid} holds a trajectory twice")


def equal_rewards(rewards: Sequence[float]) -> bool:
    """True when all rewards are the same number, up to float residue; at least one is given.

    Sums of the same decimals may differ in their last bits, which is no difference that a policy made:
    1e-12 of the greatest magnitude, or of 1 when all are smaller, is no difference.
    """
    least, greatest = min(rewards), max(rewards)
    return greatest - least <= 1e-12 * max(1.0, abs(least), abs(greatest))
