"""Objects handed over from Python in place of names, and what a run folder records of them.

A recipe cannot name them, so a run that has them can only go on from Python, with the same ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from steprl.envs.base import Env
from steprl.tasks import task_hash
from steprl.types import Task

Record = Mapping[str, str | bool]
"""What was handed over, by name: a hash for tasks, an address for a class, True for a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Objects handed over from Python in place of names: an environment class, tasks, a script."""

    env: type[Env] | None = None
    train_tasks: Sequence[Task] | None = None
    eval_tasks: Sequence[Task] | None = None
    script: Any = None

    def record(self) -> Record:
        """What ``given.json`` holds; empty when the recipe alone describes the run.

        Raises:
            TaskError: a task cannot be hashed.
        """
        found: dict[str, str | bool] = {}
        if self.env is not None and not _importable(self.env):
            found["env"] = address(self.env)
        if self.train_tasks is not None:
            found["train_tasks"] = _hash(self.train_tasks)
        if self.eval_tasks is not None:
            found["eval_tasks"] = _hash(self.eval_tasks)
        if self.script is not None:
            found["script"] = True
        return found


def address(env: type[Env]) -> str:
    """A class as a recipe names it: ``module:attribute``."""
    return f"{env.__module__}:{env.__qualname__}"


def differences(recorded: Record, now: Record) -> list[str]:
    """How what is handed over now differs from what the run was started with, a phrase each."""
    found = []
    for name in sorted({*recorded, *now}):
        if name not in now:
            found.append(f"{name} was handed over then and is not now")
        elif name not in recorded:
            found.append(f"{name} was not handed over then and is now")
        elif recorded[name] != now[name]:
            found.append(f"{name} was {recorded[name]} then and is {now[name]} now")
    return found


def _importable(env: type[Env]) -> bool:
    """Whether another process finds this very class by its address."""
    if env.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(env.__module__)
    for part in env.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is env


def _hash(tasks: Sequence[Task]) -> str:
    return sha256(" ".join(task_hash(task) for task in tasks).encode("ascii")).hexdigest()[:16]
