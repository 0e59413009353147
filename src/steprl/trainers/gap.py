"""The gap between engine and learner: the log-probability that an engine recorded for a token beside the one
that a learner computes. Only tokens which the learner's own weights sampled measure it: between others, the
policies differ as well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steprl.batch import rows, split_by_step
from steprl.errors import ConfigError
from steprl.learner.torch_learner import TorchLearner
from steprl.trajectory import Decode
from steprl.types import Floats, Row, Step, StepKey, Trajectory

_CONTEXT = 12
"""Tokens shown before a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGap:
    """One token: its place (``position`` counts the tokens of the action), its log-probability as the engine
    recorded it and as the learner computes it, and its text with that of the tokens before it."""

    episode: str
    step: int
    position: int
    recorded: float
    computed: float
    before: str
    token: str

    @property
    def size(self) -> float:
        """|computed − recorded|."""
        return abs(self.computed - self.recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionGap:
    """|computed − recorded| over the tokens that one policy version sampled: mean, 99th percentile, the token
    with the largest, and the first token above the tolerance."""

    version: int
    tokens: int
    mean: float
    p99: float
    largest: TokenGap
    first: TokenGap | None


class GapMeter:
    """Compares batch after batch of trajectories, and keeps the sizes and the tokens worth showing.

    Args:
        learner: whose weights score.
        decode: text of token ids, to show tokens.
        tolerance: the first token with a larger gap is kept.
        merge: whether append-only steps share a row, as in training.
    """

    def __init__(self, learner: TorchLearner, decode: Decode, *, tolerance: float, merge: bool) -> None:
        self._learner = learner
        self._decode = decode
        self._tolerance = tolerance
        self._merge = merge
        self._sizes: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        self._largest: dict[int, TokenGap] = {}
        self._first: dict[int, TokenGap] = {}
        self.left_out = 0
        """Sampled tokens without a log-probability to compare: the engine gave none, or sampled greedily."""

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Score the tokens of some trajectories.

        Raises:
            ConfigError: a token is none of the model's, or was sampled with top-p or top-k.
        """
        scorable = [row for row in rows(trajectories, merge=self._merge) if (row.temperature > 0).all()]
        self._check_vocabulary(scorable)
        computed = split_by_step(trajectories, scorable, self._learner.score(scorable))
        for trajectory in trajectories:
            for index, step in enumerate(trajectory.steps):
                self._add_step(trajectory.key(index), step, computed[trajectory.key(index)])

    def result(self) -> tuple[VersionGap, ...]:
        """What was found, by policy version."""
        return tuple(
            VersionGap(
                version=version,
                tokens=len(sizes),
                mean=float(sizes.mean()),
                p99=float(np.quantile(sizes, 0.99)),
                largest=self._largest[version],
                first=self._first.get(version),
            )
            for version, sizes in sorted((v, np.concatenate(parts)) for v, parts in self._sizes.items())
        )

    def _add_step(self, key: StepKey, step: Step, computed_A: Floats) -> None:
        recorded_A = np.full(len(computed_A), np.nan) if step.logprobs is None else step.logprobs
        sizes_A = np.abs(computed_A.astype(np.float64) - recorded_A)
        compared_A = np.isfinite(sizes_A)
        self.left_out += int(step.sampled_mask.sum() - compared_A.sum())

        def token(position: int) -> TokenGap:
            ids = np.concatenate([step.prompt_ids, step.action_ids[: position + 1]]).tolist()
            return TokenGap(
                episode=key.trajectory,
                step=key.step,
                position=position,
                recorded=float(recorded_A[position]),
                computed=float(computed_A[position]),
                before=self._decode(ids[-1 - _CONTEXT : -1]),
                token=self._decode(ids[-1:]),
            )

        for version in np.unique(step.policy_versions[compared_A]).tolist():
            at = np.flatnonzero(compared_A & (step.policy_versions == version))
            sizes = sizes_A[at]
            self._sizes[version].append(sizes)
            if version not in self._largest or sizes.max() > self._largest[version].size:
                self._largest[version] = token(int(at[sizes.argmax()]))
            if version not in self._first and (sizes > self._tolerance).any():
                self._first[version] = token(int(at[(sizes > self._tolerance).argmax()]))

    def _check_vocabulary(self, scorable: Sequence[Row]) -> None:
        known = self._learner.model.get_input_embeddings().num_embeddings
        for row in scorable:
            if row.ids.max() >= known:
                raise ConfigError(
                    f"episode {row.step_keys[0].trajectory} holds token id {row.ids.max()}, and the model "
                    f"knows {known} ids. Give a checkpoint of the model that the run was started with."
                )
