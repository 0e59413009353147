"""What an estimator and a loss cannot work without, compared with what a recipe has.

A recipe that lacks it is refused before a model is loaded; what shows only in what was played, after the
first rollout batch and before anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Literal

from steprl.credit import check_group_size
from steprl.envs import ToolEnv
from steprl.errors import ConfigError
from steprl.trainers.recipe import Recipe
from steprl.trajectory import success
from steprl.types import Estimator, Need, StopReason, TrajectoryGroup

CONTINUATIONS = "continuations"
"""What an estimator with `Need.SNAPSHOTS` calls the number of continuations it wants of each state."""


def check_needs(recipe: Recipe, estimator: Estimator, played: type[Any]) -> None:
    """Refuse a recipe that cannot serve its estimator.

    Args:
        recipe: the whole of it.
        estimator: the one it names.
        played: the class of its environment, or of the workflow in its place.

    Raises:
        ConfigError: a need that nothing serves, with the reason and what to do.
    """
    name = f"estimator '{recipe.algorithm.estimator}'"
    requires: Any = getattr(estimator, "requires", None)
    if not callable(estimator) or not isinstance(requires, Set):
        raise ConfigError(
            f"{name} has requires = {requires!r}: an estimator is called with groups and scores, and its "
            f"`requires` is a set of what it cannot work without (frozenset() for nothing)"
        )
    check_group_size(estimator, recipe.rollout.group_size)
    strange = sorted(str(need) for need in estimator.requires - set(Need))
    if strange:
        raise ConfigError(
            f"{name} needs {', '.join(strange)}, which no recipe provides. Its requires may name: "
            f"{', '.join(sorted(Need))}."
        )
    if Need.SNAPSHOTS in estimator.requires:
        _check_continuations(name, estimator)
    if Need.CRITIC in estimator.requires:
        value_unit(recipe, estimator)
        _check_shared_critic(recipe)
    if Need.ANCHORS in estimator.requires and _names_no_state(played):
        raise ConfigError(
            f"{name} compares steps taken in the same state, and env '{recipe.env.id}' names none: "
            f"{played.__name__} does not override ToolEnv.anchor. Return the canonical state there (no "
            f"counters, no timestamps), or choose an estimator that works without anchors, such as grpo."
        )


def check_engine(name: str, engine: Any) -> None:
    """Refuse to train with an engine that takes no weights: its class says why in ``evaluation_only``.

    Raises:
        ConfigError: it is one.
    """
    reason: Any = getattr(engine, "evaluation_only", None)
    if reason is not None:
        raise ConfigError(f"engine '{name}' cannot be trained with: {reason}. Set engine.id = \"torch\".")


def check_recorded(recipe: Recipe, estimator: Estimator, groups: Sequence[TrajectoryGroup]) -> None:
    """Refuse a first rollout batch that lacks what estimator or loss read in the record.

    Raises:
        ConfigError: no step has an anchor, or the engine gave no log-probabilities.
    """
    steps = [step for group in groups for t in group.trajectories for step in t.steps]
    if Need.ANCHORS in estimator.requires and steps and all(step.anchor is None for step in steps):
        raise ConfigError(
            f"estimator '{recipe.algorithm.estimator}' compares steps taken in the same state, and env "
            f"'{recipe.env.id}' named none in the {len(steps)} steps of the first rollout batch. Set "
            f"Transition.anchor to the canonical state (no counters, no timestamps), or choose an estimator "
            f"that works without anchors, such as grpo."
        )
    silent = sum(step.logprobs is None for step in steps)
    if recipe.learner.loss.needs_engine_logprobs and silent:
        raise ConfigError(
            f"learner.loss.importance = '{recipe.learner.loss.importance}' compares the learner's "
            f"probabilities with those sampled from, and engine '{recipe.engine.id}' gave none for "
            f"{silent} of the {len(steps)} steps of the first rollout batch. Use an engine that returns "
            f'log-probabilities, or set learner.loss.importance = "off".'
        )


def check_outcomes(asking: Sequence[str], groups: Sequence[TrajectoryGroup]) -> None:
    """Refuse a first rollout batch that does not say which tasks were solved, where something asks that.

    Args:
        asking: the names of the filters and the curriculum that do.
        groups: the batch. Where all episodes ended at a limit or broke, nobody can tell yet.

    Raises:
        ConfigError: episodes have come to their end, and none has the component ``outcome``.
    """
    every = [t for group in groups for t in group.trajectories]
    ended = [t for t in every if t.stop_reason is StopReason.TERMINATED]
    if asking and ended and all(success(t) is None for t in every):
        raise ConfigError(
            f"{', '.join(asking)} asks which episodes solved their task, and none of the {len(ended)} that "
            f"came to an end in the first rollout batch has the reward component 'outcome'. Report it from "
            f"the environment, 1 for solved and 0 for not, or do without (informative can go by reward)."
        )


def value_unit(recipe: Recipe, estimator: Estimator) -> Literal["step", "token"]:
    """What the returns of an estimator with a critic are those of: its ``credit``.

    Raises:
        ConfigError: it does not say.
    """
    unit: Any = getattr(estimator, "credit", None)
    if unit not in ("step", "token"):
        raise ConfigError(
            f"estimator '{recipe.algorithm.estimator}' needs a critic, and its credit is {unit!r}. Give it "
            f'an attribute credit: "step" if its returns are values of states, "token" if they are values '
            f"before each token. The critic learns them there."
        )
    return "step" if unit == "step" else "token"


def _check_continuations(name: str, estimator: Estimator) -> None:
    count: Any = getattr(estimator, CONTINUATIONS, None)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(
            f"{name} needs snapshots: its values are those of fresh continuations of each state, and its "
            f"{CONTINUATIONS} is {count!r}. Give it that attribute: how many of each, 1 or more."
        )


def _check_shared_critic(recipe: Recipe) -> None:
    ours, policys = recipe.critic.learner.dtype, recipe.learner.dtype
    if recipe.critic.kind == "shared" and ours != policys:
        raise ConfigError(
            f'critic.kind = "shared" runs the policy\'s own layers, whose learner.dtype is "{policys}", and '
            f'critic.learner.dtype is "{ours}". Set critic.learner.dtype = "{policys}".'
        )


def _names_no_state(played: type[Any]) -> bool:
    """True when it is certain: a ``ToolEnv`` as it is, with neither ``anchor`` nor ``step`` of its own."""
    return issubclass(played, ToolEnv) and played.anchor is ToolEnv.anchor and played.step is ToolEnv.step
