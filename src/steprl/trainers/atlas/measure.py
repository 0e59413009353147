"""The exact mean and variance of an estimated policy gradient, over every batch that there can be.

Shapes: N episodes of a world; B batches; E events; D logits; M sampled tokens of all batches, in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from steprl.batch import Aggregation
from steprl.errors import ConfigError
from steprl.learner.losses import slopes
from steprl.trainers.atlas.batches import Batches
from steprl.trainers.atlas.critics import Critic, Kind
from steprl.trainers.atlas.play import World
from steprl.trainers.atlas.policy import TablePolicy, gradient
from steprl.trainers.atlas.subjects import AGGREGATIONS, ON_POLICY, Loss, Subject
from steprl.types import Bools, Doubles, Floats, Need, Scores, StepKey

T = TypeVar("T", bound=np.generic)
LossMask = Mapping[StepKey, Bools]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What an estimator, a rule and a loss make of the gradient in a world.

    ``mean`` f64[D] over all batches, of the direction in which the learner moves; ``truth`` f64[D], the
    gradient of what the episodes earn; ``variance``, the trace of the covariance of one batch's gradient.
    """

    world: str
    subject: str
    rule: str
    loss: str
    mean: Doubles = field(repr=False)
    truth: Doubles = field(repr=False)
    variance: float

    @property
    def constant(self) -> float:
        """The multiple of the truth that comes closest to the mean: a step size, not an error."""
        return float(self.mean @ self.truth / (self.truth @ self.truth))

    @property
    def bias(self) -> float:
        """How far the mean is from that multiple, in units of it: the tangent of the angle between mean and
        truth; infinite at a right angle and beyond."""
        return math.inf if self.constant <= 0 else self.error(self.constant)

    @property
    def noise(self) -> float:
        """Standard deviation of the gradient of one batch, in the same units."""
        return math.inf if self.constant <= 0 else math.sqrt(self.variance) / self._length(self.constant)

    def error(self, constant: float) -> float:
        """Relative distance of the mean from ``constant`` · truth."""
        return float(np.linalg.norm(self.mean - constant * self.truth)) / self._length(constant)

    def _length(self, constant: float) -> float:
        return constant * float(np.linalg.norm(self.truth))


class Atlas:
    """A world, played completely: what there is to measure in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.episodes = world.episodes()
        self.policy = TablePolicy(self.episodes)
        events = [[self.policy.event(token) for token in e.tokens] for e in self.episodes]
        self._counts_NE = np.stack([np.bincount(row, minlength=len(self.policy.events)) for row in events])
        self._chances_N = np.array([episode.chance for episode in self.episodes])
        behaviour_D = self.policy.stale_logits_D if world.stale else self.policy.logits_D
        self._sampled_E = self.policy.logprobs(behaviour_D).real
        self.probabilities_N: Doubles = self._chances_N * np.exp(self._counts_NE @ self._sampled_E)
        self.batches = Batches(world, self.episodes, self.probabilities_N)
        self._critics = {kind: Critic(kind, self.episodes, self.probabilities_N) for kind in get_args(Kind)}
        members = self.batches.members
        self._event_M = np.array([event for batch in members for n in batch for event in events[n]])
        self._batch_M = np.repeat(np.arange(len(members)), [sum(len(events[n]) for n in b) for b in members])
        steps = [self.episodes[n].tokens for batch in members for n in batch]
        first = np.cumsum([0, *(len(self.episodes[n].steps) for batch in members for n in batch)])
        self._places = [
            [
                (t.key(i), step.sampled_mask)
                for g in groups
                for t in g.trajectories
                for i, step in enumerate(t.steps)
            ]
            for groups in self.batches.records
        ]
        self._known_weights: dict[tuple[Aggregation, bytes], Doubles] = {}
        self._step_M = np.array(
            [start + token.step for start, tokens in zip(first, steps, strict=False) for token in tokens]
        )

    def truth(self, subject: Subject) -> Doubles:
        """∇ of the mean of the rewards, and with values of what they say comes after a limit of the run."""
        earned_N = np.array([math.fsum(step.reward or 0.0 for step in e.steps) for e in self.episodes])
        if subject.has_values:
            earned_N += [self._critics[subject.critic].after(episode) for episode in self.episodes]
        tasks_N = np.array([self.world.tasks[episode.task] for episode in self.episodes])
        return gradient(self.policy, self._counts_NE, self._chances_N * tasks_N, earned_N)

    def measure(
        self,
        subject: Subject,
        *,
        rules: Mapping[str, Aggregation] = AGGREGATIONS,
        losses: Sequence[Loss] = (ON_POLICY,),
    ) -> list[Measured]:
        """One for each rule and loss.

        Raises:
            ConfigError: the estimator needs a reference, and no world has one.
        """
        truth_D, scores = self.truth(subject), self.scores(subject)
        credits = [subject.estimator(groups, scores) for groups in self.batches.records]
        masks = [c.loss_mask for c in credits]
        trained_M = self._in_order(masks)
        # outside the mask an advantage may be anything
        advantages_M = np.where(trained_M, self._in_order([c.advantages for c in credits]), 0.0)
        trained = trained_M.tobytes()
        found = []
        for rule, aggregation in rules.items():
            weights_M = self._weighed(aggregation, trained, masks)
            for loss in losses:
                gradients_BD = self._gradients(advantages_M, weights_M, loss)
                mean_D = self.batches.probabilities @ gradients_BD
                deviations_BD = gradients_BD - mean_D
                found.append(
                    Measured(
                        world=self.world.name,
                        subject=subject.name,
                        rule=rule,
                        loss=loss.name,
                        mean=mean_D,
                        truth=truth_D,
                        variance=float(self.batches.probabilities @ (deviations_BD**2).sum(1)),
                    )
                )
        return found

    def scores(self, subject: Subject) -> Scores:
        """What the subject's critic says of every step of every batch; nothing if it needs no values.

        Raises:
            ConfigError: it needs a reference.
        """
        if Need.REFERENCE in subject.estimator.requires:
            raise ConfigError(
                f"'{subject.name}' needs a reference model, and the worlds of the atlas have none"
            )
        if not subject.has_values:
            return Scores()
        critic = self._critics[subject.critic]
        values: dict[StepKey, Doubles] = {}
        after: dict[str, float] = {}
        for uid, (n, trajectory) in self.batches.trajectories.items():
            after[uid] = critic.after(self.episodes[n])
            for index in range(len(trajectory.steps)):
                values[trajectory.key(index)] = np.array(critic.values(self.episodes[n], index))
        # float64, or an exact critic would not be exact
        return Scores(values=cast("Mapping[StepKey, Floats]", values), bootstrap_values=after)

    def _weighed(self, aggregation: Aggregation, trained: bytes, masks: Sequence[LossMask]) -> Doubles:
        """Weights f64[M]; most estimators train on the same tokens, so they are kept."""
        if (aggregation, trained) not in self._known_weights:
            weights_M = self._in_order([aggregation.weights(mask) for mask in masks])
            self._known_weights[aggregation, trained] = weights_M
        return self._known_weights[aggregation, trained]

    def _in_order(self, per_step: Sequence[Mapping[StepKey, NDArray[T]]]) -> NDArray[T]:
        """[M] of what stands by step for each batch."""
        return np.concatenate(
            [
                values[key][sampled]
                for places, values in zip(self._places, per_step, strict=True)
                for key, sampled in places
            ]
        )

    def _gradients(self, advantages_M: Doubles, weights_M: Doubles, loss: Loss) -> Doubles:
        """f64[B, D]: where the learner moves after each batch, −∇ Σ w·l."""
        learning_M = self.policy.logprobs(self.policy.logits_D).real[self._event_M]
        sampled_M = self._sampled_E[self._event_M]
        slopes_M = slopes(
            learning_M,
            old_logprobs_M=sampled_M if loss.old == "behaviour" else learning_M,
            engine_logprobs_M=sampled_M,
            advantages_M=advantages_M,
            weights_M=weights_M,
            step_M=self._step_M,
            config=loss.config,
        )
        events, count = len(self.policy.events), len(self.batches.members)
        cells = np.bincount(
            self._batch_M * events + self._event_M, weights=-slopes_M, minlength=count * events
        )
        gradients_BD: Doubles = cells.reshape(count, events) @ self.policy.scores()
        return gradients_BD


@cache
def atlas(world: World) -> Atlas:
    """A world, played once."""
    return Atlas(world)
