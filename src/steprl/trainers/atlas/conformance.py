"""What every estimator owes its callers, checked on every batch of every world: yours, too.

The contract is that of `steprl.types.Estimator`: credits for every step given, trained tokens that were
sampled, none of a trajectory that was lost, and numbers that do not depend on order, names or earlier calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from steprl.trainers.atlas.measure import Atlas, atlas
from steprl.trainers.atlas.play import World
from steprl.trainers.atlas.subjects import Subject
from steprl.trainers.atlas.worlds import WORLDS
from steprl.types import Credits, Scores, StepKey, TrajectoryGroup

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
            yield "raises", f"{_named(groups)}: {type(error).__name__}: {error}"


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
    found = subject.estimator([_renamed(group) for group in groups], _renamed_scores(scores))
    plain = Credits(advantages=_plain(found.advantages), loss_mask=_plain(found.loss_mask))
    yield from _same("names", "another answer with other uids", credits, plain)


def _same(kind: str, what: str, one: Credits, other: Credits) -> Iterator[tuple[str, str]]:
    for key, mask in one.loss_mask.items():
        theirs = other.loss_mask.get(key)
        if theirs is None or not np.array_equal(mask, theirs):
            yield kind, f"{key}: {what} (other tokens train)"
        elif not np.allclose(
            one.advantages[key][mask], other.advantages[key][mask], rtol=_TOLERANCE, atol=_TOLERANCE
        ):
            yield kind, f"{key}: {what} ({one.advantages[key][mask]}, {other.advantages[key][mask]})"


_NEW = "renamed "


def _renamed(group: TrajectoryGroup) -> TrajectoryGroup:
    uid = _NEW + group.group_uid
    members = tuple(replace(t, uid=_NEW + t.uid, group_uid=uid) for t in group.trajectories)
    return replace(group, group_uid=uid, trajectories=members)


def _renamed_scores(scores: Scores) -> Scores:
    values, after = scores.values, scores.bootstrap_values
    return Scores(
        values=values and {StepKey(_NEW + key.trajectory, key.step): said for key, said in values.items()},
        bootstrap_values=after and {_NEW + uid: value for uid, value in after.items()},
    )


def _plain(per_step: Mapping[StepKey, T]) -> dict[StepKey, T]:
    return {StepKey(key.trajectory.removeprefix(_NEW), key.step): said for key, said in per_step.items()}


def _named(groups: Sequence[TrajectoryGroup]) -> str:
    return "; ".join(t.uid for group in groups for t in group.trajectories)
