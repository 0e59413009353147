"""From the groups that were played to those that train: filters applied, and every drop with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steprl.credit import scored, smallest_group
from steprl.errors import ConfigError
from steprl.registry import make
from steprl.trainers.crediting import kept_groups
from steprl.trainers.filtering.base import GroupFilter, TrajectoryFilter
from steprl.trainers.recipe import Recipe
from steprl.types import Estimator, Trajectory, TrajectoryGroup, equal_rewards

TOO_FEW = "too_few"
"""In place of a filter's name: too few trajectories of a group were left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of a recipe by name, in its order; false when there are none."""

    of_trajectories: Mapping[str, TrajectoryFilter]
    of_groups: Mapping[str, GroupFilter]

    def __bool__(self) -> bool:
        return bool(self.of_trajectories or self.of_groups)

    @property
    def needing_outcome(self) -> list[str]:
        """The names of those that ask which episodes were solved."""
        return [name for name, found in self.of_groups.items() if found.needs_outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What of the groups that were played trains.

    ``groups`` are those kept, as they will be compared. ``untrained`` are the trajectories among them, by
    uid, that are compared and not trained on. ``left_out`` says why of every trajectory that filters keep
    from training. ``dropped`` counts groups, ``taken_out`` trajectories, by the filter that did it.
    ``filtered`` is false where there are no filters.
    """

    groups: Sequence[TrajectoryGroup]
    played: int
    filtered: bool = False
    untrained: frozenset[str] = frozenset()
    left_out: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    taken_out: Mapping[str, int] = field(default_factory=dict)

    def told(self) -> str:
        """What the filters have done, in a few words; empty where there are none."""
        if not self.filtered:
            return ""
        parts = [f"{name} took out {n} trajectories" for name, n in self.taken_out.items() if n]
        for name, n in self.dropped.items():
            who = "too few were left in" if name == TOO_FEW else f"{name} dropped"
            parts += [f"{who} {n} of {self.played} groups"] if n else []
        return ", ".join(parts)

    def metrics(self, *, wanted: int) -> dict[str, float]:
        """The figures of ``filter/…``; none where there are no filters. ``wanted`` groups were asked for."""
        if not self.filtered:
            return {}
        flat = [
            equal_rewards(rewards)
            for group in self.groups
            if len(rewards := [t.reward for t in group.trajectories if scored(t) and t.reward is not None])
            > 1
        ]
        return {
            "filter/kept_groups": float(len(self.groups)),
            "filter/kept_share": len(self.groups) / self.played,
            "filter/missing_share": 1 - len(self.groups) / wanted,
            **({"filter/zero_variance_share": sum(flat) / len(flat)} if flat else {}),
            **{f"filter/{name}/groups": float(n) for name, n in self.dropped.items()},
            **{f"filter/{name}/trajectories": float(n) for name, n in self.taken_out.items()},
        }


def filters_of(recipe: Recipe) -> Filters:
    """The filters that a recipe names.

    Raises:
        ConfigError: there is none of a name, it does not take its options, it is none, or it cannot work with
            groups of this size.
    """
    of_trajectories: dict[str, TrajectoryFilter] = {}
    of_groups: dict[str, GroupFilter] = {}
    for name, options in recipe.filter.named.items():
        made = make("filter", name, options)
        if isinstance(made, TrajectoryFilter):
            of_trajectories[name] = made
        elif isinstance(made, GroupFilter):
            of_groups[name] = made
            if recipe.rollout.group_size < made.smallest_group:
                raise ConfigError(
                    f"the filter '{name}' looks at differences in a group and needs "
                    f"{made.smallest_group} trajectories or more; rollout.group_size = "
                    f"{recipe.rollout.group_size}. Raise it, or leave the filter out."
                )
        else:
            raise ConfigError(
                f"filter.keep.{name} made {made!r}: a filter is derived from TrajectoryFilter or GroupFilter "
                f"(steprl.trainers.filtering.base)"
            )
    if recipe.filter.in_statistics and not of_trajectories:
        raise ConfigError(
            f"filter.in_statistics is for filters that take single trajectories out, and "
            f"{', '.join(of_groups)} drops groups. Remove it, or name one that does."
        )
    return Filters(of_trajectories=of_trajectories, of_groups=of_groups)


def choose(
    recipe: Recipe, filters: Filters, estimator: Estimator, groups: Sequence[TrajectoryGroup]
) -> Chosen:
    """Apply the filters: those of trajectories first, then those of groups to what is left.

    A group is dropped when fewer scored trajectories are left in it than ``rollout.failures.minimum_group``,
    or than the estimator compares.
    """
    if not filters:
        return Chosen(groups=kept_groups(recipe, groups), played=len(groups))
    least = max(recipe.rollout.failures.minimum_group, smallest_group(estimator))
    kept: list[TrajectoryGroup] = []
    untrained: set[str] = set()
    left_out: dict[str, str] = {}
    dropped: Counter[str] = Counter({name: 0 for name in (*filters.of_groups, TOO_FEW)})
    taken_out: Counter[str] = Counter({name: 0 for name in filters.of_trajectories})
    for group in groups:
        refused = {t.uid: name for t in group.trajectories if scored(t) and (name := _refusing(filters, t))}
        taken_out.update(refused.values())
        left_out |= {uid: f"the filter '{name}' took its episode out" for uid, name in refused.items()}
        left = replace(group, trajectories=tuple(t for t in group.trajectories if t.uid not in refused))
        compared = group if recipe.filter.in_statistics else left
        reason = _reason(filters, left, compared, least)
        if reason is None:
            kept.append(compared)
            untrained |= refused.keys() & {t.uid for t in compared.trajectories}
            continue
        dropped[reason] += 1
        why = (
            "too few are left in its group"
            if reason == TOO_FEW
            else f"the filter '{reason}' dropped its group"
        )
        left_out |= {t.uid: why for t in left.trajectories}
    return Chosen(
        groups=kept,
        played=len(groups),
        filtered=True,
        untrained=frozenset(untrained),
        left_out=left_out,
        dropped=dropped,
        taken_out=taken_out,
    )


def _refusing(filters: Filters, trajectory: Trajectory) -> str | None:
    """The first filter that takes a trajectory out."""
    for name, found in filters.of_trajectories.items():
        if not _said(name, found.keeps(trajectory)):
            return name
    return None


def _reason(filters: Filters, left: TrajectoryGroup, compared: TrajectoryGroup, least: int) -> str | None:
    """Why a group is dropped, or None."""
    if not _count(left) or _count(compared) < least:
        return TOO_FEW
    for name, found in filters.of_groups.items():
        if not _said(name, found.keeps(compared)):
            return name
    return None


def _count(group: TrajectoryGroup) -> int:
    return sum(scored(t) for t in group.trajectories)


def _said(name: str, answer: object) -> bool:
    """The answer of a filter; one's own may have forgotten to give one, which is no "drop all"."""
    if not isinstance(answer, bool | np.bool_):
        raise ConfigError(f"the filter '{name}' answered {answer!r}: its keeps(…) returns True or False")
    return bool(answer)
