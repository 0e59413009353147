"""One process at a time in a folder: a lock that a killed process leaves open."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steprl.errors import ConfigError


@contextmanager
def locked(folder: Path, *, kind: str, doing: str) -> Iterator[None]:
    """Within, no other process that asks has ``folder``. A kill leaves ``.lock``, but nothing locked.

    Raises:
        ConfigError: another process has it, or it cannot be written; ``kind`` says what the folder is, and
            ``doing`` what is being done in it.
    """
    try:
        lock = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the {kind} '{folder}' cannot be written: {error}") from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"'{folder}' is being {doing} by another process (pid {file.read().strip()}); "
                f"wait for it or stop it"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
