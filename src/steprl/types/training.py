"""From scores to samples: what credit assignment reads and writes, and what a learner trains on.

Shapes: A action tokens of one step, L tokens of a row, N action positions of a row, V value positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from steprl.types._arrays import Bools, Doubles, Floats, Ints, frozen, put
from steprl.types.records import StepKey


class Need(StrEnum):
    """What an estimator cannot work without. Checked before the first rollout."""

    CRITIC = "critic"
    REFERENCE = "reference"
    ANCHORS = "anchors"
    GROUPS = "groups"
    SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What models say about the recorded tokens, per step.

    ``old_logprobs`` f32[A] of the proximal policy; ``ref_logprobs`` f32[A] of the reference;
    ``values`` f32[A], the value *before* token j (``values[0]`` is V(o_t)). Per trajectory:
    ``bootstrap_values``, V of the final observation of a truncated one.
    """

    old_logprobs: Mapping[StepKey, Floats] = field(default_factory=dict)
    ref_logprobs: Mapping[StepKey, Floats] | None = None
    values: Mapping[StepKey, Floats] | None = None
    bootstrap_values: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credits:
    """What an estimator says, per step: ``advantages`` f64[A], ``returns`` f64[A] (with a critic),
    ``loss_mask`` bool[A] (the sampled tokens that train)."""

    advantages: Mapping[StepKey, Doubles]
    loss_mask: Mapping[StepKey, Bools]
    returns: Mapping[StepKey, Doubles] | None = None

    def __post_init__(self) -> None:
        if self.advantages.keys() != self.loss_mask.keys():
            raise ValueError("advantages and loss_mask must name the same steps")
        for key, advantages in self.advantages.items():
            mask = self.loss_mask[key]
            if advantages.shape != mask.shape:
                raise ValueError(f"{key}: advantages {advantages.shape} and loss_mask {mask.shape} differ")
            if not np.isfinite(advantages[mask]).all():
                raise ValueError(f"{key}: an advantage of a trained token is not finite")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """Tokens to run through a model once: one step, or several steps merged (append-only).

    ``ids`` i32[L]. ``action_positions`` i32[N] are where the sampled tokens stand in ``ids``
    (``ids[p]`` is predicted from ``ids[:p]``), ``step_index`` i32[N] says which of ``step_keys``
    each belongs to, ``token_index`` i32[N] its place j in that step's action. ``temperature`` f32[N],
    ``engine_logprobs`` f32[N] (NaN when the engine had none).
    """

    ids: Ints
    action_positions: Ints
    step_keys: tuple[StepKey, ...]
    step_index: Ints
    token_index: Ints
    temperature: Floats
    engine_logprobs: Floats

    def __post_init__(self) -> None:
        put(self, "ids", frozen(self.ids, np.int32, "ids"))
        put(self, "action_positions", frozen(self.action_positions, np.int32, "action_positions"))
        n = len(self.action_positions)
        put(self, "step_index", frozen(self.step_index, np.int32, "step_index", length=n))
        put(self, "token_index", frozen(self.token_index, np.int32, "token_index", length=n))
        put(self, "temperature", frozen(self.temperature, np.float32, "temperature", length=n))
        put(self, "engine_logprobs", frozen(self.engine_logprobs, np.float32, "engine_logprobs", length=n))
        if n and not (self.action_positions[0] >= 1 and self.action_positions[-1] < len(self.ids)):
            raise ValueError(
                "action positions must lie in 1 … L-1: the first token has nothing to predict it"
            )
        if n and (np.diff(self.action_positions) <= 0).any():
            raise ValueError("action positions must increase")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One row to train on. All f32[N] arrays stand beside ``row.action_positions``.

    ``weights`` are explicit: the learner minimises ``Σ weights · loss`` and divides by nothing.
    A token that does not train has weight 0. ``returns``, ``old_values``, ``value_weights`` f32[V] and
    ``value_positions`` i32[V] are for a critic: it reads a value after ``ids[p]``, so the value of a state
    stands at the last token of its prompt, and the value before an action token one position before that
    token.
    """

    row: Row
    advantages: Floats
    old_logprobs: Floats
    loss_mask: Bools
    weights: Floats
    ref_logprobs: Floats | None = None
    returns: Floats | None = None
    value_positions: Ints | None = None
    value_weights: Floats | None = None
    old_values: Floats | None = None

    def __post_init__(self) -> None:
        n = len(self.row.action_positions)
        for name in ("advantages", "old_logprobs", "weights"):
            put(self, name, frozen(getattr(self, name), np.float32, name, length=n))
        put(self, "loss_mask", frozen(self.loss_mask, np.bool_, "loss_mask", length=n))
        if self.ref_logprobs is not None:
            put(self, "ref_logprobs", frozen(self.ref_logprobs, np.float32, "ref_logprobs", length=n))
        if self.value_positions is not None:
            put(self, "value_positions", frozen(self.value_positions, np.int32, "value_positions"))
            v = len(self.value_positions)
            for name in ("returns", "value_weights"):
                put(self, name, frozen(getattr(self, name), np.float32, name, length=v))
            if self.old_values is not None:
                put(self, "old_values", frozen(self.old_values, np.float32, "old_values", length=v))
        if (self.weights[~self.loss_mask] != 0).any():
            raise ValueError("a token outside the loss mask must have weight 0")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """The samples of one optimiser step, and how they are cut into micro-batches.

    ``micro_batches`` are indices into ``samples``; every sample stands in exactly one. The cut is
    free: the weights already are those of the whole mini-batch.
    """

    samples: tuple[Sample, ...]
    micro_batches: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if sorted(i for micro in self.micro_batches for i in micro) != list(range(len(self.samples))):
            raise ValueError("every sample must stand in exactly one micro-batch")
