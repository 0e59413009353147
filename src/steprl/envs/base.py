"""The environment contract: one instance is one episode of one task, used once.

Rollout calls ``reset`` once, ``step`` once per action until the transition ends the episode or a limit
does, and ``close`` in any case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from steprl.envs.policy import ScriptedPolicy
from steprl.errors import TaskError
from steprl.tasks import load_jsonl
from steprl.tools import Tool
from steprl.types import Action, Message, Task, Transition


class Env(ABC):
    """What an agent acts in. Subclass it, or ``ToolEnv``, which does the tool calling.

    ``tools`` are those the agent is told about. ``reward_range`` are the least and the greatest
    total reward of an episode before weights. An episode whose environment raises is played again, action
    by action; if the same action raises again the episode ends with the least reward, and otherwise it goes
    on. What stays broken is an error on its trajectory, kept out of loss and statistics.
    """

    tools: Sequence[Tool] = ()
    reward_range: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        """The tasks that ``source`` names: here a JSON Lines file; override for splits or generators.

        Called once per run, before any instance exists.

        Raises:
            TaskError: there is no such source, or it is not a task set.
        """
        if not Path(source).is_file():
            raise TaskError(
                f"{cls.__name__} has no task set '{source}'. Name a JSONL file (env.train=PATH in "
                f"a recipe, tasks=… from Python), or override {cls.__name__}.tasks."
            )
        return load_jsonl(source)

    @classmethod
    def oracle(cls, task: Task) -> ScriptedPolicy | None:
        """A policy that solves the task, knowing its answer; None: there is none.

        The checker plays it, and a small policy can be warmed up on it.
        """
        return None

    @abstractmethod
    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        """Begin the episode and return the opening messages, ``o_0``.

        Called once, first. Everything random must follow from ``seed``.
        """

    @abstractmethod
    async def step(self, action: Action) -> Transition:
        """Answer an action with feedback, named rewards and the end flags.

        Called once per action, one at a time. ``terminated``: the task is over, by success, failure or
        a horizon that belongs to the task. ``truncated``: a limit that is not the task's. What the
        agent does wrong is feedback; only what is wrong with the environment is raised.
        """

    async def close(self) -> None:
        """Free what the episode holds. Called last and always, also after an error or a cancelled step.

        Must not fail when called twice or before ``reset``.
        """
