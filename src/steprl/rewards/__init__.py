"""Rewards: named components computed per step, and their composition into the one number that trains.

Components are data until they are composed, once, with explicit weights.
"""

from steprl.rewards.compose import Component, RewardComposer

__all__ = ["Component", "RewardComposer"]
