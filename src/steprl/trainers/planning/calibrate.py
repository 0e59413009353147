"""A short calibration: play some groups of a recipe and train on them, with a clock and a scale in hand.

Everything is measured with the parts of the run itself, on tasks it would begin with; nothing is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter

import numpy as np

from steprl.batch import rows
from steprl.engines.torch_engine import TorchEngine
from steprl.errors import ConfigError, EnvError
from steprl.rollout import derive_seed
from steprl.trainers.crediting import credits_of
from steprl.trainers.filtering.choose import choose
from steprl.trainers.given import Given
from steprl.trainers.interrupt import run_async
from steprl.trainers.learning import batches, trained_of
from steprl.trainers.needs import check_recorded
from steprl.trainers.parts import Parts, build_parts
from steprl.trainers.planning.memory import MemoryFigures, PeakMemory, weigh
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trajectory.statistics import batch_statistics
from steprl.types import Credits, Need, Prompt, Row, Sampling, Scores, Task, Trajectory, TrajectoryGroup

_WARM_UP = 2
"""Groups played and trained on before anything is timed: first passes allocate, and are slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFigures:
    """A timed batch of episodes.

    ``engine_share`` is how much of the time of an average episode was spent waiting for the engine; the rest
    went to environment, tools and rendering. ``prefill_seconds`` is the part of ``seconds`` that went into
    computing prompts; None where the engine does not say what it computed.
    """

    episodes: int
    seconds: float
    engine_share: float
    prompt_tokens: int
    sampled_tokens: int
    prefilled_tokens: int | None
    prefill_seconds: float | None
    statistics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerFigures:
    """One epoch over the timed batch. ``scoring_seconds`` is all that is asked of policy, reference and
    critic; ``forward_seconds`` one pass of the policy over all rows without gradient; ``update_seconds`` are
    its optimiser steps when every row trains, ``critic_seconds`` those of a critic that trains by itself;
    ``training_share`` is the share of row tokens that did have something to learn from."""

    rows: int
    row_tokens: int
    widest_pass: int
    scoring_seconds: float
    forward_seconds: float
    update_seconds: float
    critic_seconds: float
    training_share: float
    sync_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured: ``groups`` of the recipe's own size, played and trained on once; ``kept_share`` of
    them by its filters (None: it has none)."""

    groups: int
    rollout: RolloutFigures
    evaluation: RolloutFigures | None
    learner: LearnerFigures
    memory: MemoryFigures
    eval_tasks: int
    kept_share: float | None = None


def calibrate(
    recipe: Recipe,
    *,
    groups: int | None = None,
    given: Given | None = None,
    display: Display | None = None,
) -> Calibration:
    """Build the parts of a recipe, play ``groups`` groups and train on them.

    Left out, ``groups`` is what runs at once: as many as fill ``rollout.concurrency`` and ``engine.slots``,
    so that forward passes are as wide as the run's. The learner is thrown away afterwards.

    Raises:
        ConfigError: the recipe cannot work, or ``groups`` is not between 1 and ``rollout.groups``.
        EnvError: no episode could be trained on.
    """
    most = recipe.rollout.groups
    if groups is not None and not 1 <= groups <= most:
        raise ConfigError(
            f"the calibration plays 1 to rollout.groups = {most} groups, and {groups} were asked"
        )
    at_once = min(recipe.rollout.concurrency, recipe.engine.slots)
    count = groups or min(most, max(_WARM_UP, ceil(at_once / recipe.rollout.group_size)))
    display = display or Display()
    with PeakMemory() as memory:
        parts = build_parts(recipe, given)
        if Need.SNAPSHOTS in parts.estimator.requires:
            raise ConfigError(
                f"estimator '{recipe.algorithm.estimator}' plays continuations of every state, which a "
                f"calibration does not time yet: its rollouts take longer by a factor of about half "
                f"the steps of an episode, times the number of continuations"
            )
        measuring = _Measuring(recipe, parts, display)
        played, rollout, evaluation = run_async(lambda: measuring.play(count))
        learner = measuring.learn(played)
        kept = choose(recipe, parts.filters, parts.estimator, played)
    return Calibration(
        groups=count,
        kept_share=len(kept.groups) / count if kept.filtered else None,
        rollout=rollout,
        evaluation=evaluation,
        learner=learner,
        memory=weigh(parts, memory),
        eval_tasks=len(parts.eval_tasks),
    )


class _Measuring:
    """The steps of a calibration, in order: warm up, play, evaluate, learn."""

    def __init__(self, recipe: Recipe, parts: Parts, display: Display) -> None:
        self.recipe = recipe
        self.parts = parts
        self.display = display
        self.sampling = recipe.rollout.sampling(parts.player.renderer.stop_ids)

    async def play(self, count: int) -> tuple[list[TrajectoryGroup], RolloutFigures, RolloutFigures | None]:
        """Warm up, then a timed batch of ``count`` groups, then a timed evaluation of as many episodes."""
        recipe, parts = self.recipe, self.parts
        cursor = parts.cursor
        size, seed = recipe.rollout.group_size, derive_seed(recipe.seed, "train", 1)
        await self._timed(cursor.take(min(count, _WARM_UP)), "warm-up", seed, size)
        cursor.position = 0
        # the tasks and the seed of the first iteration: what is measured is a part of the run itself
        groups, rollout = await self._timed(cursor.take(count), "calibration", seed, size)
        if not parts.eval_tasks:
            return groups, rollout, None
        tasks = parts.eval_tasks[: max(1, min(recipe.rollout.concurrency, count * size))]
        _, evaluation = await self._timed(tasks, "evaluation", derive_seed(recipe.seed, "evaluation"), 1)
        return groups, rollout, evaluation

    async def _timed(
        self, tasks: Sequence[Task], label: str, seed: int, group_size: int
    ) -> tuple[list[TrajectoryGroup], RolloutFigures]:
        engine, pool = self.parts.player.engine, self.parts.player.pool
        await self.parts.forget_cached()
        before = engine.stats if isinstance(engine, TorchEngine) else None
        started = perf_counter()
        with self.display.phase(label, len(tasks) * group_size) as bar:
            groups = await pool.collect(
                tasks,
                label=f"plan-{label}",
                seed=seed,
                group_size=group_size,
                sampling=self.sampling,
                max_steps=self.recipe.rollout.max_steps,
                progress=bar.on_episode,
            )
        seconds = perf_counter() - started
        after = engine.stats if isinstance(engine, TorchEngine) else None
        members = [trajectory for group in groups for trajectory in group.trajectories]
        steps = [step for trajectory in members for step in trajectory.steps]
        engine_share = _share(
            sum(step.timings.get("engine", 0.0) for step in steps),
            sum(step.timings.get("env", 0.0) for step in steps),
        )
        prefilled = after.prefilled_tokens - before.prefilled_tokens if before and after else None
        prefill = None
        if prefilled is not None:
            prefill = min(engine_share * seconds, prefilled * await self._prefill_seconds(members))
        return groups, RolloutFigures(
            episodes=len(members),
            seconds=seconds,
            engine_share=engine_share,
            prompt_tokens=sum(len(step.prompt_ids) for step in steps),
            sampled_tokens=sum(int(step.sampled_mask.sum()) for step in steps),
            prefilled_tokens=prefilled,
            prefill_seconds=prefill,
            statistics=batch_statistics(groups),
        )

    async def _prefill_seconds(self, members: Sequence[Trajectory]) -> float:
        """Seconds per prompt token that is computed: the last prompts of the episodes, one token each."""
        engine = self.parts.player.engine
        assert isinstance(engine, TorchEngine)
        prompts = [trajectory.steps[-1].prompt_ids for trajectory in members if trajectory.steps]
        await self.parts.forget_cached()
        before, started = engine.stats.prefilled_tokens, perf_counter()
        await asyncio.gather(
            *(
                engine.generate(
                    Prompt(ids=ids), Sampling(max_tokens=1), session_id=f"plan-prefill-{n}", seed=n
                )
                for n, ids in enumerate(prompts)
            )
        )
        computed = engine.stats.prefilled_tokens - before
        return (perf_counter() - started) / computed if computed else 0.0

    def learn(self, groups: Sequence[TrajectoryGroup]) -> LearnerFigures:
        """Score and train on the batch, on a few groups first and then, timed, on all of it."""
        check_recorded(self.recipe, self.parts.estimator, groups)
        self._epoch(groups[: min(len(groups), _WARM_UP)])
        return self._epoch(groups)

    def _epoch(self, groups: Sequence[TrajectoryGroup]) -> LearnerFigures:
        """Score a batch, train on all of its rows once, and hand over the weights."""
        recipe, models = self.recipe, self.parts.models
        trained = trained_of(groups)
        token_rows = rows(trained, merge=recipe.algorithm.merge)
        if not token_rows:
            raise EnvError(
                f"none of the {sum(len(group.trajectories) for group in groups)} episodes of the calibration "
                f"can be trained on; look at one with: steprl rollout RECIPE"
            )
        started = perf_counter()
        models.learner.score(token_rows)
        forward = perf_counter() - started
        started = perf_counter()
        scores = models.scores(trained, token_rows, max_context=self.parts.player.engine.max_context)
        scoring = perf_counter() - started
        credits = credits_of(recipe, self.parts.estimator, groups, scores)
        update, critic = self._updates(token_rows, credits, scores)
        started = perf_counter()
        run_async(self.parts.forget_cached)
        sync = perf_counter() - started
        lengths = [len(row.ids) for row in token_rows]
        budget = recipe.learner.token_budget
        return LearnerFigures(
            rows=len(token_rows),
            row_tokens=sum(lengths),
            widest_pass=max(max(lengths), min(budget, len(lengths) * max(lengths))),
            scoring_seconds=scoring,
            forward_seconds=forward,
            update_seconds=update,
            critic_seconds=critic,
            training_share=self._training_share(groups, token_rows, scores),
            sync_seconds=sync,
        )

    def _updates(self, token_rows: Sequence[Row], credits: Credits, scores: Scores) -> tuple[float, float]:
        """Seconds of an epoch in which every row trains: those of the policy, and of a critic beside it."""
        # With made-up advantages, or a calibration without a difference in reward would time no update.
        ones = {key: np.ones_like(values) for key, values in credits.advantages.items()}
        every = Credits(advantages=ones, loss_mask=credits.loss_mask, returns=credits.returns)
        seed = derive_seed(self.recipe.seed, "plan")
        cut = list(batches(self.recipe, self.parts, token_rows, every, scores, seed, epochs=1))
        models, update, critic = self.parts.models, 0.0, 0.0
        with self.display.phase("updates", len(cut)) as bar:
            for batch in cut:
                started = perf_counter()
                models.learner.update(batch)
                update += perf_counter() - started
                if models.critic is not None and not models.critic.joint:
                    started = perf_counter()
                    models.critic.update(batch)
                    critic += perf_counter() - started
                bar.advance()
        return update, critic

    def _training_share(
        self, groups: Sequence[TrajectoryGroup], token_rows: Sequence[Row], scores: Scores
    ) -> float:
        """The share of the row tokens of kept groups that the policy's update runs over: all where more than
        advantages pulls, else those of trajectories to which the estimator gave something to learn."""
        recipe, estimator = self.recipe, self.parts.estimator
        chosen = choose(recipe, self.parts.filters, estimator, groups)
        credits = credits_of(recipe, estimator, chosen.groups, scores, untrained=chosen.untrained)
        loss, critic = recipe.learner.loss, self.parts.models.critic
        if loss.beta > 0 or loss.entropy_bonus > 0 or (critic is not None and critic.joint):
            return 1.0
        masked = {key: values[credits.loss_mask[key]] for key, values in credits.advantages.items()}
        pulled = {key.trajectory for key, values in masked.items() if values.any()}
        kept = {t.uid for t in trained_of(chosen.groups)}
        lengths = [(row.step_keys[0].trajectory, len(row.ids)) for row in token_rows]
        total = sum(length for uid, length in lengths if uid in kept)
        return sum(length for uid, length in lengths if uid in pulled) / total if total else 0.0


def _share(one: float, other: float) -> float:
    return one / (one + other) if one + other else 0.0
