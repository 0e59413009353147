"""A run on disk: resolved config, metrics, checkpoints, summary. Everything is complete or absent."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steprl.config import build, read_toml, to_toml
from steprl.errors import CheckpointError, ConfigError
from steprl.trainers.given import Record, differences
from steprl.trainers.recipe import Recipe

STATE = "trainer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """What the loop needs, besides the learner, to go on: iterations done, the last one evaluated (-1: none
    yet), tasks dealt, seconds trained, and the figures of the evaluation before training."""

    iteration: int
    evaluated: int
    cursor: int
    train_seconds: float
    before: Mapping[str, float]


class RunFolder:
    """``runs/<name>``. Make one with `create` or `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, recipe: Recipe, *, given: Record | None = None, overwrite: bool = False) -> RunFolder:
        """A new folder with the resolved recipe in it, and a record of what was handed over beside it.

        Raises:
            ConfigError: it exists already, is being trained, or cannot be written.
        """
        path = Path(recipe.runs) / recipe.name
        if path.exists():
            if not overwrite:
                raise ConfigError(
                    f"the run folder '{path}' exists. Continue it with '{cls(path).command()}', "
                    f"replace it with --overwrite, or choose another name=…"
                )
            empty = path.is_dir() and not any(path.iterdir())
            if not empty and not (path / "config.toml").is_file():
                raise ConfigError(f"'{path}' is not a run folder (no config.toml in it); it stays as it is")
        try:
            if path.exists():
                with cls(path).locked():
                    shutil.rmtree(path)
            path.mkdir(parents=True)
            if given:
                write_whole(path / "given.json", json.dumps(given, indent=2) + "\n")
            write_whole(path / "config.toml", to_toml(recipe))
        except OSError as error:
            raise ConfigError(f"the run folder '{path}' cannot be written: {error}") from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> tuple[RunFolder, Recipe]:
        """An existing run and its recipe.

        Raises:
            ConfigError: there is no run at ``path``.
        """
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise ConfigError(f"'{path}' is not a run folder: it has no config.toml")
        return cls(path), build(Recipe, read_toml(path / "config.toml"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within, no other process trains in this folder. A kill leaves ``.lock``, but nothing locked.

        Raises:
            ConfigError: another process has it.
        """
        with (self.path / ".lock").open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ConfigError(
                    f"'{self.path}' is being trained by another process (pid {file.read().strip()}); "
                    f"wait for it or stop it"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    # ── what was handed over ──────────────────────────────────────────────────────────────────────

    def given(self) -> Record:
        """What ``given.json`` says was handed over from Python; empty when the recipe says it all.

        Raises:
            ConfigError: it cannot be read.
        """
        file = self.path / "given.json"
        try:
            return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error

    def check_given(self, now: Record) -> None:
        """Refuse to go on with other objects than the run was started with.

        Raises:
            ConfigError: what differs, and how to continue.
        """
        recorded = self.given()
        if recorded and not now:
            raise ConfigError(
                f"'{self.path}' was started from Python with what its config.toml cannot name: "
                f"{', '.join(recorded)}. Continue it from Python, handing over the same: {self.command()}"
            )
        if differing := differences(recorded, now):
            raise ConfigError(
                f"'{self.path}' cannot be continued with this: {'; '.join(differing)}. "
                f"Hand over what the run was started with."
            )

    def command(self) -> str:
        """How a person continues this run."""
        if self.given():
            return f'steprl.train(..., resume="{self.path}")'
        return f"steprl train --resume {self.path}"

    # ── metrics ───────────────────────────────────────────────────────────────────────────────────

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """One line to ``metrics.jsonl``. A figure that is not finite becomes null, as JSON wants it."""
        line = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in line.items()
        }
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of ``metrics.jsonl``; a last line that a kill cut short is left out."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
        # a complete line ends in a newline, so what follows the last newline was cut short
        return [json.loads(line) for line in lines[:-1]]

    def forget_after(self, iteration: int, *, evaluated: int) -> None:
        """Drop metrics and trajectories of iterations and evaluations that a resumed run will play again."""

        def last(is_evaluation: bool) -> int:
            return evaluated if is_evaluation else iteration

        kept = [
            line
            for line in self.metrics()
            if line["iteration"] <= last(any(name.startswith("eval/") for name in line))
        ]
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        for file in (self.path / "trajectories").glob("*.parquet"):
            # files of other names are somebody else's
            ours = re.fullmatch(r"([0-9]{6,})-(train|eval)\.parquet", file.name)
            if ours and int(ours[1]) > last(ours[2] == "eval"):
                file.unlink()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """``summary.json``: the figures a script reads."""
        write_whole(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """``summary.json``, or None while the run is not finished."""
        file = self.path / "summary.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────

    def checkpoint(self, state: TrainerState, save: Callable[[Path], None]) -> Path:
        """Write ``checkpoints/step-N`` aside, make it durable, rename it; then drop the older ones, and what
        a kill left of others."""
        folder = self.path / "checkpoints"
        target = folder / f"step-{state.iteration}"
        if target in self.checkpoints():
            # the weights of an iteration are safe already; but they may have been evaluated since
            write_whole(target / STATE, json.dumps(asdict(state)) + "\n")
            return target
        for left in folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        aside = folder / f".step-{state.iteration}.partial"
        aside.mkdir(parents=True)
        save(aside)
        write_whole(aside / STATE, json.dumps(asdict(state)) + "\n")
        for file in aside.rglob("*"):
            _sync(file)
        _sync(aside)
        os.rename(aside, target)
        _sync(folder)
        for older in self.checkpoints():
            if older != target:
                shutil.rmtree(older)
        return target

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first. A folder of any other name, such as a copy, is left alone."""
        found = [
            path
            for path in (self.path / "checkpoints").glob("step-*")
            if re.fullmatch(r"step-[0-9]+", path.name) and (path / STATE).is_file()
        ]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))

    @staticmethod
    def state(checkpoint: Path) -> TrainerState:
        """The loop's state in a checkpoint.

        Raises:
            CheckpointError: it cannot be read.
        """
        try:
            return TrainerState(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{checkpoint / STATE} cannot be read: {error}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
