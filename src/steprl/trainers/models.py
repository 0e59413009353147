"""The models of a run: the policy's learner, and a critic and a reference where the algorithm needs them.

They are built together, asked together what they say about a batch, and saved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steprl.batch import split_by_step
from steprl.learner.critic import Critic
from steprl.learner.loading import load_model
from steprl.learner.metrics import VALUE_FIGURES
from steprl.learner.reference import Reference
from steprl.learner.torch_learner import TorchLearner
from steprl.trainers.recipe import Recipe
from steprl.types import Estimator, MiniBatch, Need, Row, Scores, Trajectory
from steprl.weights.source import FullWeights

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What a run trains, and what it only asks."""

    learner: TorchLearner
    critic: Critic | None = None
    reference: Reference | None = None

    def scores(
        self, trajectories: Sequence[Trajectory], token_rows: Sequence[Row], *, max_context: int
    ) -> Scores:
        """What each model says about the steps in ``token_rows``, before anything is learned from them.

        Until the policy's first step it is the reference itself, which is not asked then. A final observation
        longer than ``max_context`` has no value; ``Critic.bootstrap_values`` says what stands for it.
        """
        old = split_by_step(trajectories, token_rows, self.learner.score(token_rows))
        reference = None
        if self.reference is not None:
            moved = self.learner.optimiser.steps > 0
            reference = (
                split_by_step(trajectories, token_rows, self.reference.score(token_rows)) if moved else old
            )
        if self.critic is None:
            return Scores(old_logprobs=old, ref_logprobs=reference)
        return Scores(
            old_logprobs=old,
            ref_logprobs=reference,
            values=self.critic.score(trajectories, token_rows),
            bootstrap_values=self.critic.bootstrap_values(trajectories, max_context=max_context),
        )

    def update(self, batch: MiniBatch, *, policy: bool = True) -> tuple[Figures, Figures]:
        """One optimiser step of each model that learns; without ``policy``, of the critic alone.

        Returns:
            What the policy's step says, and what the critic's does; a model that took none says nothing.
        """
        if not policy:
            return {}, self.learn_values(batch)
        if self.critic is None or not self.critic.joint:
            # values first: a head on the policy's trunk learns from the states it was read off
            values = self.learn_values(batch)
            return self.learner.update(batch), values
        both = self.learner.update(batch)
        values = {name: both.pop(name) for name in VALUE_FIGURES & both.keys()}
        return both, values

    def learn_values(self, batch: MiniBatch) -> Figures:
        """A step of the critic by itself, if there is one."""
        return {} if self.critic is None else self.critic.update(batch)

    def save(self, folder: str) -> None:
        """Write what learns into a fresh folder, which ``from_pretrained`` reads as the policy.

        Raises:
            OSError, SafetensorError: something cannot be written; the folder is partial then.
        """
        self.learner.save(folder)
        if self.critic is not None:
            self.critic.save(folder)

    def load(self, folder: str) -> None:
        """Continue from what ``save`` wrote, bit for bit. A reference never changes and is not in it.

        Raises:
            CheckpointError: missing, partial, or of other models.
        """
        self.learner.load(folder)
        if self.critic is not None:
            self.critic.load(folder)


def build_models(recipe: Recipe, estimator: Estimator, path: str) -> Models:
    """The models that a recipe and its estimator need, each begun from the weights at ``path``.

    Raises:
        ConfigError: there is no complete model at ``path``.
    """
    config = recipe.learner
    model = load_model(path, "float64" if config.dtype == "float64" else "float32")
    critic = reference = None
    if Need.CRITIC in estimator.requires:
        shared = recipe.critic.kind == "shared"
        critic = Critic(model if shared else load_model(path), recipe.critic)
    if config.loss.needs_reference or Need.REFERENCE in estimator.requires:
        reference = Reference(load_model(path), config)
    joint = critic if critic is not None and critic.joint else None
    learner = TorchLearner(model, config, source=FullWeights(model), critic=joint)
    return Models(learner=learner, critic=critic, reference=reference)
