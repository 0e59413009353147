"""From a recipe to the parts of a run: names become components, and what cannot work is refused here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from steprl.envs.base import Env
from steprl.errors import ConfigError, TaskError
from steprl.learner.loading import load_model
from steprl.learner.threads import set_deterministic, set_threads
from steprl.learner.torch_learner import TorchLearner
from steprl.registry import call, make, resolve
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.rewards.compose import RewardComposer
from steprl.rollout import EnvWorkflow, Pool
from steprl.tasks import load_jsonl, task_hash
from steprl.tools.cassette import Cassette
from steprl.trainers.curriculum.build import cursor_of
from steprl.trainers.cursor import Cursor
from steprl.trainers.filtering.choose import Filters, filters_of
from steprl.trainers.given import Given
from steprl.trainers.models import Models, build_models
from steprl.trainers.needs import check_engine, check_needs
from steprl.trainers.recipe import Recipe
from steprl.trainers.taped import Taped
from steprl.types import Engine, Estimator, Task, Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """What is needed to play episodes."""

    renderer: ChatRenderer
    engine: Engine
    pool: Pool
    rewards: RewardComposer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is needed to train."""

    player: Player
    estimator: Estimator
    models: Models
    filters: Filters
    cursor: Cursor
    train_tasks: Sequence[Task]
    eval_tasks: Sequence[Task]

    @property
    def learner(self) -> TorchLearner:
        """The policy's."""
        return self.models.learner

    async def forget_cached(self) -> None:
        """Hand the engine the learner's weights once more: keys and values from before are forgotten."""
        await self.player.engine.sync(self.learner.source(), self.player.engine.version)


def build_player(recipe: Recipe, given: Given | None = None) -> Player:
    """Renderer, engine and pool of a recipe.

    Raises:
        ConfigError: a name, path or combination that cannot work.
    """
    given = given or Given()
    if recipe.deterministic:
        set_deterministic()
        set_threads(1)
    elif recipe.threads is not None:
        set_threads(recipe.threads)
    path = model_path(recipe.model.path)
    tokenizer = load_tokenizer(path)
    if recipe.model.chat_template is not None:
        tokenizer.chat_template = read_template("model.chat_template", recipe.model.chat_template)
    renderer = ChatRenderer(
        tokenizer,
        make("format", recipe.model.format, recipe.model.format_args),
        allow_control_tokens=recipe.model.allow_control_tokens,
    )
    engine = _engine(recipe, path, renderer, given.script)
    rewards = RewardComposer(recipe.rollout.rewards)
    pool = Pool(
        workflow=_taped(recipe, _workflow(recipe, given)),
        engine=engine,
        renderer=renderer,
        rewards=rewards,
        concurrency=recipe.rollout.concurrency,
        failures=recipe.rollout.failures,
        deadlines=recipe.rollout.deadlines,
        deterministic=recipe.deterministic,
    )
    return Player(renderer=renderer, engine=engine, pool=pool, rewards=rewards)


def build_parts(recipe: Recipe, given: Given | None = None) -> Parts:
    """Everything a training run needs. What can be refused is refused before a model is loaded.

    Raises:
        ConfigError: a name, path or combination that cannot work.
        TaskError: tasks that are missing or unreadable.
    """
    given = given or Given()
    estimator: Estimator = make("estimator", recipe.algorithm.estimator, recipe.algorithm.args)
    check_needs(recipe, estimator, env_of(recipe, given))
    if given.script is None:
        check_engine(recipe.engine.id, resolve("engine", recipe.engine.id))
    filters = filters_of(recipe)
    if recipe.rollout.temperature == 0:
        raise ConfigError("rollout.temperature 0 (greedy) gives nothing to learn from; use 1.0")
    if not recipe.rollout.sampling(()).neutral:
        raise ConfigError(
            f"rollout.top_p = {recipe.rollout.top_p} and rollout.top_k = {recipe.rollout.top_k}: the learner "
            f"does not apply these filters, so its probabilities would not be those sampled from. "
            f"Train with top_p = 1.0 and top_k = 0."
        )
    trajectories = recipe.rollout.groups * recipe.rollout.group_size
    if recipe.algorithm.minibatches > trajectories:
        raise ConfigError(
            f"algorithm.minibatches = {recipe.algorithm.minibatches}, but an iteration has {trajectories} "
            f"trajectories (rollout.groups = {recipe.rollout.groups} tasks, rollout.group_size = "
            f"{recipe.rollout.group_size} trajectories each), and a mini-batch is at least one of them. "
            f"Set algorithm.minibatches to {trajectories} or less."
        )
    train_tasks = tasks_of(recipe, "train", given)
    eval_tasks = tasks_of(recipe, "eval", given)
    if not train_tasks:
        raise TaskError(f"the training task set '{recipe.env.train}' is empty; nothing to roll out")
    _refuse_overlap(recipe, given, train_tasks, eval_tasks)
    cursor = cursor_of(recipe, train_tasks)
    player = build_player(recipe, given)
    models = build_models(recipe, estimator, model_path(recipe.model.path))
    return Parts(
        player=player,
        estimator=estimator,
        models=models,
        filters=filters,
        cursor=cursor,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
    )


def model_path(name: str) -> str:
    """A model's folder or hub id; "quickstart" is the policy that ships with the package."""
    if name == "quickstart":
        return str(files("steprl") / "policies" / "quickstart")
    return name


def env_of(recipe: Recipe, given: Given) -> type[Env] | type[Workflow]:
    """The environment's class, or that of a workflow which stands in its place."""
    found: Any = given.env if given.env is not None else resolve("env", recipe.env.id)
    if not (isinstance(found, type) and (issubclass(found, Env) or callable(getattr(found, "run", None)))):
        raise ConfigError(
            f"env '{recipe.env.id}' is {found!r}: neither a class derived from steprl.Env nor a workflow, "
            f"which is a class with an async method run(task, session)"
        )
    return found


def tasks_of(recipe: Recipe, split: str, given: Given) -> Sequence[Task]:
    """The training tasks, or the first ``evaluation.tasks`` of the evaluation tasks; these may be none.

    Raises:
        TaskError: tasks that are missing or unreadable, or one that no run could play and store.
    """
    handed = given.train_tasks if split == "train" else given.eval_tasks
    source = recipe.env.train if split == "train" else recipe.env.eval
    if split == "eval" and recipe.evaluation.tasks == 0:
        return ()
    if handed is not None:
        tasks = handed
    elif source is not None:
        played = env_of(recipe, given)
        tasks = played.tasks(source) if issubclass(played, Env) else load_jsonl(source)
    else:
        return ()
    if split == "eval":
        tasks = tasks[: recipe.evaluation.tasks]
    for index, task in enumerate(tasks):
        _check_task(task, f"{split} task {index}")
    return tasks


def _refuse_overlap(
    recipe: Recipe, given: Given, train_tasks: Sequence[Task], eval_tasks: Sequence[Task]
) -> None:
    """What is trained on is no evaluation, whatever its id says."""
    trained = {task_hash(task): task.id for task in train_tasks}
    shared = [(task.id, trained[found]) for task in eval_tasks if (found := task_hash(task)) in trained]
    if shared:
        trained_on, evaluated = (
            f"env.{split} = {source!r}" if handed is None else f"{split} tasks handed over from Python"
            for split, handed, source in (
                ("train", given.train_tasks, recipe.env.train),
                ("eval", given.eval_tasks, recipe.env.eval),
            )
        )
        raise ConfigError(
            f"{len(shared)} of the {len(eval_tasks)} evaluation tasks ({evaluated}) are training tasks as "
            f"well ({trained_on}): the same prompt, answer and data. For example '{shared[0][0]}', which is "
            f"'{shared[0][1]}' in training. Success on them says nothing of new tasks: take them out of one "
            f"of the two, name another set, or set evaluation.tasks = 0."
        )


def _check_task(task: object, which: str) -> None:
    """Refuse here what would otherwise break in the middle of a run."""
    if not isinstance(task, Task):
        raise TaskError(f"{which} is {task!r}, not a steprl.Task")
    for name in ("id", "prompt"):
        value = getattr(task, name)
        if not isinstance(value, str):
            raise TaskError(f"{which}: {name} must be text, got {value!r}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TaskError(f"{which}: {name} {value!r} cannot be written as UTF-8: {error.reason}") from None
    try:
        task_hash(task)
    except TaskError as error:
        raise TaskError(f"{which}: {error}") from error


def _workflow(recipe: Recipe, given: Given) -> Workflow:
    """What plays an episode: the recipe's own workflow, or the standard loop around its environment."""
    played = env_of(recipe, given)

    def make_env() -> Any:
        return call("env", recipe.env.id, played, recipe.env.args)

    made = make_env()  # options that do not fit are refused now, and not in every episode
    if not isinstance(made, Env):
        workflow: Workflow = made
        return workflow
    return EnvWorkflow(make_env, make("context", recipe.context.id, recipe.context.args))


def _taped(recipe: Recipe, workflow: Workflow) -> Workflow:
    if recipe.env.cassette is None:
        return workflow
    return Taped(workflow, Cassette(recipe.env.cassette, recipe.env.cassette_mode))


def _engine(recipe: Recipe, path: str, renderer: ChatRenderer, script: Any) -> Engine:
    config = recipe.engine
    component = resolve("engine", "scripted" if script is not None else config.id)
    options: dict[str, Any]
    if script is not None or config.id == "scripted":
        script = script if script is not None else config.args.get("script")
        if isinstance(script, str):
            script = resolve("engine", script)
        if script is None:
            raise ConfigError('engine "scripted" needs engine.args.script: replies, or "module:function"')
        options = {"encode": renderer.encode, "decode": renderer.decode}
        options |= {**config.args, "script": script}
    elif config.id == "torch":
        options = {
            "model": load_model(path, config.dtype),
            "decode": renderer.decode,
            "slots": config.slots,
            "prefill_tokens": config.prefill_tokens,
            "deterministic": recipe.deterministic,
            **config.args,
        }
    elif config.id == "openai":
        options = {"model": recipe.model.path, "encode": renderer.encode, **config.args}
    else:
        options = {"model": path, **config.args}
    if config.max_context is not None:
        options["max_context"] = config.max_context
    engine: Engine = call("engine", config.id, component, options)
    return engine


def read_template(option: str, path: str) -> str:
    """The text of a Jinja file; ``option`` names it in an error.

    Raises:
        ConfigError: there is no such file.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{option}: there is no file '{path}'")
    return Path(path).read_text(encoding="utf-8")
