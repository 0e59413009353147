"""Evaluation: every task exactly once, with sampling and seeds of its own that training never sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steprl.rollout import Pool, Progress, derive_seed
from steprl.trainers.evaluation.attempts import fault_of
from steprl.trainers.parts import Parts
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trajectory.statistics import batch_statistics, failures, success
from steprl.trajectory.store import file_path, write
from steprl.types import Sampling, StopReason, Task, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation found. ``success`` is the share of all tasks that were solved: an episode that
    broke, met a deadline or could not be scored counts as not solved and not in ``reward``, and ``errors``
    says how many did. None without an outcome; but where a limit (max_steps, context_full) ended every
    counted episode before it had one, nothing was solved: 0."""

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
    return summarised(groups)


def summarised(groups: Sequence[TrajectoryGroup]) -> Evaluation:
    """What groups of one episode per task come to."""
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    sound = [trajectory for trajectory in everything if fault_of(trajectory) is None]
    outcomes = [success(trajectory) for trajectory in sound]
    limited = all(trajectory.stop_reason is not StopReason.TERMINATED for trajectory in sound)
    told = any(outcome is not None for outcome in outcomes) or (bool(sound) and limited)
    rewards = [trajectory.reward for trajectory in sound if trajectory.reward is not None]
    return Evaluation(
        tasks=len(groups),
        success=sum(map(bool, outcomes)) / len(everything) if told else None,
        reward=math.fsum(rewards) / len(rewards) if rewards else None,
        errors=len(everything) - len(sound),
        statistics=batch_statistics(groups),
        groups=groups,
    )


async def evaluate_in_training(
    recipe: Recipe, parts: Parts, display: Display, *, run: Path, iteration: int, when: str
) -> dict[str, float]:
    """Success and reward, sampled and (asked for) greedy, on the evaluation tasks; the sampled episodes are
    stored in the run folder. ``when`` is before, during or after: it names the episodes."""
    tasks, config = parts.eval_tasks, recipe.evaluation
    if not tasks:
        return {}
    found: dict[str, float] = {}
    modes = {"sampled": config.temperature, **({"greedy": 0.0} if config.greedy else {})}
    for mode, temperature in modes.items():
        if recipe.deterministic:
            await parts.forget_cached()
        with display.phase(f"evaluation, {mode}", len(tasks)) as bar:
            result = await evaluate(
                parts.player.pool,
                tasks,
                label=f"eval-{iteration}-{when}-{mode}",
                seed=derive_seed(recipe.seed, "evaluation"),
                sampling=evaluation_sampling(recipe, parts.player.renderer.stop_ids, temperature),
                max_steps=recipe.rollout.max_steps,
                progress=bar.on_episode,
            )
        if mode == "sampled":
            path = file_path(run, iteration=iteration, split="eval")
            write(path, result.groups, iteration=iteration, split="eval")
        prefix = "" if mode == "sampled" else "greedy_"
        for name, value in (("success", result.success), ("reward", result.reward)):
            if value is not None:
                found[prefix + name] = value
        for line in failures(t for group in result.groups for t in group.trajectories):
            display.say(line)
    told = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
    display.say(f"evaluation {when} training, {len(tasks)} tasks: {told}")
    return found


def evaluation_sampling(recipe: Recipe, stop_ids: tuple[int, ...], temperature: float) -> Sampling:
    """The rollout's sampling at another temperature, and without its filters."""
    return replace(recipe.rollout.sampling(stop_ids), temperature=temperature, top_p=1.0, top_k=0)
