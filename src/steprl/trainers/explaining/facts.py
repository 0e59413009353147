"""What the record itself says of a step that matters for its credit: the reasons why estimators disagree.

A fact is read off the episodes and never guessed from what an estimator said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from steprl.credit import returns_to_go, scored, states, unit_rewards
from steprl.types import Scores, StepKey, Trajectory, TrajectoryGroup, equal_rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A reason: its ``kind``, by which facts are counted, and the sentence with this step's own numbers."""

    kind: str
    told: str


LEFT_OUT = "left out of training"
EQUAL = "equal rewards in the group"
ALONE = "nobody to compare with in the group"
BETWEEN = "reward between the group's mean and the batch's"
SHARED = "state met by other trajectories, with other returns"
EARLIER = "earlier steps were rewarded"
OUTCOME = "an early step gets the outcome"
TRUNCATED = "ended by a limit of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One step: its reward, its return to go (γ = 1), how many other steps of how many other trajectories of
    its group acted in the same state, and what follows from all that."""

    reward: float | None
    return_to_go: float | None
    same_state: int
    same_state_trajectories: int
    facts: Sequence[Fact]


def facts_of(
    groups: Sequence[TrajectoryGroup],
    *,
    left_out: Mapping[str, str] = MappingProxyType({}),
    compared: Collection[str] = (),
) -> dict[StepKey, StepFacts]:
    """The facts of every step of a batch.

    ``left_out`` says of trajectories, by uid, why a filter kept them from training. They are no part of what
    others are compared with, unless they are ``compared``.
    """
    gone = left_out.keys() - set(compared)
    found = _alone([t for group in groups for t in group.trajectories if t.uid in gone], left_out)
    groups = [
        replace(group, trajectories=tuple(t for t in group.trajectories if t.uid not in gone))
        for group in groups
    ]
    batch = _batch_means([t for group in groups for t in group.trajectories if scored(t)])
    for group in groups:
        returns = {t.uid: _returns(t) for t in group.trajectories if scored(t)}
        met = _met(group, returns)
        about_group = _about_group(group, batch)
        for trajectory in group.trajectories:
            common = [*_left_out(trajectory, left_out), *_about(trajectory), *about_group]
            if scored(trajectory) and not about_group:
                common += _between(group, trajectory, batch)
            for index, step in enumerate(trajectory.steps):
                key = trajectory.key(index)
                to_go = returns[trajectory.uid][index] if trajectory.uid in returns else None
                others = [(uid, g) for uid, g in met.get(key, []) if uid != trajectory.uid]
                own = _about_step(trajectory, index, to_go, others) if to_go is not None else []
                found[key] = StepFacts(
                    reward=step.reward,
                    return_to_go=to_go,
                    same_state=len(others),
                    same_state_trajectories=len({uid for uid, _ in others}),
                    facts=[*common, *own],
                )
    return found


def _alone(trajectories: Sequence[Trajectory], left_out: Mapping[str, str]) -> dict[StepKey, StepFacts]:
    """The steps of trajectories that filters left out: in no comparison, whatever they met."""
    found = {}
    for trajectory in trajectories:
        returns = _returns(trajectory) if scored(trajectory) else [None] * len(trajectory.steps)
        for index, (step, to_go) in enumerate(zip(trajectory.steps, returns, strict=True)):
            found[trajectory.key(index)] = StepFacts(
                reward=step.reward,
                return_to_go=to_go,
                same_state=0,
                same_state_trajectories=0,
                facts=_left_out(trajectory, left_out),
            )
    return found


def _left_out(trajectory: Trajectory, left_out: Mapping[str, str]) -> list[Fact]:
    if trajectory.uid not in left_out:
        return []
    return [Fact(kind=LEFT_OUT, told=f"{left_out[trajectory.uid]}, so it does not train")]


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return trajectory.reward


def _returns(trajectory: Trajectory) -> list[float | None]:
    """The return to go of each step, γ = 1; None for a step in which no token was sampled."""
    rewards = unit_rewards(trajectory, "step", Scores(), 0.0)
    return [float(g[0]) if len(g) else None for g in returns_to_go(trajectory, rewards, gamma=1.0)]


def _met(
    group: TrajectoryGroup, returns: Mapping[str, Sequence[float | None]]
) -> dict[StepKey, list[tuple[str, float]]]:
    """For each step in a known state, all steps of its group in that state: (trajectory, return to go)."""
    visits: dict[object, list[tuple[StepKey, float]]] = defaultdict(list)
    for trajectory in group.trajectories:
        for index, state in enumerate(states(trajectory)):
            to_go = returns[trajectory.uid][index] if trajectory.uid in returns else None
            if state is not None and to_go is not None:
                step = trajectory.steps[index]
                visits[step.agent, step.kind, state].append((trajectory.key(index), to_go))
    return {
        key: [(other.trajectory, g) for other, g in of_state]
        for of_state in visits.values()
        for key, _ in of_state
    }


def _about(trajectory: Trajectory) -> list[Fact]:
    if not trajectory.stop_reason.trains:
        return [
            Fact(kind=LEFT_OUT, told=f"its episode ended by {trajectory.stop_reason}, so it does not train")
        ]
    if trajectory.reward is None:
        return [Fact(kind=LEFT_OUT, told="a step of its episode could not be scored, so it does not train")]
    if trajectory.stop_reason.bootstraps:
        told = (
            f"a limit ended its episode ({trajectory.stop_reason}): estimators without a critic take its "
            f"reward {_reward(trajectory):g} as final"
        )
        return [Fact(kind=TRUNCATED, told=told)]
    return []


def _about_group(group: TrajectoryGroup, batch: Mapping[str, float]) -> list[Fact]:
    rewards = [_reward(t) for t in group.trajectories if scored(t)]
    if len(rewards) < 2:
        told = (
            f"{_counted(len(rewards), 'scored trajectory')} in its group: compared within it, the credit is 0"
        )
        return [Fact(kind=ALONE, told=told)]
    if equal_rewards(rewards):
        told = (
            f"all {len(rewards)} trajectories of its group have the reward {rewards[0]:g}: no difference "
            f"within the group, while the mean over the batch's tokens is {batch['tokens']:.3g}"
        )
        return [Fact(kind=EQUAL, told=told)]
    return []


def _between(group: TrajectoryGroup, trajectory: Trajectory, batch: Mapping[str, float]) -> list[Fact]:
    """Whether group and batch see the same reward from different sides."""
    group_mean, reward = _mean([_reward(t) for t in group.trajectories if scored(t)]), _reward(trajectory)
    for units, mean in batch.items():
        if (reward - group_mean) * (reward - mean) < 0:
            sides = ("above", "below") if reward > group_mean else ("below", "above")
            told = (
                f"its reward {reward:g} is {sides[0]} its group's mean {group_mean:.3g} and {sides[1]} the "
                f"mean over the batch's {units}, {mean:.3g}"
            )
            return [Fact(kind=BETWEEN, told=told)]
    return []


def _batch_means(counted: Sequence[Trajectory]) -> dict[str, float]:
    """Mean reward of a batch, each trajectory counted as often as it has tokens, or steps: the two means that
    whitening takes off."""
    tokens = [sum(int(step.sampled_mask.sum()) for step in t.steps) for t in counted]
    steps = [sum(bool(step.sampled_mask.any()) for step in t.steps) for t in counted]
    return {
        units: sum(n * _reward(t) for n, t in zip(counts, counted, strict=True)) / max(1, sum(counts))
        for units, counts in (("tokens", tokens), ("steps", steps))
    }


def _about_step(
    trajectory: Trajectory, index: int, to_go: float, others: Sequence[tuple[str, float]]
) -> list[Fact]:
    found, step, reward = [], trajectory.steps[index], _reward(trajectory)
    if others and not equal_rewards([to_go, *(g for _, g in others)]):
        who = _counted(len({uid for uid, _ in others}), "other trajectory")
        told = (
            f"{_counted(len(others), 'step')} of {who} acted in the same state "
            f"and went on to {_mean([g for _, g in others]):.3g} on average, this one to {to_go:.3g}"
        )
        found.append(Fact(kind=SHARED, told=told))
    if not equal_rewards([to_go, reward]):
        told = f"its trajectory has {reward:.3g} in all, from this step on {to_go:.3g}"
        found.append(Fact(kind=EARLIER, told=told))
    if step.reward == 0 and to_go != 0:
        told = f"it earned nothing itself and gets the {to_go:.3g} that came later"
        found.append(Fact(kind=OUTCOME, told=told))
    return found


def _counted(count: int, noun: str) -> str:
    if count != 1:
        noun = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count} {noun}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
