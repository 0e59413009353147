"""Steps to rows of tokens and back. Append-only steps of one agent become one row, so that what they
share is computed once; the weights are explicit, so the merged row trains exactly as its steps would.

Shapes: A action tokens of one step, L tokens of a row, N action positions of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steprl.errors import ConfigError
from steprl.types import Floats, Row, Step, StepKey, Trajectory


def rows(trajectories: Iterable[Trajectory], *, merge: bool = True) -> list[Row]:
    """The rows to run through a model, in the order of the trajectories and of their steps.

    With ``merge``, a step joins the row of the same agent's previous step when its prompt starts
    with that step's prompt and action token for token; otherwise, and without ``merge``, it starts
    its own. ``action_positions`` are the sampled tokens only: everything else in a row is context.
    A row in which nothing was sampled is left out.

    Raises:
        ConfigError: a step was sampled with top-p or top-k, whose distribution cannot be scored.
    """
    made: list[Row] = []
    for trajectory in trajectories:
        for chain in _chains(trajectory, merge=merge):
            if any(trajectory.steps[index].sampled_mask.any() for index in chain):
                made.append(_row(trajectory, chain))
    return made


def gather(row: Row, per_step: Mapping[StepKey, NDArray[Any]]) -> NDArray[Any]:
    """Per-step arrays [A], read at the row's action positions: [N]."""
    parts = [per_step[key][row.token_index[row.step_index == i]] for i, key in enumerate(row.step_keys)]
    # action positions increase and the steps of a row follow each other, so the parts are in order
    return np.concatenate(parts)


def prompt_ends(row: Row) -> Iterator[tuple[StepKey, int, int]]:
    """For each step that has action positions in a row: its key, the position of its last prompt token, and
    the index of its first action position."""
    for i, key in enumerate(row.step_keys):
        here = np.flatnonzero(row.step_index == i)
        if len(here):
            first = int(here[0])
            yield key, int(row.action_positions[first] - row.token_index[first]) - 1, first


def split_by_step(
    trajectories: Iterable[Trajectory], rows: Sequence[Row], values: Sequence[NDArray[Any]]
) -> dict[StepKey, Floats]:
    """Per-row arrays [N], given back to the steps: f32[A] for every step of the trajectories.

    Tokens that were not sampled, and steps in none of the rows, have NaN, as in the record: a number
    read where there is none should be noticed.
    """
    per_step = {
        trajectory.key(index): np.full(len(step.action_ids), np.nan, dtype=np.float32)
        for trajectory in trajectories
        for index, step in enumerate(trajectory.steps)
    }
    for row, row_values in zip(rows, values, strict=True):
        for i, key in enumerate(row.step_keys):
            here = row.step_index == i
            per_step[key][row.token_index[here]] = row_values[here]
    return per_step


def _chains(trajectory: Trajectory, *, merge: bool) -> list[list[int]]:
    """Indices of the steps that share a row, for each row."""
    chains: list[list[int]] = []
    open_chain: dict[str, list[int]] = {}
    for index, step in enumerate(trajectory.steps):
        chain = open_chain.get(step.agent)
        if merge and chain is not None and _continues(trajectory.steps[chain[-1]], step):
            chain.append(index)
        else:
            open_chain[step.agent] = [index]
            chains.append(open_chain[step.agent])
    return chains


def _continues(step: Step, later: Step) -> bool:
    p, a = len(step.prompt_ids), len(step.action_ids)
    return (
        len(later.prompt_ids) >= p + a
        and np.array_equal(later.prompt_ids[:p], step.prompt_ids)
        and np.array_equal(later.prompt_ids[p : p + a], step.action_ids)
    )


def _row(trajectory: Trajectory, chain: Sequence[int]) -> Row:
    steps = [trajectory.steps[index] for index in chain]
    for index, step in zip(chain, steps, strict=True):
        if not step.sampling.neutral:
            raise ConfigError(
                f"step {index} of trajectory {trajectory.uid} was sampled with "
                f"top_p = {step.sampling.top_p} and top_k = {step.sampling.top_k}. The learner scores the "
                f"whole distribution, so training needs top_p = 1 and top_k = 0."
            )
    sampled = [np.flatnonzero(step.sampled_mask) for step in steps]
    counts = [len(tokens) for tokens in sampled]
    last = steps[-1]
    return Row(
        # every earlier prompt and action of the chain is a prefix of the last step's prompt
        ids=np.concatenate([last.prompt_ids, last.action_ids]),
        action_positions=np.concatenate(
            [len(step.prompt_ids) + tokens for step, tokens in zip(steps, sampled, strict=True)]
        ),
        step_keys=tuple(trajectory.key(index) for index in chain),
        step_index=np.repeat(np.arange(len(steps)), counts),
        token_index=np.concatenate(sampled),
        temperature=np.repeat([step.sampling.temperature for step in steps], counts),
        engine_logprobs=np.concatenate(
            [_engine_logprobs(step, tokens) for step, tokens in zip(steps, sampled, strict=True)]
        ),
    )


def _engine_logprobs(step: Step, tokens: NDArray[np.intp]) -> Floats:
    if step.logprobs is None:
        return np.full(len(tokens), np.nan, dtype=np.float32)
    return step.logprobs[tokens]
