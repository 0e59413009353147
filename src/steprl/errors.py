"""Errors, named by the boundary they cross.

Every message says which value was wrong, what is allowed, and what to do about it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class StepRLError(Exception):
    """Base of every error that steprl raises on purpose; the command line shows it without a traceback."""


class ConfigError(StepRLError):
    """A recipe, an option or an argument is wrong. Raised before anything is run."""


class TaskError(StepRLError):
    """A task file or a task row is missing, unreadable or incomplete."""


class EnvError(StepRLError):
    """An environment broke its contract (wrong return, non-finite reward, call after close)."""


class DeadlineError(EnvError):
    """An episode that cannot go on in time: its stop reason is ``deadline``, and it leaves the loss."""


class ScorerError(EnvError):
    """A reward function or component broke: nobody can say what the answer is worth.

    Its ``__cause__`` is what the function raised; None where what it returned is no reward.
    """


class ScorerTimeout(EnvError):
    """A reward function or component gave no reward in time: its episode is not trained on."""


class ToolError(StepRLError):
    """A tool refused its arguments. The agent reads the message; the episode goes on."""


class EngineError(StepRLError):
    """An inference engine cannot serve a request or a model."""


class CheckpointError(StepRLError):
    """A checkpoint is missing, partial, or belongs to another model or recipe."""


class StorageError(StepRLError):
    """A file cannot be written: the disk is full, or its folder is not writable."""


def unknown(kind: str, name: str, allowed: Iterable[str], *, hint: str = "") -> str:
    """Message for a name that is not known: the value, the closest match, the names allowed."""
    names = sorted(allowed)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    suggestion = f" Did you mean '{close[0]}'?" if close else ""
    listing = f" Known: {', '.join(names)}." if names else ""
    return f"unknown {kind} '{name}'.{suggestion}{listing}{' ' + hint if hint else ''}"


def cannot_write(path: Path, error: Exception) -> str:
    """Message for a file or folder that cannot be written: which and why; how much space is left, if that is
    why."""
    number = system_error(error)
    if number == errno.EEXIST:
        number = errno.ENOTDIR  # what making a folder says of a file that is in the way
    reason = os.strerror(number) if number else str(error)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        place = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
        reason += f" ({shutil.disk_usage(place).free / 1e6:,.1f} MB are free there)"
    return f"'{path}' cannot be written: {reason}."


def system_error(error: Exception) -> int | None:
    """The operating system's number of an error (``errno``; 0: not known), None when it is of another kind.

    Libraries written in Rust (safetensors, tokenizers) tell the number in their text only.
    """
    if isinstance(error, OSError):
        return error.errno or 0
    told = re.search(r"\(os error (\d+)\)", str(error))
    return int(told[1]) if told else None
