"""An evaluation on disk: what is played is kept part by part, each complete or absent, so that an evaluation
that was interrupted goes on where it stopped and plays nothing twice.

    config.toml                     the recipe that is evaluated, resolved
    settings.json                   what the recipe does not say
    trajectories/NNNNNN-eval.parquet the episodes of part N, with their tokens
    attempts/NNNNNN.jsonl           what came of them, a line each; its presence makes the part count
    evaluation.json                 the report, when all is played
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steprl.config import build, differing, flattened, read_toml, to_toml
from steprl.errors import ConfigError
from steprl.trainers.evaluation.attempts import Attempt, attempt_from
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.durable import read_text, storing, sweep, write_folder, write_whole
from steprl.trainers.storage.lock import locked
from steprl.trajectory.store import file_path, read, write
from steprl.types import Trajectory, TrajectoryGroup

REPORT = "evaluation.json"

_SETTINGS = "settings.json"
_PARTS = "attempts"
_DECIDES = (
    "seed",
    "model",
    "env",
    "context",
    "engine.id",
    "engine.dtype",
    "engine.max_context",
    "engine.args",
)
_DECIDES_TOO = ("temperature", "top_p", "top_k", "max_tokens", "stop", "max_steps", "rewards")
"""Options that decide what an attempt comes to, the latter of ``rollout``. The number of tasks is none: more
of them contain fewer."""


class EvaluationFolder:
    """Make one with `begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def begin(cls, path: Path, recipe: Recipe, *, greedy: bool) -> EvaluationFolder:
        """A new folder, or one in which the very same evaluation was begun.

        Raises:
            ConfigError: it holds something else, or an evaluation of something else, with what differs.
            StorageError: it cannot be written.
        """
        folder = cls(path)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            folder._refuse_other(recipe, greedy)
            return folder

        def fill(aside: Path) -> None:
            write_whole(aside / "config.toml", to_toml(recipe))
            write_whole(aside / _SETTINGS, json.dumps({"greedy": greedy}) + "\n")
            (aside / _PARTS).mkdir()

        if path.exists():
            path.rmdir()
        write_folder(path, fill)
        return folder

    def locked(self) -> AbstractContextManager[None]:
        """Within, no other process evaluates into this folder.

        Raises:
            ConfigError: another process does.
        """
        return locked(self.path, kind="evaluation folder", doing="written")

    def attempts(self) -> dict[tuple[int, int], Attempt]:
        """What has been played, by place of the task and number of the attempt; the last counts.

        What a kill left without its lines is removed: it will be played again.

        Raises:
            ConfigError: a file is damaged.
        """
        with storing(self.path):
            for folder in (self.path, self.path / _PARTS):
                sweep(folder)
            counted = {path.stem for path in self._parts()}
            for stray in (self.path / "trajectories").glob("*"):
                if stray.name.removesuffix("-eval.parquet") not in counted:
                    stray.unlink()
        found = [_line(path, line) for path in self._parts() for line in read_text(path).splitlines()]
        return {attempt.key: attempt for attempt in found}

    def trajectories(self) -> dict[str, Trajectory]:
        """The episodes that have been played, by uid; the last of a uid counts.

        Raises:
            ConfigError: a file is damaged.
        """
        found: dict[str, Trajectory] = {}
        for path in self._parts():
            groups = read(file_path(self.path, iteration=int(path.stem), split="eval"))
            found |= {t.uid: t for group in groups for t in group.trajectories}
        return found

    def add(self, played: Sequence[tuple[Attempt, Trajectory]]) -> None:
        """Keep one more part.

        Raises:
            StorageError: it cannot be written; nothing of it counts.
        """
        number = 1 + max((int(path.stem) for path in self._parts()), default=0)
        groups: dict[str, list[Trajectory]] = {}
        for _, trajectory in played:
            groups.setdefault(trajectory.group_uid, []).append(trajectory)
        write(
            file_path(self.path, iteration=number, split="eval"),
            [
                TrajectoryGroup(group_uid=uid, task_id=found[0].task_id, trajectories=tuple(found))
                for uid, found in groups.items()
            ],
            iteration=number,
            split="eval",
        )
        lines = "".join(json.dumps(attempt.to_json()) + "\n" for attempt, _ in played)
        write_whole(self.path / _PARTS / f"{number:06d}.jsonl", lines)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """``evaluation.json``: that all is played, and what came of it."""
        write_whole(self.path / REPORT, json.dumps(report, indent=2) + "\n")

    def _parts(self) -> list[Path]:
        return sorted((self.path / _PARTS).glob("[0-9]*.jsonl"))

    def _refuse_other(self, recipe: Recipe, greedy: bool) -> None:
        if not (self.path / _SETTINGS).is_file():
            raise ConfigError(
                f"'{self.path}' is no evaluation (no {_SETTINGS} in it); it stays as it is. Choose another "
                f"--out."
            )
        recorded = build(Recipe, read_toml(self.path / "config.toml"))
        then = _deciding(recorded, json.loads(read_text(self.path / _SETTINGS))["greedy"])
        if found := differing(then, _deciding(recipe, greedy)):
            raise ConfigError(
                f"'{self.path}' is an evaluation of something else: {'; '.join(found)}. Choose another "
                f"--out, or go on with what it was begun with."
            )


def record_of(recipe: Recipe, greedy: bool, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What a report is of: the options that decided it, and every attempt."""
    return {
        "recipe": _deciding(recipe, greedy),
        "attempts": [attempt.to_json() for attempt in attempts],
    }


def _deciding(recipe: Recipe, greedy: bool) -> dict[str, Any]:
    names = (*_DECIDES, *(f"rollout.{name}" for name in _DECIDES_TOO), "evaluation.temperature")
    found = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flattened(asdict(recipe)).items()
        if any(key == name or key.startswith(f"{name}.") for name in names)
    }
    return {**found, "greedy": greedy}


def _line(path: Path, line: str) -> Attempt:
    try:
        return attempt_from(json.loads(line))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"'{path}' is damaged: {error}") from error
