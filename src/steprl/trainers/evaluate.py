"""Evaluation: every task exactly once, with sampling and seeds of its own that training never sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steprl.rollout import Pool, Progress
from steprl.trajectory.statistics import batch_statistics
from steprl.types import Sampling, StopReason, Task, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation found. ``success`` is the share of all tasks that were solved: an episode
    that broke counts as not solved, and ``errors`` says how many did. None without an outcome; but
    where a limit (max_steps, context_full) ended every counted episode before it had one, nothing was
    solved: 0."""

    tasks: int
    success: float | None
    reward: float | None
    errors: int
    statistics: Mapping[str, float]
    groups: Sequence[TrajectoryGroup]


async def evaluate(
    pool: Pool,
    tasks: Sequence[Task],
    *,
    label: str,
    seed: int,
    sampling: Sampling,
    max_steps: int,
    progress: Progress | None = None,
) -> Evaluation:
    """Play each task once. The same seed gives the same evaluation, whatever was trained in between."""
    groups = await pool.collect(
        tasks,
        label=label,
        seed=seed,
        group_size=1,
        sampling=sampling,
        max_steps=max_steps,
        progress=progress,
    )
    statistics = batch_statistics(groups)
    counted = statistics["batch/counted"]
    share = statistics.get("reward/success_share")
    reasons = [t.stop_reason for group in groups for t in group.trajectories if t.stop_reason.trains]
    if share is None and reasons and StopReason.TERMINATED not in reasons:
        share = 0.0
    return Evaluation(
        tasks=len(tasks),
        success=None if share is None else share * counted / len(tasks),
        reward=statistics.get("reward/mean"),
        errors=int(statistics["errors/total"]) if "errors/total" in statistics else 0,
        statistics=statistics,
        groups=groups,
    )
