"""Rewards: named components computed per step, and their composition into the one number that trains.

Components are data until they are composed, once, with explicit weights.
"""

from steprl.rewards.compose import Component, RewardComposer
from steprl.rewards.in_time import in_time

__all__ = ["Component", "RewardComposer", "in_time"]
