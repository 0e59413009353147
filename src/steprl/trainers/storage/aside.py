"""A model folder that is complete or absent: written aside, made durable, renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from steprl.errors import ConfigError
from steprl.trainers.storage.durable import remove, storing, sync


@contextmanager
def written_aside(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A fresh folder that becomes ``target`` when the block ends well; otherwise nothing has happened.

    Raises:
        ConfigError: ``target`` is a file, or holds something (unless ``overwrite`` and a model folder).
        StorageError: it cannot be written.
    """
    if target.is_symlink():
        target = target.resolve()  # the folder is what is made and replaced, not the link
    with storing(target):
        _check(target, overwrite)
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with storing(target):
        _sweep(target)
        aside.mkdir(parents=True)
    try:
        yield aside
        with storing(target):
            for file in (*aside.rglob("*"), aside):
                sync(file)
            _put(aside, target)
            sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check(target: Path, overwrite: bool) -> None:
    if target.name in ("", ".."):
        raise ConfigError(f"out must name a folder that can be made, got '{target}'")
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"'{target}' is a file; a policy is written to a folder")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise ConfigError(
            f"the folder '{target}' exists and is not empty. Replace it with --overwrite (overwrite=True "
            f"from Python), or choose another one."
        )
    if not (target / "config.json").is_file():
        raise ConfigError(f"'{target}' is not a model folder (no config.json in it); it stays as it is")


def _sweep(target: Path) -> None:
    """Remove what processes that are gone have left half written beside ``target``; a former folder that one
    of them had moved out of the way stays."""
    for left in target.parent.glob(f".{target.name}.*.partial"):
        pid = left.name.removeprefix(f".{target.name}.").removesuffix(".partial")
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            remove(left)


def _put(aside: Path, target: Path) -> None:
    """Rename, with what was at ``target`` moved out of the way first, and back if that fails."""
    former = target.with_name(f".{target.name}.{os.getpid()}.former.partial")
    replaces = target.exists()
    if replaces:
        os.rename(target, former)
    try:
        os.rename(aside, target)
    except BaseException:
        if replaces:
            os.rename(former, target)
        raise
    remove(former)
