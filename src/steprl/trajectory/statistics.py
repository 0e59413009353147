"""Figures of one rollout batch: pure functions from recorded groups to named numbers.

Everything is counted over trajectories, one vote each however many steps they took. *Counted* are the
trajectories whose stop reason trains: a deadline or an error tells of machines, not of the policy.
*Scored* are the counted ones with a reward. A figure with nothing to average over is absent, never 0.

| name | meaning |
|---|---|
| `batch/trajectories`, `batch/counted` | all trajectories; those that are counted |
| `reward/mean` | mean over scored trajectories of the summed step rewards |
| `reward/unscored` | counted trajectories with a step that could not be scored |
| `reward/success_share` | scored trajectories with :func:`success`; absent when none has an outcome |
| `reward/component/<name>` | mean over scored trajectories of the component summed over steps |
| `episode/steps`, `episode/steps_max` | steps of a counted trajectory, summaries too: mean, maximum |
| `episode/action_tokens` | sampled tokens of a counted trajectory, mean |
| `episode/prompt_tokens` | prompt tokens of all its steps, mean: what the policy was given, shared or not |
| `episode/<name>` | mean of the metric `<name>` that counted trajectories recorded themselves |
| `step/action_tokens` | sampled tokens per step: mean in a trajectory, then over trajectories |
| `step/prompt_tokens`, `step/prompt_tokens_max` | prompt tokens per step, likewise; the longest prompt |
| `step/length_share` | steps whose action was cut at `max_tokens`, likewise |
| `calls/per_episode` | tool calls of a counted trajectory, malformed ones too, mean |
| `calls/malformed_share` | malformed calls / all calls of the counted trajectories |
| `calls/none_share` | counted trajectories without any call, well formed or not |
| `calls/repeated_share` | actions that repeat the one before them, of those that have one, likewise |
| `stop/<reason>` | share of all trajectories; one figure for every stop reason |
| `stop/truncated_share` | share of all trajectories that a limit of the run ended |
| `groups/count` | groups |
| `groups/zero_variance_share` | groups whose rewards are all equal, of those with two or more scored |
| `errors/total`, `errors/<kind>` | trajectories with an error, whatever their stop reason; by its kind |
| `errors/by_agent` | those of them that were terminated: the agent's doing, and counted |
| `tokens/total`, `tokens/unique` | prompt and action tokens of counted steps; each shared prefix once |
| `tokens/unique_share` | unique / total: what a learner that shares prefixes has left to compute |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from steprl.trajectory.tokens import common_prefix, step_ids
from steprl.types import (
    MalformedCall,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
    equal_rewards,
)

OUTCOME = "outcome"
"""The reward component that says whether the task was solved."""

_LINE = 300

_LIMITS = (StopReason.MAX_STEPS, StopReason.CONTEXT_FULL, StopReason.DEADLINE)

Figures = Iterator[tuple[str, float]]


def batch_statistics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The figures of the table above for one rollout batch."""
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    counted = [trajectory for trajectory in everything if trajectory.stop_reason.trains]
    figures = {"batch/trajectories": float(len(everything)), "batch/counted": float(len(counted))}
    figures.update(_rewards(counted))
    figures.update(_lengths(counted))
    figures.update(_calls(counted))
    figures.update(_stops(everything))
    figures.update(_groups(groups))
    figures.update(_errors(everything))
    figures.update(_tokens(groups))
    return figures


def success(trajectory: Trajectory) -> bool | None:
    """True when the component ``outcome``, summed over the steps, is 1 or more.

    None when no step has the component: nothing said whether the task was solved.
    """
    outcomes = [step.rewards[OUTCOME] for step in trajectory.steps if OUTCOME in step.rewards]
    return math.fsum(outcomes) >= 1.0 if outcomes else None


def unique_tokens(steps: Iterable[Step]) -> int:
    """Tokens of the steps when every prefix that several of them share counts once.

    These are the nodes of the trie of their token rows, the least that a learner has to compute.
    """
    # Sorted by bytes, rows with a common prefix lie side by side, and each neighbour repeats
    # exactly the tokens it shares with the row before.
    rows = sorted((step_ids(step) for step in steps), key=lambda ids: ids.tobytes())
    repeated = sum(common_prefix(left, right) for left, right in pairwise(rows))
    return sum(len(row) for row in rows) - repeated


def _mean(name: str, values: Sequence[float]) -> Figures:
    if values:
        yield name, math.fsum(values) / len(values)


def _rewards(counted: Sequence[Trajectory]) -> Figures:
    returns = [trajectory.reward for trajectory in counted]
    yield "reward/unscored", float(returns.count(None))
    yield from _mean("reward/mean", [value for value in returns if value is not None])
    scored = [trajectory for trajectory in counted if trajectory.reward is not None]
    solved = [success(trajectory) for trajectory in scored]
    if any(value is not None for value in solved):
        # an episode that a limit ended before any outcome was not a success
        yield from _mean("reward/success_share", [float(bool(value)) for value in solved])
    for name in _names(step.rewards for trajectory in scored for step in trajectory.steps):
        sums = [math.fsum(step.rewards.get(name, 0.0) for step in t.steps) for t in scored]
        yield from _mean(f"reward/component/{name}", sums)


def _lengths(counted: Sequence[Trajectory]) -> Figures:
    lengths = [len(trajectory.steps) for trajectory in counted]
    yield from _mean("episode/steps", lengths)
    sampled = [[int(step.sampled_mask.sum()) for step in trajectory.steps] for trajectory in counted]
    yield from _mean("episode/action_tokens", [sum(tokens) for tokens in sampled])
    prompts = [[len(step.prompt_ids) for step in trajectory.steps] for trajectory in counted]
    yield from _mean("episode/prompt_tokens", [sum(tokens) for tokens in prompts])
    for name in _names(trajectory.metrics for trajectory in counted):
        recorded = [trajectory.metrics[name] for trajectory in counted if name in trajectory.metrics]
        yield from _mean(f"episode/{name}", recorded)
    if any(lengths):
        yield "episode/steps_max", float(max(lengths))
        yield "step/prompt_tokens_max", float(max(max(tokens, default=0) for tokens in prompts))
        cut = [[int(step.finish == "length") for step in trajectory.steps] for trajectory in counted]
        for name, of_steps in (("action_tokens", sampled), ("prompt_tokens", prompts), ("length_share", cut)):
            yield from _mean(f"step/{name}", [sum(values) / len(values) for values in of_steps if values])


def _calls(counted: Sequence[Trajectory]) -> Figures:
    calls = [[call for step in trajectory.steps for call in step.calls] for trajectory in counted]
    malformed = [float(isinstance(call, MalformedCall)) for of_one in calls for call in of_one]
    yield from _mean("calls/per_episode", [len(of_one) for of_one in calls])
    yield from _mean("calls/malformed_share", malformed)
    yield from _mean("calls/none_share", [float(not of_one) for of_one in calls])
    repeated = [_repetitions(trajectory) for trajectory in counted]
    yield from _mean("calls/repeated_share", [sum(of_one) / len(of_one) for of_one in repeated if of_one])


def _repetitions(trajectory: Trajectory) -> list[bool]:
    """For every action but an agent's first: does it repeat that agent's action before it?"""
    before: dict[str, Step] = {}
    found = []
    for step in trajectory.steps:
        if step.kind == "act":
            if step.agent in before:
                found.append(same_action(before[step.agent], step))
            before[step.agent] = step
    return found


def same_action(one: Step, other: Step) -> bool:
    """Whether two steps made the same calls with the same arguments, whatever is said around them; without
    calls, whether they have the same tokens."""
    if one.calls or other.calls:
        return [_called(call) for call in one.calls] == [_called(call) for call in other.calls]
    return np.array_equal(one.action_ids, other.action_ids)


def _called(call: ToolCall | MalformedCall) -> object:
    return call.raw if isinstance(call, MalformedCall) else (call.name, call.arguments)


def _stops(everything: Sequence[Trajectory]) -> Figures:
    reasons = [trajectory.stop_reason for trajectory in everything]
    for reason in StopReason:
        yield from _mean(f"stop/{reason.value}", [float(given is reason) for given in reasons])
    yield from _mean("stop/truncated_share", [float(given in _LIMITS) for given in reasons])


def _groups(groups: Sequence[TrajectoryGroup]) -> Figures:
    yield "groups/count", float(len(groups))
    flat: list[float] = []
    for group in groups:
        counted = [trajectory for trajectory in group.trajectories if trajectory.stop_reason.trains]
        returns = [trajectory.reward for trajectory in counted if trajectory.reward is not None]
        if len(returns) >= 2:
            # equality of the rewards, not of a spread that float residue keeps above 0
            flat.append(float(equal_rewards(returns)))
    yield from _mean("groups/zero_variance_share", flat)


def _errors(everything: Sequence[Trajectory]) -> Figures:
    broken = [
        (trajectory.error.kind, trajectory.stop_reason) for trajectory in everything if trajectory.error
    ]
    kinds = Counter(kind for kind, _ in broken)
    yield "errors/total", float(len(broken))
    yield "errors/by_agent", float(sum(reason is StopReason.TERMINATED for _, reason in broken))
    for kind, count in sorted(kinds.items()):
        yield f"errors/{kind}", float(count)


def _tokens(groups: Sequence[TrajectoryGroup]) -> Figures:
    total = unique = 0
    for group in groups:
        counted = [trajectory for trajectory in group.trajectories if trajectory.stop_reason.trains]
        steps = [step for trajectory in counted for step in trajectory.steps]
        total += sum(len(step.prompt_ids) + len(step.action_ids) for step in steps)
        unique += unique_tokens(steps)
    yield "tokens/total", float(total)
    yield "tokens/unique", float(unique)
    if total:
        yield "tokens/unique_share", unique / total


def _names(mappings: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping})


def failures(trajectories: Iterable[Trajectory]) -> list[str]:
    """A line for every kind of error in a batch, about the first of its kind."""
    kinds: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.error is not None:
            kinds.setdefault(trajectory.error.kind, []).append(trajectory)
    lines = []
    for kind, broken in sorted(kinds.items()):
        first = broken[0]
        assert first.error is not None
        said = " ".join(first.error.message.split())
        said = said if len(said) <= _LINE else said[:_LINE] + "…"
        lines.append(
            f"episode failed: {kind}: {said} ({len(broken)} of this kind, the first is {first.uid}, "
            f"stop reason {first.stop_reason.value})"
        )
    return lines
