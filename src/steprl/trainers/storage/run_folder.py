"""A run on disk: resolved config, metrics, checkpoints, summary. Everything is complete or absent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steprl.config import build, read_toml, to_toml
from steprl.errors import CheckpointError, ConfigError, StorageError
from steprl.trainers.given import Record, differences
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage import figures
from steprl.trainers.storage.durable import (
    damage,
    read_text,
    remove,
    seal,
    storing,
    sweep,
    sync,
    write_folder,
    write_whole,
)
from steprl.trainers.storage.lock import locked
from steprl.trainers.storage.state import STATE, TrainerState


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
        if path.is_symlink():
            path = path.resolve()  # the folder is what is made, kept and replaced, not the link
        if path.exists():
            if not overwrite:
                raise ConfigError(
                    f"the run folder '{path}' exists. Continue it with '{cls(path).command()}', "
                    f"replace it with --overwrite, or choose another name=…"
                )
            empty = path.is_dir() and not any(path.iterdir())
            if not empty and not (path / "config.toml").is_file():
                raise ConfigError(f"'{path}' is not a run folder (no config.toml in it); it stays as it is")

        def fill(aside: Path) -> None:
            if given:
                write_whole(aside / "given.json", json.dumps(given, indent=2) + "\n")
            write_whole(aside / "config.toml", to_toml(recipe))

        try:
            if path.exists():
                with cls(path).locked(), storing(path):
                    remove(path)
            write_folder(path, fill)
        except StorageError as error:
            raise ConfigError(f"the run folder {error} Or choose another place with runs=…") from None
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
            ConfigError: another process has it, or the folder cannot be written.
            StorageError: from inside; it says what is safe and how to go on.
        """
        with locked(self.path, kind="run folder", doing="trained"):
            try:
                yield
            except StorageError as error:
                raise StorageError(f"{error} {self._safe()}") from error

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
        """One line to ``metrics.jsonl``; see `figures.append`."""
        figures.append(self.path / "metrics.jsonl", line)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of ``metrics.jsonl``; see `figures.read`."""
        return figures.read(self.path / "metrics.jsonl")

    def forget_after(self, iteration: int, *, evaluated: int) -> None:
        """Drop metrics and trajectories of iterations and evaluations that a resumed run will play again, and
        what a kill left half written."""

        def last(is_evaluation: bool) -> int:
            return evaluated if is_evaluation else iteration

        kept = [
            line
            for line in self.metrics()
            if line["iteration"] <= last(any(name.startswith("eval/") for name in line))
        ]
        for folder in (self.path, self.path / "checkpoints"):
            sweep(folder)
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        for file in (self.path / "trajectories").glob("*"):
            # files of other names are somebody else's
            ours = re.fullmatch(r"\.?([0-9]{6,})-(train|eval)\.parquet(\.[0-9a-f]{32}\.tmp)?", file.name)
            if ours and (ours[3] or int(ours[1]) > last(ours[2] == "eval")):
                file.unlink()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """``summary.json``: the figures a script reads."""
        write_whole(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """``summary.json``, or None while the run is not finished."""
        file = self.path / "summary.json"
        if not file.exists():
            return None
        try:
            return dict(json.loads(read_text(file)))
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{file} is not what a run writes: {error}. Remove it, and the end of the run is made again."
            ) from error

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────

    def checkpoint(self, state: TrainerState, save: Callable[[Path], None]) -> Path:
        """Write ``checkpoints/step-N`` whole; only then the older ones go.

        Raises:
            StorageError: it cannot be written. The older ones are as they were, and nothing of it is left.
        """
        folder = self.path / "checkpoints"
        target = folder / f"step-{state.iteration}"

        def fill(aside: Path) -> None:
            save(aside)
            seal(aside)
            write_whole(aside / STATE, json.dumps(asdict(state)) + "\n")

        if target in self.checkpoints():
            # the weights of an iteration are safe already; but they may have been evaluated since
            write_whole(target / STATE, json.dumps(asdict(state)) + "\n")
            return target
        with storing(self.path):
            # of a run that was shorter: it must not stand beside later weights
            (self.path / "summary.json").unlink(missing_ok=True)
            sweep(folder)
            if (self.path / "metrics.jsonl").exists():
                sync(self.path / "metrics.jsonl")  # what was done before these weights lasts as long as they
        write_folder(target, fill)
        with storing(folder):
            for older in self.checkpoints():
                if older != target:
                    remove(older)
        return target

    def checkpoints(self) -> list[Path]:
        """Checkpoints, oldest first: folders called ``step-N``, which were written whole. Any other, such as
        a copy, is left alone."""
        return _saved(self.path / "checkpoints")

    @staticmethod
    def state(checkpoint: Path) -> TrainerState:
        """The loop's state in a checkpoint, all of whose files are still what was written.

        Raises:
            CheckpointError: a file is missing, cut short or changed; the message names it, and an older
                checkpoint that is whole, if there is one.
        """
        try:
            state = TrainerState.read(read_text(checkpoint / STATE))
            fault = damage(checkpoint)
        except FileNotFoundError:
            fault = f"{STATE} is missing"
        except (OSError, ValueError, TypeError) as error:
            fault = f"{STATE} cannot be read: {error}"
        if fault is None:
            return state
        whole = [path.name for path in _saved(checkpoint.parent) if path != checkpoint and not damage(path)]
        raise CheckpointError(
            f"the checkpoint '{checkpoint}' is damaged: {fault}. "
            + (
                f"'{whole[-1]}' beside it is whole: remove '{checkpoint.name}' and resume from there."
                if whole
                else "Put back a copy of it, or start the run again with --overwrite."
            )
        )

    def _safe(self) -> str:
        """What a run that ends now has safe, and how to go on."""
        saved = self.checkpoints()
        safe = (
            f"The checkpoint of iteration {_number(saved[-1])} is whole" if saved else "Nothing is saved yet"
        )
        return f"{safe}. Make room and continue with: {self.command()}"


def _saved(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-[0-9]+", path.name)]
    return sorted(found, key=_number)


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))
