"""Every batch that a world can give, as records, and how likely each is.

Shapes: N episodes of a world; B batches, as multisets: the order of trajectories tells an estimator nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np

from steprl.trainers.atlas.play import Episode, World
from steprl.types import Doubles, Trajectory, TrajectoryGroup

Group = tuple[int, ...]
"""The episodes of a group, by number."""


class Batches:
    """The batches of a world: ``members`` are the episodes of each, group by group, by number; ``records``
    the groups of trajectories; ``probabilities`` f64[B] add up to 1."""

    def __init__(self, world: World, episodes: Sequence[Episode], probabilities_N: Doubles) -> None:
        groups: dict[Group, float] = {}
        for task, probability in enumerate(world.tasks):
            of_task = [n for n, episode in enumerate(episodes) if episode.task == task]
            for group in combinations_with_replacement(of_task, world.group_size):
                drawn = math.prod(float(probabilities_N[n]) for n in group)
                groups[group] = probability * _orders(group) * drawn
        chosen = list(combinations_with_replacement(groups, world.groups))
        recorded = {
            (place, group): _record(place, group, episodes)
            for place in range(world.groups)
            for group in groups
        }
        self.records = [
            tuple(recorded[place, group] for place, group in enumerate(batch)) for batch in chosen
        ]
        self.members = [tuple(n for group in batch for n in group) for batch in chosen]
        self.probabilities: Doubles = np.array(
            [_orders(batch) * math.prod(groups[group] for group in batch) for batch in chosen]
        )
        self.trajectories: dict[str, tuple[int, Trajectory]] = {
            trajectory.uid: (n, trajectory)
            for (_, group), record in recorded.items()
            for n, trajectory in zip(group, record.trajectories, strict=True)
        }


def _record(place: int, group: Group, episodes: Sequence[Episode]) -> TrajectoryGroup:
    uid = f"group {place}"
    members = tuple(
        episodes[n].trajectory(uid, f"{uid}, member {m}, episode {n}") for m, n in enumerate(group)
    )
    return TrajectoryGroup(group_uid=uid, task_id=members[0].task_id, trajectories=members)


def _orders(chosen: Sequence[object]) -> int:
    """In how many orders these can be drawn."""
    return math.factorial(len(chosen)) // math.prod(map(math.factorial, Counter(chosen).values()))
