"""steprl trains LLM agents with step-level reinforcement learning.

Writing an environment needs nothing heavy: torch is imported only when something is trained or sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steprl.envs.base import Env
from steprl.envs.checker import check_env
from steprl.envs.tool_env import ToolEnv
from steprl.errors import StepRLError
from steprl.tools import tool
from steprl.tools.cassette import Cassette
from steprl.types import Action, History, Message, Observation, Task, Transition

if TYPE_CHECKING:
    from steprl.trainers.api import roll_out, train

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Cassette",
    "Env",
    "History",
    "Message",
    "Observation",
    "StepRLError",
    "Task",
    "ToolEnv",
    "Transition",
    "check_env",
    "roll_out",
    "tool",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in ("train", "roll_out"):  # not "rollout": that is the room
        from steprl.trainers import api

        return getattr(api, name)
    raise AttributeError(f"module 'steprl' has no attribute '{name}'")
