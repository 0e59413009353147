"""The training loop: roll out, score, assign credit, update, hand over the weights. One loop for every
algorithm, environment and context rule; it knows none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from tensorboard.summary import Writer

from steprl.batch import minibatches, rows, split_by_step
from steprl.rollout import derive_seed
from steprl.trainers.cursor import TaskCursor
from steprl.trainers.curves import draw
from steprl.trainers.evaluate import evaluate
from steprl.trainers.interrupt import Interrupted, Stop, run_async
from steprl.trainers.parts import Parts
from steprl.trainers.progress import Display, figures
from steprl.trainers.recipe import Recipe
from steprl.trainers.run_folder import RunFolder, TrainerState
from steprl.trajectory.statistics import batch_statistics
from steprl.trajectory.store import file_path, write
from steprl.types import Sampling, Scores, TrajectoryGroup


class Trainer:
    """Trains one recipe in one run folder.

    ``run`` evaluates, trains and evaluates again; it continues from the newest checkpoint when the
    folder has one.
    """

    def __init__(self, recipe: Recipe, parts: Parts, folder: RunFolder, display: Display) -> None:
        self.recipe = recipe
        self.parts = parts
        self.folder = folder
        self.display = display
        self.iteration = 0
        self.evaluated = -1
        self.cursor = TaskCursor(parts.train_tasks, seed=derive_seed(recipe.seed, "tasks"))
        self.train_seconds = 0.0
        self.before: Mapping[str, float] = {}

    def run(self) -> dict[str, Any]:
        """The whole run; returns what ``summary.json`` holds.

        Raises:
            Interrupted: Ctrl-C, after a checkpoint was written.
        """
        stop = Stop()
        return run_async(lambda: self._run(stop), stop)

    async def _run(self, stop: Stop) -> dict[str, Any]:
        await self._resume()
        finished = self.folder.summary()
        if finished is not None and self.iteration >= self.recipe.train.iterations:
            self.display.say(f"nothing left to do: {self.folder.path} is finished")
            return finished
        writer = Writer(str(self.folder.path / "tensorboard"))
        try:
            with stop.listening():
                await self._train(writer)
                return await self._finish(writer)
        except asyncio.CancelledError:
            if not stop.asked:
                raise  # a cancellation that leaked from a tool or an engine is a defect, not a wish
            self.save()
            raise Interrupted(
                f"stopped after iteration {self.iteration}; everything is saved. "
                f"Continue with: {self.folder.command()}"
            ) from None
        finally:
            writer.close()

    async def _train(self, writer: Writer) -> None:
        await self._evaluate_if_due(writer)
        with self.display.phase("training", self.recipe.train.iterations, self.iteration) as bar:
            while self.iteration < self.recipe.train.iterations:
                metrics = await self.iterate()
                self._record(writer, metrics)
                self.display.iteration(self.iteration, metrics)
                bar.advance(figures(metrics))
                await self._evaluate_if_due(writer)
                if self._due(self.recipe.train.checkpoint_every):
                    self.save()
        self.save()

    async def iterate(self) -> dict[str, float]:
        """One iteration: a rollout batch becomes optimiser steps.

        Consumes the next tasks of the cursor; waits for all their episodes (staleness 0); produces
        trajectories on disk, new weights in learner and engine, and the iteration's metrics.
        """
        recipe, parts = self.recipe, self.parts
        number, position = self.iteration + 1, self.cursor.position
        started = perf_counter()
        try:
            groups = await self._roll_out(number)
        except BaseException:
            self.cursor.position = position  # these tasks were dispatched but not trained on
            raise
        rolled_out = perf_counter()

        trained = [t for group in groups for t in group.trajectories if t.stop_reason.trains]
        token_rows = rows(trained, merge=recipe.algorithm.merge)
        scores = Scores(old_logprobs=split_by_step(trained, token_rows, parts.learner.score(token_rows)))
        credits = parts.estimator(groups, scores)
        updates = [
            parts.learner.update(batch)
            for batch in minibatches(
                token_rows,
                credits,
                scores,
                aggregation=recipe.algorithm.aggregation,
                count=recipe.algorithm.minibatches,
                epochs=recipe.algorithm.epochs,
                token_budget=recipe.learner.token_budget,
                rng=np.random.default_rng(derive_seed(recipe.seed, "minibatches", number)),
            )
        ]
        self.iteration = number  # at once: a checkpoint must never pair these weights with the last number
        await parts.player.engine.sync(parts.learner.source(), number)
        finished = perf_counter()
        self.train_seconds += finished - started
        write(file_path(self.folder.path, iteration=number), groups, iteration=number)
        metrics = {**batch_statistics(groups), **_learner_metrics(updates)}
        metrics["time/rollout"] = rolled_out - started
        metrics["time/update"] = finished - rolled_out
        metrics["time/iteration"] = finished - started
        sampled = sum(int(step.sampled_mask.sum()) for t in trained for step in t.steps)
        metrics["speed/tokens_per_second"] = sampled / (rolled_out - started)
        metrics["speed/rows"] = float(len(token_rows))
        return metrics

    def save(self) -> Path:
        """A checkpoint of this moment, which is also a model folder that ``from_pretrained`` reads; and the
        curves so far."""

        def save(folder: Path) -> None:
            self.parts.learner.save(str(folder))
            self.parts.player.renderer.save(str(folder))

        saved = self.folder.checkpoint(
            TrainerState(
                iteration=self.iteration,
                evaluated=self.evaluated,
                cursor=self.cursor.position,
                train_seconds=self.train_seconds,
                before=self.before,
            ),
            save,
        )
        draw(self.folder.metrics(), self.folder.path / "curves.png", title=self.recipe.name)
        return saved

    async def _resume(self) -> None:
        saved = self.folder.checkpoints()
        if not saved:
            self.folder.forget_after(-1, evaluated=-1)
            return
        state = self.folder.state(saved[-1])
        self.parts.learner.load(str(saved[-1]))
        await self.parts.player.engine.sync(self.parts.learner.source(), state.iteration)
        self.iteration, self.cursor.position = state.iteration, state.cursor
        self.train_seconds, self.before = state.train_seconds, state.before
        self.evaluated = state.evaluated
        self.folder.forget_after(state.iteration, evaluated=state.evaluated)
        self.display.say(f"resuming {self.folder.path} after iteration {state.iteration}")

    async def _roll_out(self, number: int) -> list[TrajectoryGroup]:
        config = self.recipe.rollout
        with self.display.phase(f"rollout {number}", config.groups * config.group_size) as bar:
            groups = await self.parts.player.pool.collect(
                self.cursor.take(config.groups),
                label=f"train-{number}",
                seed=derive_seed(self.recipe.seed, "train", number),
                group_size=config.group_size,
                sampling=config.sampling(self.parts.player.renderer.stop_ids),
                max_steps=config.max_steps,
                progress=bar.on_episode,
            )
        if number == 1:
            self._tell_missing_rewards(groups)
        every = self.recipe.train.show_every
        if every and number % every == 0:
            self.display.episode(groups[0].trajectories[0], self.parts.player.renderer.decode)
        return groups

    def _tell_missing_rewards(self, groups: Sequence[TrajectoryGroup]) -> None:
        seen = {name for group in groups for t in group.trajectories for s in t.steps for name in s.rewards}
        for name in self.parts.player.rewards.missing(seen):
            self.display.say(
                f"rollout.rewards: no step so far has a component '{name}'; is it spelled right?"
            )

    async def _evaluate_if_due(self, writer: Writer) -> None:
        """Before training and every so often, once: an evaluation that a stop cut short is made up for."""
        if self.evaluated == self.iteration:
            return
        if self.iteration == 0:
            self.before = await self._evaluate("before")
            self._record_evaluation(writer, self.before)
        elif self._due(self.recipe.evaluation.every):
            self._record_evaluation(writer, await self._evaluate("during"))

    async def _evaluate(self, when: str) -> dict[str, float]:
        """Success and reward, sampled and (asked for) greedy, on the evaluation tasks."""
        tasks, config = self.parts.eval_tasks, self.recipe.evaluation
        if not tasks:
            return {}
        found: dict[str, float] = {}
        modes = {"sampled": config.temperature, **({"greedy": 0.0} if config.greedy else {})}
        for mode, temperature in modes.items():
            with self.display.phase(f"evaluation, {mode}", len(tasks)) as bar:
                result = await evaluate(
                    self.parts.player.pool,
                    tasks,
                    label=f"eval-{self.iteration}-{when}-{mode}",
                    seed=derive_seed(self.recipe.seed, "evaluation"),
                    sampling=self._evaluation_sampling(temperature),
                    max_steps=self.recipe.rollout.max_steps,
                    progress=bar.on_episode,
                )
            if mode == "sampled":
                path = file_path(self.folder.path, iteration=self.iteration, split="eval")
                write(path, result.groups, iteration=self.iteration, split="eval")
            prefix = "" if mode == "sampled" else "greedy_"
            for name, value in (("success", result.success), ("reward", result.reward)):
                if value is not None:
                    found[prefix + name] = value
            if result.errors:
                self.display.say(f"{result.errors} of {result.tasks} evaluation episodes broke")
        told = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
        self.display.say(f"evaluation {when} training, {len(tasks)} tasks: {told}")
        return found

    def _evaluation_sampling(self, temperature: float) -> Sampling:
        return Sampling(
            temperature=temperature,
            max_tokens=self.recipe.rollout.max_tokens,
            stop=self.recipe.rollout.stop,
            stop_ids=self.parts.player.renderer.stop_ids,
        )

    def _record(self, writer: Writer, metrics: Mapping[str, float]) -> None:
        self.folder.append_metrics({"iteration": self.iteration, **metrics})
        for name, value in metrics.items():
            writer.add_scalar(name, value, self.iteration)
        writer.flush()

    def _record_evaluation(self, writer: Writer, found: Mapping[str, float]) -> None:
        if found:
            self._record(writer, {f"eval/{name}": value for name, value in found.items()})
        self.evaluated = self.iteration

    def _due(self, every: int) -> bool:
        """Every so many iterations (0: never); the end is apart."""
        return every > 0 and self.iteration % every == 0 and self.iteration < self.recipe.train.iterations

    async def _finish(self, writer: Writer) -> dict[str, Any]:
        after = await self._evaluate("after")
        self._record_evaluation(writer, after)
        self.save()  # the same weights; what is new is that they were evaluated
        summary: dict[str, Any] = {
            "success_before": self.before.get("success"),
            "success_after": after.get("success"),
            "greedy_before": self.before.get("greedy_success"),
            "greedy_after": after.get("greedy_success"),
            "reward_before": self.before.get("reward"),
            "reward_after": after.get("reward"),
            "eval_tasks": len(self.parts.eval_tasks),
            "iterations": self.iteration,
            "train_seconds": round(self.train_seconds, 2),
            "seed": self.recipe.seed,
            "algorithm": self.recipe.algorithm.estimator,
            "context": self.recipe.context.id,
            "model": self.recipe.model.path,
        }
        self.folder.write_summary(summary)
        return summary


def _learner_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the updates of an iteration; what counts things is summed, what is a maximum stays one."""
    found: dict[str, float] = {"learner/updates": float(len(updates))}
    for name in sorted({name for update in updates for name in update}):
        values = [update[name] for update in updates if name in update]
        if name.startswith("max_"):
            found[f"learner/{name}"] = max(values)
        elif name in ("skipped_steps", "optimiser_steps", "tokens", "rows"):
            found[f"learner/{name}"] = sum(values)
        else:
            found[f"learner/{name}"] = float(np.mean(values))
    return found
