"""From a recipe to the cursor that deals its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from steprl.errors import ConfigError
from steprl.registry import call, resolve
from steprl.rollout import derive_seed
from steprl.trainers.cursor import Cursor, TaskCursor
from steprl.trainers.recipe import Recipe
from steprl.types import Task


def cursor_of(recipe: Recipe, tasks: Sequence[Task]) -> Cursor:
    """The recipe's curriculum over these tasks, at its beginning.

    Raises:
        ConfigError: there is none of this name, it is none, or it does not take the options.
        TaskError: there are no tasks, or they do not say what it asks of them.
    """
    config, seed = recipe.curriculum, derive_seed(recipe.seed, "tasks")
    if config.id is None:
        return TaskCursor(tasks, seed=seed)
    made = call(
        "curriculum", config.id, partial(resolve("curriculum", config.id), tasks, seed=seed), config.args
    )
    if not isinstance(made, Cursor):
        raise ConfigError(
            f"curriculum '{config.id}' made {made!r}: a curriculum is a class derived from Cursor "
            f"(steprl.trainers.cursor), made with tasks, seed, and its options"
        )
    return made
