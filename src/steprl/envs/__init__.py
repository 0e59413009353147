"""Environments: ``E(o_t, a_t)`` (paper eq. 5, 7), the contract for writing one, and those that come along.

Writing and checking an environment never imports torch.
"""

from steprl.envs.base import Env
from steprl.envs.tool_env import ToolEnv

__all__ = ["Env", "ToolEnv"]
