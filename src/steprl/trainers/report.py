"""What the loop has to say about a run: its figures on disk and for TensorBoard, what broke, the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.summary import Writer

from steprl.rewards.compose import RewardComposer
from steprl.trainers.learning import Learned
from steprl.trainers.parts import Player
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage import board
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.statistics import batch_statistics, failures
from steprl.types import Credits, TrajectoryGroup

_COUNTS = frozenset({"skipped_steps", "optimiser_steps", "tokens", "rows", "value_targets"})
_STEPS = 8
"""Steps whose advantages are told apart."""


def record(folder: RunFolder, writer: Writer, iteration: int, metrics: Mapping[str, float]) -> None:
    """One line of ``metrics.jsonl``, and the same figures as TensorBoard events."""
    line = {"iteration": iteration, **metrics}
    folder.append_metrics(line)
    board.record(writer, line)


def iteration_metrics(
    groups: Sequence[TrajectoryGroup],
    *,
    dropped: int,
    learned: Learned,
    rollout_seconds: float,
    update_seconds: float,
) -> dict[str, float]:
    """The figures of an iteration: batch, credit, learner, critic, time and speed. ``groups`` are all that
    were played, and ``dropped`` of them were not trained on."""
    counted = [t for group in groups for t in group.trajectories if t.stop_reason.trains]
    sampled = sum(int(step.sampled_mask.sum()) for t in counted for step in t.steps)
    return {
        **batch_statistics(groups),
        **(_credit_metrics(learned.credits) if learned.credits else {}),
        **_update_metrics("learner", learned.policy),
        **(_update_metrics("critic", learned.values) if learned.values else {}),
        "groups/dropped": float(dropped),
        "time/rollout": rollout_seconds,
        "time/update": update_seconds,
        "time/iteration": rollout_seconds + update_seconds,
        "speed/tokens_per_second": sampled / rollout_seconds,
        "speed/rows": float(len(learned.token_rows)),
    }


def _update_metrics(who: str, updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the updates of an iteration; what counts things is summed, what is a maximum stays one."""
    found: dict[str, float] = {f"{who}/updates": float(len(updates))}
    for name in sorted({name for update in updates for name in update}):
        values = [update[name] for update in updates if name in update]
        if name.startswith("max_"):
            found[f"{who}/{name}"] = max(values)
        elif name in _COUNTS:
            found[f"{who}/{name}"] = sum(values)
        else:
            found[f"{who}/{name}"] = float(np.mean(values))
    return found


def _credit_metrics(credits: Credits) -> dict[str, float]:
    """Mean |advantage| of a trajectory's trained steps, and by the index of the step; over trajectories."""
    of_trajectories: dict[str, dict[int, float]] = {}
    for key, mask in credits.loss_mask.items():
        if mask.any():
            size = float(np.abs(credits.advantages[key][mask]).mean())
            of_trajectories.setdefault(key.trajectory, {})[key.step] = size
    if not of_trajectories:
        return {}
    found = {"credit/abs_advantage": [float(np.mean(list(t.values()))) for t in of_trajectories.values()]}
    for steps in of_trajectories.values():
        for index in sorted(steps):
            if index < _STEPS:
                found.setdefault(f"credit/abs_advantage_step_{index}", []).append(steps[index])
    return {name: float(np.mean(values)) for name, values in found.items()}


def missing_rewards(rewards: RewardComposer, groups: Sequence[TrajectoryGroup]) -> list[str]:
    """A line for every weighted component that no step of the batch has."""
    seen = {name for group in groups for t in group.trajectories for step in t.steps for name in step.rewards}
    return [
        f"rollout.rewards: no step so far has a component '{name}'; is it spelled right?"
        for name in rewards.missing(seen)
    ]


def tell_rollout(
    display: Display, recipe: Recipe, player: Player, groups: Sequence[TrajectoryGroup], number: int
) -> None:
    """Say what a person should know of a rollout batch: what broke, rewards that never came, now and then an
    episode."""
    lines = failures(t for group in groups for t in group.trajectories)
    if number == 1:
        lines += missing_rewards(player.rewards, groups)
    for line in lines:
        display.say(line)
    every = recipe.train.show_every
    if every and number % every == 0:
        display.episode(groups[0].trajectories[0], player.renderer.decode)


def summary_of(
    recipe: Recipe,
    *,
    before: Mapping[str, float],
    after: Mapping[str, float],
    eval_tasks: int,
    iterations: int,
    train_seconds: float,
) -> dict[str, Any]:
    """What ``summary.json`` holds: the figures of the evaluations, and what they are figures of."""
    return {
        "success_before": before.get("success"),
        "success_after": after.get("success"),
        "greedy_before": before.get("greedy_success"),
        "greedy_after": after.get("greedy_success"),
        "reward_before": before.get("reward"),
        "reward_after": after.get("reward"),
        "eval_tasks": eval_tasks,
        "iterations": iterations,
        "train_seconds": round(train_seconds, 2),
        "seed": recipe.seed,
        "algorithm": recipe.algorithm.estimator,
        "context": recipe.context.id,
        "model": recipe.model.path,
    }
