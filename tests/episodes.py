"""Short ways to write down steps, trajectories and groups in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steprl.types import EpisodeError, Sampling, Step, StopReason, Trajectory, TrajectoryGroup


def step(
    prompt: Sequence[int], action: Sequence[int], *, sampled: Sequence[bool] | None = None, **fields: Any
) -> Step:
    """A step in which every action token was sampled, unless told otherwise."""
    mask = np.ones(len(action), dtype=bool) if sampled is None else np.asarray(sampled, dtype=bool)
    fields.setdefault("sampling", Sampling())
    fields.setdefault("logprobs", None)
    return Step(
        prompt_ids=prompt,
        action_ids=action,
        sampled_mask=mask,
        policy_versions=np.zeros(len(action), dtype=np.int32),
        **fields,
    )


def chained(*steps: Step) -> list[Step]:
    """The steps one after the other: each continues the one before."""
    return [replace(step, parent=index - 1 if index else None) for index, step in enumerate(steps)]


def trajectory(
    uid: str,
    steps: Sequence[Step],
    *,
    group: str = "g",
    stop_reason: StopReason = StopReason.TERMINATED,
) -> Trajectory:
    """A trajectory of the group ``g``; one that ended in an error carries one."""
    broken = stop_reason is StopReason.ERROR
    return Trajectory(
        uid=uid,
        group_uid=group,
        task_id=group,
        task_hash=group,
        seed=0,
        steps=tuple(steps),
        stop_reason=stop_reason,
        error=EpisodeError(kind="EnvError", message="broken") if broken else None,
    )


def rewarded(
    uid: str,
    reward: float | None,
    *,
    steps: int = 1,
    group: str = "g",
    stop_reason: StopReason = StopReason.TERMINATED,
) -> Trajectory:
    """A trajectory of ``steps`` steps of two tokens whose last step has the reward."""
    made = [step([1, 2], [3, 4], reward=0.0 if t < steps - 1 else reward) for t in range(steps)]
    return trajectory(uid, made, group=group, stop_reason=stop_reason)


def grouped(*trajectories: Trajectory) -> list[TrajectoryGroup]:
    """The trajectories in their groups, in the order in which the groups appear."""
    uids = dict.fromkeys(trajectory.group_uid for trajectory in trajectories)
    return [
        TrajectoryGroup(
            group_uid=uid, task_id=uid, trajectories=tuple(t for t in trajectories if t.group_uid == uid)
        )
        for uid in uids
    ]
