"""Playing episodes: a session records the steps, a workflow decides what happens, a pool runs many."""

from steprl.rollout.config import Deadlines, FailurePolicy, Horizon, RolloutConfig
from steprl.rollout.episode import Episode
from steprl.rollout.pool import Pool, Progress, episodes_of
from steprl.rollout.seeds import derive_seed
from steprl.rollout.session import EpisodeSession
from steprl.rollout.workflow import EnvWorkflow

__all__ = [
    "Deadlines",
    "EnvWorkflow",
    "Episode",
    "EpisodeSession",
    "FailurePolicy",
    "Horizon",
    "Pool",
    "Progress",
    "RolloutConfig",
    "derive_seed",
    "episodes_of",
]
