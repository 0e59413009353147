"""The training loop: roll out, score, assign credit, update, hand over the weights. One loop for every
algorithm, environment and context rule; it knows none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from tensorboard.summary import Writer

from steprl.trainers.collecting import Collected, collect
from steprl.trainers.continuations import StateValues, state_values
from steprl.trainers.evaluate import evaluate_in_training
from steprl.trainers.interrupt import Interrupted, Stop, run_async
from steprl.trainers.learning import learn
from steprl.trainers.parts import Parts
from steprl.trainers.progress import Display, figures
from steprl.trainers.recipe import Recipe
from steprl.trainers.report import iteration_metrics, record, summary_of, tell_rollout
from steprl.trainers.storage.board import open_board
from steprl.trainers.storage.curves import draw
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trainers.storage.state import TrainerState
from steprl.trainers.watch import Alarm, Verdict, Watch, collapsed, marks
from steprl.trajectory.store import file_path, write


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
        self.cursor = parts.cursor
        self.watch = Watch(recipe.watch)
        self.train_seconds = 0.0
        self.before: Mapping[str, float] = {}
        self._checkpoint_owed = False

    def run(self) -> dict[str, Any]:
        """The whole run; returns what ``summary.json`` holds.

        Raises:
            Interrupted: Ctrl-C, after a checkpoint was written.
            Collapsed: a watched figure, where the recipe wants to stop then; after a checkpoint.
        """
        stop = Stop()
        return run_async(lambda: self._run(stop), stop)

    async def _run(self, stop: Stop) -> dict[str, Any]:
        await self._resume()
        finished = self.folder.summary()
        if finished is not None and self.iteration >= self.recipe.train.iterations:
            self.display.say(f"nothing left to do: {self.folder.path} is finished")
            return finished
        writer = open_board(self.folder.path, self.folder.metrics())
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
        if self.recipe.watch.action == "rollback" and not self.folder.checkpoints():
            self.save()  # somewhere to go back to
        with self.display.phase("training", self.recipe.train.iterations, self.iteration) as bar:
            while self.iteration < self.recipe.train.iterations:
                metrics = await self.iterate()
                alarms = self.watch.look(metrics)
                verdict = self.watch.verdict(alarms)
                record(self.folder, writer, self.iteration, {**metrics, **marks(alarms, verdict)})
                self.display.iteration(self.iteration, metrics)
                bar.advance(figures(metrics))
                await self._obey(verdict, alarms)
                await self._evaluate_if_due(writer)
                self._save_if_due()
        self.save()

    async def iterate(self) -> dict[str, float]:
        """One iteration: a rollout batch becomes optimiser steps.

        Consumes the next tasks of the cursor; waits for all their episodes (staleness 0); produces
        trajectories on disk, new weights in learner and engine, and the iteration's metrics. When no
        episode is left to train on, the weights stay as they are. What is interrupted has consumed nothing.
        """
        number, position = self.iteration + 1, self.cursor.position
        started = perf_counter()
        try:
            batch = await collect(self.recipe, self.parts, self.cursor, number, self.display)
            tell_rollout(self.display, self.recipe, self.parts.player, batch.groups, number)
            valued = await self._value(number, batch)
        except BaseException:
            self.cursor.position = position  # these tasks were dispatched but not trained on
            raise
        rolled_out = perf_counter()

        chosen = batch.chosen
        learned = learn(self.recipe, self.parts, number, chosen.groups, valued, untrained=chosen.untrained)
        # at once: a checkpoint must never pair these weights with the last number, or less of the tasks
        self.iteration = number
        self.cursor.note(batch.groups)
        await self.parts.player.engine.sync(self.parts.learner.source(), number)
        finished = perf_counter()
        self.train_seconds += finished - started
        write(file_path(self.folder.path, iteration=number), batch.groups, iteration=number)
        if not learned.token_rows:
            why = f" ({told})" if (told := chosen.told()) else ""
            self.display.say(f"iteration {number}: no episode is left to train on{why}; the weights stay")
        return {
            **iteration_metrics(
                batch.groups,
                dropped=len(batch.groups) - len(chosen.groups),
                learned=learned,
                rollout_seconds=rolled_out - started,
                update_seconds=finished - rolled_out,
            ),
            **batch.metrics(self.recipe, number),
            **self.cursor.metrics(),
            **(valued.metrics() if valued else {}),
        }

    def save(self) -> Path:
        """A checkpoint of this moment, which is also a model folder that ``from_pretrained`` reads; and the
        curves so far."""

        def save(folder: Path) -> None:
            self.parts.models.save(str(folder))
            self.parts.player.renderer.save(str(folder))

        saved = self.folder.checkpoint(
            TrainerState(
                iteration=self.iteration,
                evaluated=self.evaluated,
                cursor=self.cursor.position,
                train_seconds=self.train_seconds,
                before=self.before,
                curriculum=self.cursor.state(),
            ),
            save,
        )
        self._checkpoint_owed = False
        self.draw()
        return saved

    def draw(self) -> None:
        """The curves so far, as a picture in the run folder."""
        path = self.folder.path / "curves.png"
        if failed := draw(self.folder.metrics(), path, title=self.recipe.name):
            self.display.say(failed)

    async def _value(self, number: int, batch: Collected) -> StateValues | None:
        """Values of the states from continuations, for an estimator that wants them so."""
        valued = await state_values(
            self.recipe, self.parts, batch.tasks, batch.chosen.groups, number, self.display
        )
        for line in valued.troubles() if valued else ():
            self.display.say(f"continuations: {line}")
        return valued

    # ── between iterations ────────────────────────────────────────────────────────────────────────

    async def _resume(self) -> None:
        saved = self.folder.checkpoints()
        if not saved:
            self.folder.forget_after(-1, evaluated=-1)
            return
        state = self.folder.state(saved[-1])
        self.parts.models.load(str(saved[-1]))
        await self.parts.player.engine.sync(self.parts.learner.source(), state.iteration)
        self.iteration, self.cursor.position = state.iteration, state.cursor
        self.cursor.restore(state.curriculum)
        self.train_seconds, self.before = state.train_seconds, state.before
        self.evaluated = state.evaluated
        if self.iteration >= self.recipe.train.iterations and self.folder.summary() is None:
            # killed before its summary: the evaluation after training is made again, and told once
            self.evaluated = min(self.evaluated, self.iteration - 1)
        self.folder.forget_after(self.iteration, evaluated=self.evaluated)
        self.watch.recall(self.folder.metrics())
        self.display.say(f"resuming {self.folder.path} after iteration {state.iteration}")

    async def _obey(self, verdict: Verdict, alarms: Sequence[Alarm]) -> None:
        """Tell what the watch has found, and do about it what the recipe wants."""
        for alarm in alarms:
            if self.watch.is_new(alarm):
                self.display.say(alarm.message)
        if verdict == "roll back":
            await self._roll_back()
        elif verdict == "stop":
            self.save()
            raise collapsed(alarms, self.iteration, self.folder.path / "config.toml", self.folder.command())

    async def _roll_back(self) -> None:
        """Give the weights up for those of the last checkpoint. Iterations and tasks go on from here: the
        batches that led astray are not played again."""
        target = self.folder.checkpoints()[-1]
        then = self.folder.state(target).iteration
        self.parts.models.load(str(target))
        await self.parts.player.engine.sync(self.parts.learner.source(), self.iteration)
        self.watch.rolled_back()
        self.display.say(
            f"rolled back to the weights and optimiser of iteration {then}; the next tasks follow"
        )
        self.save()  # at once: a run resumed from the older checkpoint would play the same tasks again

    def _save_if_due(self) -> None:
        """A checkpoint every so many iterations; one to roll back to waits until no figure looks wrong."""
        self._checkpoint_owed |= self._due(self.recipe.train.checkpoint_every)
        if self._checkpoint_owed and not (self.recipe.watch.action == "rollback" and self.watch.uneasy):
            self.save()

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
        return await evaluate_in_training(
            self.recipe, self.parts, self.display, run=self.folder.path, iteration=self.iteration, when=when
        )

    def _record_evaluation(self, writer: Writer, found: Mapping[str, float]) -> None:
        if found:
            told = {f"eval/{name}": value for name, value in found.items()}
            record(self.folder, writer, self.iteration, told)
        self.evaluated = self.iteration

    def _due(self, every: int) -> bool:
        """Every so many iterations (0: never); the end is apart."""
        return every > 0 and self.iteration % every == 0 and self.iteration < self.recipe.train.iterations

    async def _finish(self, writer: Writer) -> dict[str, Any]:
        after = await self._evaluate("after")
        self._record_evaluation(writer, after)
        self.save()  # the same weights; what is new is that they were evaluated
        summary = summary_of(
            self.recipe,
            before=self.before,
            after=after,
            eval_tasks=len(self.parts.eval_tasks),
            iterations=self.iteration,
            train_seconds=self.train_seconds,
        )
        self.folder.write_summary(summary)
        return summary
