"""Cuts of a rollout batch: K mini-batches of trajectories per epoch, each cut into micro-batches that fit.

The number of optimiser steps depends on K and the epochs, never on how many turns the agent took.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from steprl.batch.aggregation import Aggregation
from steprl.batch.merge import gather
from steprl.batch.value_targets import ValueTargets
from steprl.errors import ConfigError
from steprl.types import Bools, Credits, Doubles, MiniBatch, Row, Sample, Scores, StepKey


def minibatches(
    rows: Sequence[Row],
    credits: Credits,
    scores: Scores,
    *,
    aggregation: Aggregation,
    count: int,
    epochs: int = 1,
    token_budget: int,
    rng: np.random.Generator,
    value_targets: ValueTargets | None = None,
    factors: Mapping[StepKey, float] | None = None,
) -> Iterator[MiniBatch]:
    """The mini-batches of a rollout batch: ``count`` per epoch, shuffled anew in each epoch.

    Trajectories without a trained token take part in no mini-batch, and rows without one are left
    out: they would weigh 0.

    Args:
        rows: those of every trajectory that trains, merged or not.
        credits: advantages and loss mask of every step in ``rows``.
        scores: ``old_logprobs`` of every trained step, ``ref_logprobs`` when there is a reference.
        aggregation: the rule, applied to each mini-batch as a whole.
        count: mini-batches per epoch. Fewer trained trajectories than that make one each.
        epochs: how often the whole batch is gone through.
        token_budget: most tokens of a micro-batch, padding included.
        rng: decides which trajectories train together.
        value_targets: what a critic learns, from ``credits.returns`` and ``scores.values``; None without one.
        factors: above 0, multiplied onto the weights that the rule gives the tokens of these steps. Every
            denominator and the critic's targets stay as they are.

    Raises:
        ConfigError: ``count``, ``epochs`` or ``token_budget`` is below one.
        ValueError: ``rows`` lack a trained step, a trained token has no finite log-probability of the old
            policy or the reference, or a value target no finite return.
    """
    if epochs < 1:
        raise ConfigError(f"epochs = {epochs}: a batch is trained on at least once. Set epochs to 1 or more.")
    masks = _masks_by_trajectory(credits)
    rows_of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_of[row.step_keys[0].trajectory].append(row)
    for _ in range(epochs):
        for uids in split_trajectories(list(masks), count, rng):
            trained = {key: mask for uid in uids for key, mask in masks[uid].items()}
            chosen = [row for uid in uids for row in rows_of[uid]]
            weights = aggregation.weights(trained)
            weights |= {
                key: weights[key] * factor for key, factor in (factors or {}).items() if key in weights
            }
            samples = _samples(chosen, credits, scores, weights)
            if value_targets is not None:
                value_weights = value_targets.weights(trained)
                samples = tuple(
                    replace(s, **value_targets.of_row(s.row, credits, scores, value_weights)) for s in samples
                )
            lengths = [len(sample.row.ids) for sample in samples]
            yield MiniBatch(samples=samples, micro_batches=micro_batches(lengths, token_budget))


def split_trajectories(uids: Sequence[str], count: int, rng: np.random.Generator) -> list[list[str]]:
    """Shuffle the trajectories and deal them into ``count`` parts whose sizes differ by at most one.

    Parts are never empty: with fewer trajectories than ``count``, each is a part of its own.

    Raises:
        ConfigError: ``count`` is below one.
    """
    if count < 1:
        raise ConfigError(f"minibatches = {count}: an epoch has at least one. Set it to 1 or more.")
    shuffled = [uids[i] for i in rng.permutation(len(uids))]
    parts = min(count, len(uids))
    edges = [len(uids) * part // parts for part in range(parts + 1)] if parts else [0]
    return [shuffled[start:end] for start, end in zip(edges, edges[1:], strict=False)]


def micro_batches(lengths: Sequence[int], token_budget: int) -> tuple[tuple[int, ...], ...]:
    """Indices of rows that run together: similar lengths, and rows × longest within the budget.

    A row that is longer than the budget runs alone; it cannot be cut.

    Raises:
        ConfigError: ``token_budget`` is below one.
    """
    if token_budget < 1:
        raise ConfigError(f"token_budget = {token_budget}: set it to the tokens that fit in one pass.")
    cuts: list[tuple[int, ...]] = []
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while longest_first:
        fit = max(1, token_budget // max(1, lengths[longest_first[0]]))
        cuts.append(tuple(longest_first[:fit]))
        longest_first = longest_first[fit:]
    return tuple(cuts)


def _masks_by_trajectory(credits: Credits) -> dict[str, dict[StepKey, Bools]]:
    """The loss masks of every step of each trajectory that has a trained token."""
    masks: dict[str, dict[StepKey, Bools]] = defaultdict(dict)
    for key, mask in credits.loss_mask.items():
        masks[key.trajectory][key] = mask
    return {uid: steps for uid, steps in masks.items() if any(mask.any() for mask in steps.values())}


def _samples(
    rows: Sequence[Row], credits: Credits, scores: Scores, weights: Mapping[StepKey, Doubles]
) -> tuple[Sample, ...]:
    samples = tuple(
        _sample(row, credits, scores, weights) for row in rows if gather(row, credits.loss_mask).any()
    )
    wanted = sum(int((weight != 0).sum()) for weight in weights.values())
    found = sum(int(sample.loss_mask.sum()) for sample in samples)
    if found != wanted:
        raise ValueError(f"the rows hold {found} of the {wanted} tokens to train on: some rows are missing")
    return samples


def _sample(row: Row, credits: Credits, scores: Scores, weights: Mapping[StepKey, Doubles]) -> Sample:
    loss_mask = gather(row, credits.loss_mask)
    old_logprobs = gather(row, scores.old_logprobs)
    if not np.isfinite(old_logprobs[loss_mask]).all():
        raise ValueError(f"a trained token of {row.step_keys} has no finite old log-probability")
    ref_logprobs = None if scores.ref_logprobs is None else gather(row, scores.ref_logprobs)
    if ref_logprobs is not None and not np.isfinite(ref_logprobs[loss_mask]).all():
        raise ValueError(f"a trained token of {row.step_keys} has no finite log-probability of the reference")
    return Sample(
        row=row,
        advantages=gather(row, credits.advantages),
        old_logprobs=old_logprobs,
        loss_mask=loss_mask,
        weights=gather(row, weights),
        ref_logprobs=ref_logprobs,
    )
