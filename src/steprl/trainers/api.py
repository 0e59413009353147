"""The same verbs from Python as on the command line: train, evaluate, roll out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from steprl.config import build, differing, flattened, override, put, read_toml, to_toml
from steprl.envs.base import Env
from steprl.errors import ConfigError
from steprl.rollout import derive_seed
from steprl.trainers.evaluate import Evaluation, summarised
from steprl.trainers.evaluation.attempts import Attempt, Solved
from steprl.trainers.evaluation.folder import EvaluationFolder, record_of
from steprl.trainers.evaluation.play import play_attempts
from steprl.trainers.evaluation.report import report_of
from steprl.trainers.given import Given, address
from steprl.trainers.interrupt import run_async
from steprl.trainers.loop import Trainer
from steprl.trainers.parts import build_parts, build_player, tasks_of
from steprl.trainers.planning.calibrate import calibrate
from steprl.trainers.planning.plan import Plan, plan_of
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.types import Task, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """An evaluation: its report as plain values (docs/evaluation.md), every attempt, every episode."""

    report: Mapping[str, Any]
    attempts: Sequence[Attempt]
    groups: Sequence[TrajectoryGroup]


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe file with ``key=value`` overrides, checked.

    Raises:
        ConfigError: the file, a key or a value is wrong.
    """
    return build(Recipe, override(read_toml(path), overrides))


def run(
    recipe: Recipe,
    *,
    given: Given | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
    display: Display | None = None,
) -> dict[str, Any]:
    """Train a recipe; returns what ``summary.json`` holds.

    Raises:
        ConfigError: something cannot work, the run folder exists or is being trained, or a run is
            resumed with other objects than it was started with.
        Interrupted: Ctrl-C, after saving.
        Collapsed: a watched figure, where the recipe wants to stop then; after saving.
    """
    display, given = display or Display(), given or Given()
    if resume is not None:
        folder, _ = RunFolder.open(resume)
        folder.check_given(given.record())
    # Parts first: a recipe that cannot work leaves no folder behind.
    parts = build_parts(recipe, given)
    if resume is None:
        folder = RunFolder.create(recipe, given=given.record(), overwrite=overwrite)
    with folder.locked():
        display.say(to_toml(recipe))
        return Trainer(recipe, parts, folder, display).run()


def train(
    env: str | type[Env],
    *,
    tasks: str | Sequence[Task] | None = None,
    eval_tasks: str | Sequence[Task] | None = None,
    model: str = "quickstart",
    algorithm: str = "grpo",
    context: str = "append_only",
    script: Any = None,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
) -> dict[str, Any]:
    """Train a policy on an environment.

    Args:
        env: an environment class, a registered id, or ``module:attribute``.
        tasks: a JSONL file, a split the environment knows, or tasks; the same for ``eval_tasks``.
        model: a model folder, a hub id, or "quickstart".
        algorithm: an estimator: grpo, dr_grpo, rloo, reinforce_pp, reinforce_pp_baseline, gae (which is PPO),
            gigpo, or your own.
        context: a context rule.
        script: replies for the scripted engine, in place of a model that samples.
        options: any other option of a recipe, such as ``{"train.iterations": 10}``.
        overwrite: replace a run folder of the same name.
        resume: the folder of a run that this very call, without ``resume``, began; it goes on.

    Returns:
        What ``runs/<name>/summary.json`` holds.

    Raises:
        ConfigError: something cannot work, or the resumed run is another one; the message says where.
        Interrupted: Ctrl-C, after saving.
    """
    if resume is not None and overwrite:
        raise ConfigError("resume continues a run and overwrite replaces it; give one of them")
    recipe, given = _described(
        env,
        tasks,
        eval_tasks,
        script,
        {
            "model.path": model,
            "algorithm.estimator": algorithm,
            "context.id": context,
            **({} if eval_tasks is not None else {"evaluation.tasks": 0}),
            **(options or {}),
        },
    )
    if resume is not None:
        recipe = _resumed(recipe, resume)
    return run(recipe, given=given, overwrite=overwrite, resume=resume)


def roll_out(
    env: str | type[Env],
    *,
    tasks: str | Sequence[Task] | None = None,
    model: str = "quickstart",
    context: str = "append_only",
    script: Any = None,
    options: Mapping[str, Any] | None = None,
) -> list[TrajectoryGroup]:
    """Play episodes without training: ``rollout.groups`` tasks, ``rollout.group_size`` times each."""
    recipe, given = _described(
        env, tasks, None, script, {"model.path": model, "context.id": context, **(options or {})}
    )
    return play(recipe, given=given)


def play(
    recipe: Recipe, *, given: Given | None = None, display: Display | None = None
) -> list[TrajectoryGroup]:
    """The rollout batch that a recipe's first iteration would train on."""
    display = display or Display()
    given = given or Given()
    player = build_player(recipe, given)
    tasks = tasks_of(recipe, "train", given)[: recipe.rollout.groups]
    if not tasks:
        raise ConfigError("there are no tasks to roll out")

    async def collect() -> list[TrajectoryGroup]:
        with display.phase("rollout", len(tasks) * recipe.rollout.group_size) as bar:
            return await player.pool.collect(
                tasks,
                label="rollout",
                seed=derive_seed(recipe.seed, "rollout"),
                group_size=recipe.rollout.group_size,
                sampling=recipe.rollout.sampling(player.renderer.stop_ids),
                max_steps=recipe.rollout.max_steps,
                progress=bar.on_episode,
            )

    return run_async(collect)


def evaluate_recipe(
    recipe: Recipe, *, greedy: bool, given: Given | None = None, display: Display | None = None
) -> Evaluation:
    """Play every evaluation task once with the recipe's model.

    Raises:
        ConfigError: something cannot work, or there are no evaluation tasks.
        EnvError, EngineError: every episode failed.
    """
    return summarised(evaluate_attempts(recipe, greedy=greedy, given=given, display=display).groups)


def evaluate_attempts(
    recipe: Recipe,
    *,
    greedy: bool = False,
    samples: int = 1,
    solved: Solved | None = None,
    out: str | Path | None = None,
    retry: bool = False,
    given: Given | None = None,
    display: Display | None = None,
) -> Attempted:
    """Play every evaluation task ``samples`` times with the recipe's model, and report.

    Args:
        greedy: at temperature 0 instead of ``evaluation.temperature``.
        solved: what counts as solved; None: a component ``outcome`` of 1 or more.
        out: a folder that keeps every episode, attempt and the report. What is in it already is not played
            again, so an evaluation that was interrupted goes on, and one with fewer attempts is extended.
        retry: play attempts again that a fault of environment, engine or scorer has spoiled.

    Raises:
        ConfigError: something cannot work, there are no evaluation tasks, or ``out`` holds something else.
        EnvError, EngineError: every episode failed.
        Interrupted: Ctrl-C, where there is ``out``; what was done is in it.
    """
    out = None if out is None else Path(out)
    played = play_attempts(
        recipe,
        greedy=greedy,
        samples=samples,
        out=out,
        retry=retry,
        given=given or Given(),
        display=display or Display(),
    )
    report = report_of(played.attempts, solved or Solved())
    if out is not None:
        EvaluationFolder(out).write_report({**report, **record_of(recipe, greedy, played.attempts)})
    return Attempted(report=report, attempts=played.attempts, groups=played.groups)


def plan(
    recipe: Recipe,
    *,
    groups: int | None = None,
    given: Given | None = None,
    display: Display | None = None,
) -> Plan:
    """What a recipe will cost in tokens, time and memory, from a short calibration that stores nothing.

    ``groups`` are played and trained on; left out, as many as run at once.

    Raises:
        ConfigError: something cannot work, or ``groups`` is not between 1 and ``rollout.groups``.
        EnvError: every episode of the calibration failed.
    """
    return plan_of(recipe, calibrate(recipe, groups=groups, given=given, display=display))


def _resumed(described: Recipe, path: str | Path) -> Recipe:
    """The recipe of a run, which must be the one described; a folder may have been moved, though."""
    _, recorded = RunFolder.open(path)
    now = replace(described, name=recorded.name, runs=recorded.runs)
    if found := differing(flattened(asdict(recorded)), flattened(asdict(now))):
        raise ConfigError(
            f"'{path}' is a run of another recipe: {'; '.join(found)}. Resume with the arguments that it "
            f"was started with, or change its config.toml as well."
        )
    return recorded


def _described(
    env: str | type[Env],
    tasks: str | Sequence[Task] | None,
    eval_tasks: str | Sequence[Task] | None,
    script: Any,
    options: Mapping[str, Any],
) -> tuple[Recipe, Given]:
    """A recipe and the objects that stand in for its names."""
    name = env if isinstance(env, str) else address(env)
    table: dict[str, Any] = {"env": {"id": name}}
    for split, source in (("train", tasks), ("eval", eval_tasks)):
        if isinstance(source, str):
            table["env"][split] = source
    for path, value in options.items():
        put(table, path, value)
    given = Given(
        env=None if isinstance(env, str) else env,
        train_tasks=None if tasks is None or isinstance(tasks, str) else tasks,
        eval_tasks=None if eval_tasks is None or isinstance(eval_tasks, str) else eval_tasks,
        script=script,
    )
    return build(Recipe, table), given
