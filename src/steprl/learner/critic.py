"""Value learning: what a state is worth, read off a causal language model by one linear output.

The model is one of its own, or the policy's (`CriticConfig.kind`). A value is read *after* a position: that
of a state after the last token of its prompt, that before an action token one position before it.

Shapes: N action positions of a row, V value targets, R hidden states, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from steprl.batch import prompt_ends, split_by_step
from steprl.learner import checkpoint
from steprl.learner.critic_config import CriticConfig
from steprl.learner.losses import value_losses
from steprl.learner.metrics import ValueMetrics
from steprl.learner.model import last_states, prepare
from steprl.learner.optimiser import Optimiser
from steprl.learner.scoring import score_rows
from steprl.types import Floats, Ints, MiniBatch, Row, Sample, StepKey, Trajectory


class Critic:
    """A trunk, a value head, and their optimiser. The head starts at 0, so the first values are all 0.

    Args:
        model: a causal language model. With ``separate``, one loaded for the critic alone: its trunk is
            trained, its language head let go. With ``shared``, the policy's own.
        config: how values are learned. A shared trunk keeps the precision that the policy's learner gave it,
            which ``config.learner.dtype`` should name as well.
    """

    def __init__(self, model: PreTrainedModel, config: CriticConfig) -> None:
        self.trunk = cast(PreTrainedModel, model.base_model)
        self.config = config
        self.shared = config.kind == "shared"
        if not self.shared:
            wide = torch.float64 if config.learner.dtype == "float64" else torch.float32
            torch.nn.Module.to(self.trunk, wide)
            prepare(self.trunk, gradient_checkpointing=config.learner.gradient_checkpointing)
        hidden_size = self.trunk.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(hidden_size, 1, device=self.trunk.device, dtype=self.trunk.dtype)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self._modules = {"head": self.head} if self.shared else {"head": self.head, "trunk": self.trunk}
        self.optimiser = Optimiser(self.parameters(), config.learner)

    @property
    def joint(self) -> bool:
        """True when the policy's learner trains trunk and head in one pass; ``update`` then trains the head
        alone."""
        return self.config.joint

    def parameters(self) -> list[torch.nn.Parameter]:
        """Its own weights: head, and trunk unless that is the policy's."""
        return [parameter for module in self._modules.values() for parameter in module.parameters()]

    def values(self, rows: Sequence[Row]) -> list[Floats]:
        """The value before every action token: f32[N] of each row, read one position before the token."""
        return score_rows(
            rows,
            self.config.learner.token_budget,
            lambda some: self._values([row.ids for row in some], [row.action_positions - 1 for row in some]),
        )

    def score(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> dict[StepKey, Floats]:
        """What ``Scores.values`` holds: f32[A] of every step, the value before token j.

        ``values[0]`` is V(o_t), read after the last prompt token, also where the first action token was not
        sampled. Other tokens that were not sampled, and steps in none of the rows, have NaN.
        """
        values = split_by_step(trajectories, rows, self.values(rows))
        starts = [
            (key, row.ids[: prompt_end + 1])
            for row in rows
            for key, prompt_end, first in prompt_ends(row)
            if row.token_index[first] > 0
        ]
        for (key, _), value in zip(starts, self.bootstrap([ids for _, ids in starts]), strict=True):
            values[key][0] = value
        return values

    def bootstrap(self, sequences: Sequence[Ints]) -> list[float]:
        """The value after the last token of each sequence, such as a final observation's ids."""
        found: list[float] = []
        with torch.no_grad():
            for ids in sequences:
                found.append(self._values([ids], [np.array([len(ids) - 1], dtype=np.int32)]).item())
        return found

    def bootstrap_values(
        self, trajectories: Iterable[Trajectory], *, max_context: int | None = None
    ) -> dict[str, float]:
        """What ``Scores.bootstrap_values`` holds: V(o_{T+1}) of every trajectory that a limit ended, by its
        uid.

        Read after the final observation, or after the last action when that is missing or longer than
        ``max_context``.
        """
        cut = [t for t in trajectories if t.stop_reason.bootstraps and t.steps]
        values = self.bootstrap([_final_ids(trajectory, max_context) for trajectory in cut])
        return {trajectory.uid: value for trajectory, value in zip(cut, values, strict=True)}

    def update(self, batch: MiniBatch) -> dict[str, float]:
        """One optimiser step on ``Σ value_weights · value loss`` over the targets of a mini-batch.

        A shared trunk stays as it is: this trains the head, for a detached critic and in a warm-up.

        Returns:
            ``value_loss``, ``value_targets``, ``value_mean``, ``return_mean``, ``value_clip_share``,
            ``explained_variance`` (where returns differ), and what ``Optimiser.step`` says.
        """
        self.optimiser.clear()
        metrics = self.metrics()
        total = 0.0
        for micro in batch.micro_batches:
            samples = [batch.samples[i] for i in micro if _has_targets(batch.samples[i])]
            if samples:
                values_V = self._values([sample.row.ids for sample in samples], value_positions(samples))
                loss = self.loss(values_V, samples, metrics)
                loss.backward()
                total += loss.item()
        return {**metrics.result(), **self.optimiser.step(total)}

    def loss(self, values_V: Tensor, samples: Sequence[Sample], metrics: ValueMetrics) -> Tensor:
        """``Σ value_weights · value loss`` of the targets of some samples, whose present values are given.

        Raises:
            ValueError: a sample has positions to learn at, but not what to learn there.
        """

        def targets(name: str) -> Tensor:
            parts = [getattr(sample, name) for sample in samples if _has_targets(sample)]
            if any(part is None for part in parts):
                raise ValueError(f"a sample has value targets without {name}")
            joined = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
            return torch.from_numpy(joined).to(values_V)

        returns_V, old_V = targets("returns"), targets("old_values")
        losses_V = value_losses(values_V, returns_V, old_V, value_clip=self.config.value_clip)
        loss = (targets("value_weights") * losses_V).sum()
        metrics.add(loss, values_V, returns_V, old_V)
        return loss

    def metrics(self) -> ValueMetrics:
        """Fresh figures of one update."""
        return ValueMetrics(value_clip=self.config.value_clip)

    def read_off(self, states_RH: Tensor) -> Tensor:
        """Values [R] of hidden states, in the head's precision."""
        with torch.autocast(states_RH.device.type, enabled=False):
            values: Tensor = self.head(states_RH.to(self.head.weight.dtype)).squeeze(-1)
        return values

    def save(self, folder: str) -> None:
        """Write head, optimiser state and a trunk of its own into a folder; the policy's files may stand
        there.

        Raises:
            OSError, SafetensorError: something cannot be written; the folder is partial then.
        """
        checkpoint.save_critic(folder, self._modules, self.optimiser)

    def load(self, folder: str) -> None:
        """Continue from what ``save`` wrote, bit for bit.

        Raises:
            CheckpointError: missing, partial, or of another architecture or kind.
        """
        checkpoint.load_critic(folder, self._modules, self.optimiser)

    def _values(self, sequences: Sequence[Ints], positions: Sequence[NDArray[np.int32]]) -> Tensor:
        """Values [R] after ``positions``, row by row in order. A shared trunk carries no gradient."""
        with (
            torch.autocast(self.trunk.device.type, torch.bfloat16, enabled=self._half),
            torch.set_grad_enabled(torch.is_grad_enabled() and not self.shared),
        ):
            states_RH = last_states(self.trunk, sequences, positions)
        return self.read_off(states_RH)

    @property
    def _half(self) -> bool:
        return self.config.learner.dtype == "bfloat16"


def value_positions(samples: Sequence[Sample]) -> list[Ints]:
    """Where each sample's values are read; a sample without targets has none."""
    none = np.zeros(0, dtype=np.int32)
    return [none if sample.value_positions is None else sample.value_positions for sample in samples]


def _has_targets(sample: Sample) -> bool:
    return sample.value_positions is not None and len(sample.value_positions) > 0


def _final_ids(trajectory: Trajectory, max_context: int | None) -> Ints:
    final = trajectory.final_prompt_ids
    if final is not None and (max_context is None or len(final) <= max_context):
        return final
    last = trajectory.steps[-1]
    return np.concatenate([last.prompt_ids, last.action_ids])
