"""Files and folders that are complete or absent: written aside, made durable, renamed.

What cannot be written is a `StorageError` that says why and how much space is left; nothing stays behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steprl.errors import CheckpointError, StorageError, cannot_write, system_error

MANIFEST = "files.json"
"""Size and hash of every other file of a sealed folder."""


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Within, an error of the operating system is a `StorageError` about ``path``."""
    try:
        yield
    except Exception as error:
        if system_error(error) is None:
            raise
        raise StorageError(cannot_write(path, error)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Raises:
        StorageError: it cannot be written; what was there is as it was.
    """
    aside = path.with_name(f".{path.name}.partial")
    with storing(path):
        try:
            with aside.open("wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            _discard(aside)
            raise
        sync(path.parent)


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder that is there with everything that ``fill`` writes into it, or not at all.

    Raises:
        StorageError: it cannot be written; nothing of it is left.
    """
    aside = target.with_name(f".{target.name}.partial")
    with storing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            remove(aside)
            aside.mkdir()
            fill(aside)
            for file in aside.rglob("*"):
                sync(file)
            sync(aside)
            os.rename(aside, target)
        except BaseException:
            _discard(aside)
            raise
        sync(target.parent)


def read_text(file: Path) -> str:
    """What a text file of a run says.

    Raises:
        FileNotFoundError: it is not there.
        CheckpointError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def remove(path: Path) -> None:
    """Remove a folder under its name at once, so that a kill leaves no half of it that looks whole."""
    if path.is_symlink():
        path.unlink()  # what it points to is somebody else's
        return
    if not path.exists():
        return
    if not path.name.endswith(".partial"):
        aside = path.with_name(f".{path.name}.partial")
        remove(aside)
        os.rename(path, aside)
        path = aside
    shutil.rmtree(path)


def sweep(folder: Path) -> None:
    """Remove what a kill left half written or half removed in ``folder``."""
    for left in folder.glob(".*.partial"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def sync(path: Path) -> None:
    """Make a file, or the entries of a folder, last."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── is it still what was written? ─────────────────────────────────────────────────────────────────────


def seal(folder: Path) -> None:
    """Note size and hash of every file in ``folder``."""
    found = {
        file.relative_to(folder).as_posix(): _print(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    write_whole(folder / MANIFEST, json.dumps(found, indent=2) + "\n")


def damage(folder: Path) -> str | None:
    """What is wrong with a sealed folder, naming the file; None when all is as it was written.

    Files that came later are none of its business.
    """
    try:
        sealed: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, noted in sealed.items():
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            size = file.stat().st_size
            if size != noted["bytes"]:
                return f"{name} has {size} bytes, {noted['bytes']} were written"
            if _print(file) != noted:
                return f"the content of {name} is not what was written"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def _print(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _discard(path: Path) -> None:
    """Remove what could not be finished, as far as that goes: the error that led here is the one to tell."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        path.unlink()
