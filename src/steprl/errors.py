"""Errors, named by the boundary they cross.

Every message says which value was wrong, what is allowed, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class StepRLError(Exception):
    """Base of every error that steprl raises on purpose; the command line shows it without a traceback."""


class ConfigError(StepRLError):
    """A recipe, an option or an argument is wrong. Raised before anything is run."""


class TaskError(StepRLError):
    """A task file or a task row is missing, unreadable or incomplete."""


class EnvError(StepRLError):
    """An environment broke its contract (wrong return, non-finite reward, call after close)."""


class ToolError(StepRLError):
    """A tool refused its arguments. The agent reads the message; the episode goes on."""


class EngineError(StepRLError):
    """An inference engine cannot serve a request or a model."""


class CheckpointError(StepRLError):
    """A checkpoint is missing, partial, or belongs to another model or recipe."""


def unknown(kind: str, name: str, allowed: Iterable[str], *, hint: str = "") -> str:
    """Message for a name that is not known: the value, the closest match, the names allowed."""
    names = sorted(allowed)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    suggestion = f" Did you mean '{close[0]}'?" if close else ""
    listing = f" Known: {', '.join(names)}." if names else ""
    return f"unknown {kind} '{name}'.{suggestion}{listing}{' ' + hint if hint else ''}"
