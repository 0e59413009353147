"""A small policy for any environment: its own tokenizer, a small model, a warm start on demonstrations.

It is what reinforcement learning begins with where no pretrained model fits or is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from steprl.envs.base import Env
from steprl.envs.policy import ScriptedPolicy
from steprl.errors import ConfigError, TaskError
from steprl.learner.small_policy import make_policy, parameter_count
from steprl.learner.threads import set_threads
from steprl.renderers import load_tokenizer
from steprl.rollout import RolloutConfig, derive_seed
from steprl.tasks import task_hash
from steprl.trainers.api import evaluate_recipe
from steprl.trainers.given import Given, address
from steprl.trainers.imitation.config import PolicyConfig
from steprl.trainers.imitation.demonstrations import Demonstrations, Source, Stored, source_of
from steprl.trainers.imitation.tokenizing import played, recorded
from steprl.trainers.imitation.warm_start import warm_start
from steprl.trainers.parts import env_of, tasks_of
from steprl.trainers.progress import Display
from steprl.trainers.recipe import (
    ContextConfig,
    EngineConfig,
    EnvConfig,
    EvaluationConfig,
    ModelConfig,
    Recipe,
)
from steprl.trainers.storage.aside import written_aside
from steprl.types import Task

REPORT = "policy.json"
"""The report, in the policy's folder."""


def build_policy(
    env: str | type[Env],
    *,
    demos: str | Path | ScriptedPolicy,
    out: str | Path,
    tasks: str | Sequence[Task] = "train",
    eval_tasks: str | Sequence[Task] | None = None,
    config: PolicyConfig | None = None,
    overwrite: bool = False,
    display: Display | None = None,
) -> dict[str, Any]:
    """Build a policy and write it to ``out``: a model folder, with the report in it as ``policy.json``.

    Args:
        env: an environment class, a registered id, or ``module:attribute``.
        demos: "oracle", which is what ``Env.oracle`` gives for each task; ``module:attribute`` or an object
            with ``act(messages) -> Move``; or a run folder or .parquet file of trajectories, whose tokens and
            tokenizer stay as they are.
        out: absent or empty; or, with ``overwrite``, a model folder.
        tasks: what is demonstrated. Without ``eval_tasks``, some of them are held out for the evaluation.
        eval_tasks: tasks to evaluate on; those that are demonstrated are left out.

    Returns:
        The report: demonstrations kept and dropped, sizes, losses, success and reward sampled and greedy.

    Raises:
        ConfigError: a name, path or combination that cannot work; no demonstration is left.
        TaskError: tasks that are missing or unreadable, or none.
    """
    config, display = config or PolicyConfig(), display or Display()
    recipe, given = _described(env, tasks, eval_tasks, config)
    played_env = _class(recipe, given)
    source = source_of(demos, played_env, args=config.demo_args, model=config.model)
    if config.threads is not None:
        set_threads(config.threads)
    with written_aside(Path(out), overwrite=overwrite) as folder:
        shown, held_out = _tasks(recipe, given, source, config)
        if isinstance(source, Stored):
            found = recorded(source, folder, config)
        else:
            display.say(f"demonstrating {len(shown)} tasks with {source.name}")
            found = played(source, played_env, shown, folder, config, display)
        display.say(found.summary())
        model = _imitated(found, folder, config, display)
        report = {
            "steprl": version("steprl"),
            "env": recipe.env.id,
            "tasks": tasks if isinstance(tasks, str) else f"{len(tasks)} from Python",
            "demos": source.name,
            "seed": config.seed,
            "threads": config.threads,
            "demonstrations": found.figures(),
            "model": model,
            "evaluation": _evaluated(recipe, given, held_out, found, folder, display),
        }
        (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _described(
    env: str | type[Env],
    tasks: str | Sequence[Task],
    eval_tasks: str | Sequence[Task] | None,
    config: PolicyConfig,
) -> tuple[Recipe, Given]:
    """The episodes as a recipe describes them, so that they are what training will see."""
    recipe = Recipe(
        env=EnvConfig(
            id=env if isinstance(env, str) else address(env),
            train=tasks if isinstance(tasks, str) else "train",
            eval=eval_tasks if isinstance(eval_tasks, str) else None,
            args=dict(config.args),
        ),
        seed=config.seed,
        threads=config.threads,
        context=ContextConfig(id=config.context, args=dict(config.context_args)),
        engine=EngineConfig(max_context=config.size.max_context),
        rollout=RolloutConfig(max_steps=config.max_steps),
        evaluation=EvaluationConfig(tasks=config.evaluation_tasks),
    )
    given = Given(
        env=None if isinstance(env, str) else env,
        train_tasks=None if isinstance(tasks, str) else tasks,
        eval_tasks=None if isinstance(eval_tasks, str) else eval_tasks,
    )
    return recipe, given


def _class(recipe: Recipe, given: Given) -> type[Env]:
    """The environment's class, once it is known to take its options."""
    played = env_of(recipe, given)
    if not issubclass(played, Env):
        raise ConfigError(
            f"env '{recipe.env.id}' is a workflow; a policy is built for a class derived from steprl.Env"
        )
    try:
        played(**recipe.env.args)
    except TypeError as error:
        raise ConfigError(f"env '{recipe.env.id}' does not take these options: {error}") from error
    return played


def _tasks(
    recipe: Recipe, given: Given, source: Source, config: PolicyConfig
) -> tuple[Sequence[Task], Sequence[Task]]:
    """The tasks to demonstrate, in their order, and those to evaluate on."""
    has_eval_tasks = recipe.env.eval is not None or given.eval_tasks is not None
    if isinstance(source, Stored):
        if has_eval_tasks or config.evaluation_tasks == 0:
            return (), tasks_of(recipe, "eval", given)
        return (), tasks_of(recipe, "train", given)
    tasks = tasks_of(recipe, "train", given)
    if not tasks:
        raise TaskError(f"the task set '{recipe.env.train}' is empty; there is nothing to demonstrate")
    draw = Random(derive_seed(config.seed, "held-out"))
    left, held_out = list(range(len(tasks))), tasks_of(recipe, "eval", given)
    if not has_eval_tasks:
        chosen = sorted(draw.sample(left, min(config.evaluation_tasks, len(tasks) // 5)))
        held_out = [tasks[index] for index in chosen]
        left = sorted({*left} - {*chosen})
    count = len(left) if config.count is None else config.count
    if count > len(left):
        raise ConfigError(
            f"count = {count}, but there are {len(tasks)} tasks, of which {len(tasks) - len(left)} are held "
            f"out for the evaluation; at most {len(left)} can be demonstrated"
        )
    return [tasks[index] for index in sorted(draw.sample(left, count))], held_out


def _imitated(
    found: Demonstrations, folder: Path, config: PolicyConfig, display: Display
) -> dict[str, int | float]:
    """A fresh model, warmed up on the demonstrations and written beside its tokenizer; its figures."""
    tokenizer = load_tokenizer(folder)
    # an end of turn that pads as well must not be left out of the learning
    pad_id = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id
    model = make_policy(len(tokenizer), config.size, pad_id=pad_id, seed=config.seed)
    figures = warm_start(model, found.rows, config.warm_start, seed=config.seed, display=display)
    model.save_pretrained(folder)
    return {
        "parameters": parameter_count(model),
        "vocabulary": len(tokenizer),
        **asdict(config.size),
        **figures,
    }


def _evaluated(
    recipe: Recipe,
    given: Given,
    held_out: Sequence[Task],
    found: Demonstrations,
    folder: Path,
    display: Display,
) -> dict[str, Any] | None:
    """Success and reward on tasks that were not demonstrated, sampled and greedily; None without any."""
    demonstrated = {trajectory.task_hash for trajectory in found.kept}
    unseen = [task for task in held_out if task_hash(task) not in demonstrated]
    unseen = unseen[: recipe.evaluation.tasks]
    if not unseen:
        return None
    recipe = replace(
        recipe,
        model=ModelConfig(path=str(folder), format=found.format, format_args=dict(found.format_args)),
        # no action was longer, so one that is twice as long leads nowhere
        rollout=replace(recipe.rollout, max_tokens=2 * found.longest_action()),
    )
    figures: dict[str, Any] = {"tasks": len(unseen), "max_tokens": recipe.rollout.max_tokens}
    for name, greedy in (("sampled", False), ("greedy", True)):
        result = evaluate_recipe(
            recipe, greedy=greedy, given=replace(given, eval_tasks=unseen), display=display
        )
        figures[name] = {"success": result.success, "reward": result.reward, "errors": result.errors}
    return figures
