"""What states are worth, by playing on from them: fresh episodes that begin with what was recorded so far.

An environment is put back into a state by taking the recorded actions again with the same seed, so every
environment that is deterministic can be continued; one that answers otherwise is noticed by its next prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from steprl.rollout import Episode, derive_seed
from steprl.trainers.needs import CONTINUATIONS
from steprl.trainers.parts import Parts
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trajectory.statistics import failures
from steprl.types import Floats, Need, Scores, StepKey, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StateValues:
    """V of the state before each step, and what it took: episodes, and steps that were sampled in them.

    ``lost`` are trajectories with a state from which no continuation came to an end, by uid; ``failed`` the
    continuations that broke, and ``strayed`` how many came into another state than the recorded one.
    """

    values: Mapping[StepKey, Floats]
    lost: frozenset[str]
    failed: tuple[Trajectory, ...]
    strayed: int
    episodes: int
    steps: int

    def scores(self, scores: Scores, groups: Sequence[TrajectoryGroup]) -> Scores:
        """``scores`` with these values. Continuations end where the run's limits end them, and so does what a
        truncated trajectory is worth: 0 after its last step."""
        members = [t for group in groups for t in group.trajectories]
        return replace(scores, values=self.values, bootstrap_values={t.uid: 0.0 for t in members})

    def without_lost(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups less the trajectories that have a state without a value."""
        return [
            replace(group, trajectories=tuple(t for t in group.trajectories if t.uid not in self.lost))
            for group in groups
        ]

    def troubles(self) -> list[str]:
        """What a person should know: what broke, and that an environment is not deterministic."""
        lines = failures(self.failed)
        if self.strayed:
            lines.append(
                f"{self.strayed} of {self.episodes} met another prompt than was recorded after the same "
                f"actions: the environment is not deterministic, and such states have no value"
            )
        return lines

    def metrics(self) -> dict[str, float]:
        """What continuations cost, for ``metrics.jsonl``."""
        return {
            "continuations/episodes": float(self.episodes),
            "continuations/steps": float(self.steps),
            "continuations/lost_trajectories": float(len(self.lost)),
            "continuations/failed": float(len(self.failed)),
            "continuations/strayed": float(self.strayed),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The state after the first ``step`` steps of a trajectory, and every step that acts in it, by name and
    number of action tokens."""

    task: Task
    trajectory: Trajectory
    step: int
    acting: Mapping[StepKey, int]


async def state_values(
    recipe: Recipe,
    parts: Parts,
    tasks: Mapping[str, Task],
    groups: Sequence[TrajectoryGroup],
    number: int,
    display: Display,
) -> StateValues | None:
    """Values of all states of iteration ``number`` if the estimator wants them from continuations, else None.

    Args:
        tasks: the task of each group, by the group's uid.
        groups: those that train.

    Raises:
        EnvError: every continuation failed.
    """
    if Need.SNAPSHOTS not in parts.estimator.requires:
        return None
    states = [state for group in groups for state in _states(tasks[group.group_uid], group)]
    count: int = getattr(parts.estimator, CONTINUATIONS)
    asked = [(state, k) for state in states for k in range(count)]
    with display.phase(f"continuations {number}", len(asked)) as bar:
        played = await parts.player.pool.play_on(
            [_episode(recipe, parts, number, state, k) for state, k in asked],
            [state.trajectory.steps[: state.step] for state, _ in asked],
            progress=bar.on_episode,
        )
    values: dict[StepKey, Floats] = {}
    lost: set[str] = set()
    strayed = 0
    for index, state in enumerate(states):
        ended = [t for t in played[index * count : (index + 1) * count] if t.stop_reason.trains]
        there = [t for t in ended if _reached(state, t)]
        strayed += len(ended) - len(there)
        returns = [_return_from(t, state.step) for t in there if t.reward is not None]
        if not returns:
            lost |= {key.trajectory for key in state.acting}
            continue
        for key, tokens in state.acting.items():
            values[key] = np.full(tokens, np.mean(returns), dtype=np.float32)
    return StateValues(
        values=values,
        lost=frozenset(lost),
        failed=tuple(t for t in played if t.error is not None),
        strayed=strayed,
        episodes=len(played),
        steps=sum(len(t.steps) - state.step for t, (state, _) in zip(played, asked, strict=True)),
    )


def _states(task: Task, group: TrajectoryGroup) -> list[_State]:
    """The states in which a group acted; one in which several members begin, by their prompts, is one."""
    members = [t for t in group.trajectories if t.stop_reason.trains and t.reward is not None and t.steps]
    beginnings: dict[tuple[int, ...], list[Trajectory]] = {}
    for t in members:
        beginnings.setdefault(tuple(t.steps[0].prompt_ids.tolist()), []).append(t)
    found = [
        _State(
            task=task,
            trajectory=alike[0],
            step=0,
            acting={t.key(0): len(t.steps[0].action_ids) for t in alike},
        )
        for alike in beginnings.values()
    ]
    for t in members:
        for index in range(1, len(t.steps)):
            acting = {t.key(index): len(t.steps[index].action_ids)}
            found.append(_State(task=task, trajectory=t, step=index, acting=acting))
    return found


def _episode(recipe: Recipe, parts: Parts, number: int, state: _State, k: int) -> Episode:
    uid = f"{state.trajectory.uid}+{state.step}.{k}"
    return Episode(
        task=state.task,
        task_hash=state.trajectory.task_hash,
        uid=uid,
        group_uid=state.trajectory.group_uid,
        seed=state.trajectory.seed,
        sampling_seed=derive_seed(recipe.seed, "continuations", number, uid),
        sampling=recipe.rollout.sampling(parts.player.renderer.stop_ids),
        max_steps=recipe.rollout.limit(number),
    )


def _reached(state: _State, trajectory: Trajectory) -> bool:
    """Whether a continuation began in the state: with the prompt that was recorded there."""
    if len(trajectory.steps) <= state.step:
        return False
    recorded, met = state.trajectory.steps[state.step], trajectory.steps[state.step]
    return np.array_equal(recorded.prompt_ids, met.prompt_ids)


def _return_from(trajectory: Trajectory, step: int) -> float:
    """Σ r from a step on."""
    return math.fsum(later.reward or 0.0 for later in trajectory.steps[step:])
