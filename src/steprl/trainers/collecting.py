"""The first half of an iteration: rollouts, until as many groups are kept as the recipe asks for.

Without filters that is one rollout. With them, what they drop is made up for with new tasks, a bounded number
of times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steprl.rollout import derive_seed
from steprl.trainers.cursor import Cursor
from steprl.trainers.filtering.choose import Chosen, choose
from steprl.trainers.needs import check_outcomes, check_recorded
from steprl.trainers.parts import Parts
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.types import Task, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A rollout batch: every group that was played, in the order of the tasks, and the task of each by the
    group's uid; which of them train; and in how many rounds after the first they were played."""

    groups: Sequence[TrajectoryGroup]
    tasks: Mapping[str, Task]
    chosen: Chosen
    rounds: int

    def metrics(self, recipe: Recipe, number: int) -> dict[str, float]:
        """What filters have done, and the horizon of iteration ``number``; nothing where not in use."""
        found: dict[str, float] = {}
        if self.chosen.filtered:
            found = {"filter/rounds": self.rounds, **self.chosen.metrics(wanted=recipe.rollout.groups)}
        if recipe.rollout.horizon.start:
            found["horizon/max_steps"] = recipe.rollout.limit(number)
        return {name: float(value) for name, value in found.items()}


async def collect(recipe: Recipe, parts: Parts, cursor: Cursor, number: int, display: Display) -> Collected:
    """Play the next tasks of the cursor for iteration ``number``, ``rollout.groups`` of them.

    Where filters leave fewer groups than that, a further round plays as many new tasks as groups are missing,
    at most ``filter.max_rounds`` times: so there is no surplus, and every group that was kept trains. Groups
    are numbered through, and what is drawn in them follows from their number, whatever the round.

    Raises:
        ConfigError: the first batch lacks what the recipe reads in it.
        EnvError, EngineError: every episode of the first round failed.
    """
    wanted = recipe.rollout.groups
    groups: list[TrajectoryGroup] = []
    tasks: dict[str, Task] = {}
    chosen = Chosen(groups=(), played=0)
    most, rounds = recipe.filter.max_rounds + 1 if parts.filters else 1, 0
    while rounds < most and len(chosen.groups) < wanted:
        dealt = cursor.take(wanted - len(chosen.groups))
        played = await _play(recipe, parts, number, dealt, len(groups), display)
        tasks |= {group.group_uid: task for group, task in zip(played, dealt, strict=True)}
        groups += played
        chosen = choose(recipe, parts.filters, parts.estimator, groups)
        rounds += 1
    if number == 1:
        check_recorded(recipe, parts.estimator, groups)
        check_outcomes([*parts.filters.needing_outcome, *_curriculum_needing(recipe, cursor)], groups)
    return Collected(groups=groups, tasks=tasks, chosen=chosen, rounds=rounds - 1)


async def _play(
    recipe: Recipe, parts: Parts, number: int, tasks: Sequence[Task], first: int, display: Display
) -> list[TrajectoryGroup]:
    """A rollout of these tasks; ``first`` is the number of their first group in the iteration."""
    config = recipe.rollout
    if recipe.deterministic:
        await parts.forget_cached()
    with display.phase(f"rollout {number}", len(tasks) * config.group_size) as bar:
        return await parts.player.pool.collect(
            tasks,
            label=f"train-{number}",
            seed=derive_seed(recipe.seed, "train", number),
            group_size=config.group_size,
            sampling=config.sampling(parts.player.renderer.stop_ids),
            max_steps=config.limit(number),
            first=first,
            progress=bar.on_episode,
        )


def _curriculum_needing(recipe: Recipe, cursor: Cursor) -> list[str]:
    return [str(recipe.curriculum.id)] if cursor.needs_outcome else []
