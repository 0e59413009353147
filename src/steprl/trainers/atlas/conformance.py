"""What every estimator owes its callers, checked on every batch of every world: yours, too.

The contract is that of `steprl.types.Estimator`: credits for every step given, trained tokens that were
sampled, none of a trajectory that was lost, and numbers that do not depend on lost trajectories, on order, on
names or on earlier calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

import numpy as np

from steprl.trainers.atlas.measure import Atlas, atlas
from steprl.trainers.atlas.play import World
from steprl.trainers.atlas.subjects import Subject
from steprl.trainers.atlas.worlds import WORLDS
from steprl.types import Credits, Scores, StepKey, Trajectory, TrajectoryGroup

T = TypeVar("T")

_TOLERANCE = 1e-9


def violations(subject: Subject, worlds: Sequence[World] = WORLDS) -> list[str]:
    """What an estimator does not keep to, the first case of each kind in each world; empty if all is well."""
    found = []
    for world in worlds:
        seen = set()
        for kind, message in _in_world(subject, atlas(world)):
            if kind not in seen:
                seen.add(kind)
                found.append(f"world '{world.name}': {message}")
    return found


def _in_world(subject: Subject, played: Atlas) -> Iterator[tuple[str, str]]:
    scores = played.scores(subject)
    for groups in played.batches.records:
        try:
            credits = subject.estimator(groups, scores)
            yield from _contract(groups, credits)
            yield from _invariance(subject, groups, scores, credits)
        except Exception as error:  # whatever a function of somebody else may raise is the finding
            yield "raises", f"{'; '.join(t.uid for t in _members(groups))}: {type(error).__name__}: {error}"


def _contract(groups: Sequence[TrajectoryGroup], credits: Credits) -> Iterator[tuple[str, str]]:
    steps = {t.key(i): (t, step) for g in groups for t in g.trajectories for i, step in enumerate(t.steps)}
    if credits.loss_mask.keys() != steps.keys():
        differing = sorted(credits.loss_mask.keys() ^ steps.keys())
        yield "steps", f"credits and steps differ, first at {differing[0]}: every step given has its credits"
        return
    for key, (trajectory, step) in steps.items():
        mask = credits.loss_mask[key]
        if mask.shape != step.action_ids.shape:
            yield "shape", f"{key}: {len(mask)} credits for {len(step.action_ids)} action tokens"
            return
        if (mask & ~step.sampled_mask).any():
            yield "sampled", f"{key}: trains on a token that was not sampled"
        if mask.any() and not trajectory.stop_reason.trains:
            yield "lost", f"{key}: trains on a trajectory that was lost ({trajectory.stop_reason})"


def _invariance(
    subject: Subject, groups: Sequence[TrajectoryGroup], scores: Scores, credits: Credits
) -> Iterator[tuple[str, str]]:
    found = subject.estimator(groups, scores)
    yield from _same("again", "another answer at the second call", credits, found)
    turned = [replace(group, trajectories=group.trajectories[::-1]) for group in reversed(groups)]
    found = subject.estimator(turned, scores)
    yield from _same("order", "another answer with the trajectories in another order", credits, found)
    names = {t.uid: sha256(t.uid.encode()).hexdigest()[: 8 + i] for i, t in enumerate(_members(groups))}
    found = subject.estimator([_renamed(group, names) for group in groups], _renamed_scores(scores, names))
    old = {new: uid for uid, new in names.items()}
    plain = Credits(advantages=_named(found.advantages, old), loss_mask=_named(found.loss_mask, old))
    yield from _same("names", "another answer with other uids", credits, plain)
    if all(t.stop_reason.trains for t in _members(groups)):
        return
    left = [
        replace(group, trajectories=tuple(t for t in group.trajectories if t.stop_reason.trains))
        for group in groups
    ]
    there = {t.uid for t in _members(left)}
    found = subject.estimator(left, scores)
    kept = Credits(
        advantages={key: a for key, a in credits.advantages.items() if key.trajectory in there},
        loss_mask={key: mask for key, mask in credits.loss_mask.items() if key.trajectory in there},
    )
    yield from _same("lost", "another answer where trajectories that were lost are left out", kept, found)


def _same(kind: str, what: str, one: Credits, other: Credits) -> Iterator[tuple[str, str]]:
    for key, mask in one.loss_mask.items():
        theirs = other.loss_mask.get(key)
        if theirs is None or not np.array_equal(mask, theirs):
            yield kind, f"{key}: {what} (other tokens train)"
        elif not np.allclose(
            one.advantages[key][mask], other.advantages[key][mask], rtol=_TOLERANCE, atol=_TOLERANCE
        ):
            yield kind, f"{key}: {what} ({one.advantages[key][mask]}, {other.advantages[key][mask]})"


def _members(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    return [t for group in groups for t in group.trajectories]


def _renamed(group: TrajectoryGroup, names: Mapping[str, str]) -> TrajectoryGroup:
    """Names that keep neither order, nor length, nor anything that the old ones said."""
    uid = sha256(group.group_uid.encode()).hexdigest()
    members = tuple(replace(t, uid=names[t.uid], group_uid=uid) for t in group.trajectories)
    return replace(group, group_uid=uid, trajectories=members)


def _renamed_scores(scores: Scores, names: Mapping[str, str]) -> Scores:
    values, after = scores.values, scores.bootstrap_values
    here = values and {key: said for key, said in values.items() if key.trajectory in names}
    return Scores(
        values=here and _named(here, names),
        bootstrap_values=after and {new: after[uid] for uid, new in names.items()},
    )


def _named(per_step: Mapping[StepKey, T], names: Mapping[str, str]) -> dict[StepKey, T]:
    return {StepKey(names[key.trajectory], key.step): said for key, said in per_step.items()}
