"""Recipes small enough for a test, and what is left of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from playing import REPLIES
from rich.console import Console
from safetensors.numpy import load_file
from tensorboard.summary import Writer

from steprl.config import build, override
from steprl.trainers import api
from steprl.trainers.loop import Trainer
from steprl.trainers.parts import build_parts
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import read

DICE: dict[str, Any] = {
    "name": "run",
    "threads": 1,
    "env": {"id": "playing:Guess", "train": "train", "eval": "eval"},
    "engine": {"id": "playing:Dice", "args": {"replies": list(REPLIES)}},
    "rollout": {"groups": 2, "group_size": 4, "max_steps": 3},
    "learner": {"lr": 1e-2},
    "train": {"iterations": 4, "checkpoint_every": 2, "show_every": 0},
    "evaluation": {"tasks": 4, "greedy": False},
}
"""``Guess`` played by ``Dice``: every token follows from seeds, and the learner's weights really move."""

COURIER: dict[str, Any] = {
    "name": "courier",
    "threads": 1,
    "env": {"id": "courier", "train": "train", "eval": "eval"},
    "engine": {"id": "torch", "slots": 8, "max_context": 1024},
    "rollout": {
        "groups": 2,
        "group_size": 2,
        "max_steps": 2,
        "max_tokens": 8,
        "rewards": {"playing:letters": 0.1},
    },
    "learner": {"lr": 1e-2},
    "train": {"iterations": 3, "checkpoint_every": 2, "show_every": 2},
    "evaluation": {"tasks": 3, "greedy": True, "every": 2},
}
"""Courier played by the tiny model itself, with a reward that garbage can earn, too."""


def recipe_of(table: dict[str, Any], policy: str, runs: Path, *assignments: str) -> Recipe:
    """A recipe with this model, written under ``runs``, and with overrides."""
    table = {**table, "runs": str(runs), "model": {"path": policy, **table.get("model", {})}}
    return build(Recipe, override(table, assignments))


def quiet() -> Display:
    """A display that nobody sees."""
    return Display(Console(file=io.StringIO(), width=200))


def said(display: Display) -> str:
    """What a quiet display was told."""
    assert isinstance(display.console.file, io.StringIO)
    return display.console.file.getvalue()


def run(recipe: Recipe, **options: Any) -> dict[str, Any]:
    """Train without output."""
    return api.run(recipe, display=options.pop("display", None) or quiet(), **options)


class Brisk(Trainer):
    """A trainer that ends with its last checkpoint: the evaluation and the picture after that are slow to
    make, and many tests do not look at them."""

    async def _finish(self, writer: Writer) -> dict[str, Any]:
        return {}

    def draw(self) -> None:
        """No picture."""


def run_briskly(recipe: Recipe, *, resume: Path | None = None) -> Path:
    """Train without output, evaluation after training, and picture; returns the folder."""
    folder = RunFolder.create(recipe) if resume is None else RunFolder(resume)
    Brisk(recipe, build_parts(recipe), folder, quiet()).run()
    return folder.path


def weights(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The weights in the newest checkpoint of a run."""
    return dict(load_file(RunFolder(folder).checkpoints()[-1] / "model.safetensors"))


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs ended in the same weights, bit for bit."""
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def dealt(folder: Path) -> list[str]:
    """Ids of the tasks trained on, in order."""
    return [group.task_id for group in read(folder, split="train")]


def sampled(folder: Path) -> list[list[int]]:
    """Every action of training, in order."""
    groups: Sequence[Any] = read(folder, split="train")
    return [s.action_ids.tolist() for group in groups for t in group.trajectories for s in t.steps]
