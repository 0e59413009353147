"""Where demonstrations come from (a scripted policy, an environment's oracle, stored trajectories), and which
of them are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from steprl.batch import rows
from steprl.config import build, read_toml
from steprl.envs.base import Env
from steprl.envs.policy import ScriptedPolicy
from steprl.errors import ConfigError, EnvError
from steprl.registry import load
from steprl.trainers.recipe import ModelConfig, Recipe
from steprl.trajectory.store import read
from steprl.types import Row, Sampling, Step, StopReason, Task, Trajectory

Reason = Literal["no_oracle", "truncated", "broken", "below_min_reward", "too_long"]
REASONS: tuple[Reason, ...] = ("no_oracle", "truncated", "broken", "below_min_reward", "too_long")
"""Why a demonstration is dropped: no oracle for its task; ended by a limit; the environment broke, or the
agent broke it; a lower reward than asked for, or none; more tokens than the policy's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """Demonstrations that are still to be played: a policy for every task, or None where there is none."""

    name: str
    policy_for: Callable[[Task], ScriptedPolicy | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Demonstrations that were played: trajectories, and the model in whose tokens they are recorded."""

    name: str
    trajectories: Sequence[Trajectory]
    model: ModelConfig


Source: TypeAlias = Scripted | Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """The trajectories to imitate, at least one, and their rows, tokens and masks as recorded; how many were
    dropped, and why; the tool-call format."""

    kept: tuple[Trajectory, ...]
    rows: Sequence[Row]
    dropped: Mapping[Reason, int]
    format: str
    format_args: Mapping[str, Any]

    def figures(self) -> dict[str, Any]:
        """How many there are, how good they are, and how long."""
        rewards = [t.reward for t in self.kept if t.reward is not None]
        return {
            "kept": len(self.kept),
            "dropped": dict(self.dropped),
            "mean_reward": sum(rewards) / len(rewards) if rewards else None,
            "steps": sum(len(t.steps) for t in self.kept),
            "action_tokens": sum(int(step.sampled_mask.sum()) for t in self.kept for step in t.steps),
            "tokens": sum(len(row.ids) for row in self.rows),
        }

    def summary(self) -> str:
        """The figures that matter first, on one line."""
        figures = self.figures()
        mean = "none" if figures["mean_reward"] is None else f"{figures['mean_reward']:.3f}"
        told = _counts(self.dropped) or "none"
        kept, tokens = figures["kept"], figures["tokens"]
        return f"{kept} demonstrations  mean reward {mean}  tokens {tokens}  dropped {told}"

    def longest_action(self) -> int:
        """Sampled tokens of the longest action."""
        return max(int(step.sampled_mask.sum()) for t in self.kept for step in t.steps)


def source_of(
    demos: str | Path | ScriptedPolicy, env: type[Env], *, args: Mapping[str, Any], model: str | None
) -> Source:
    """What ``demos`` names: "oracle", ``module:attribute``, a run folder or .parquet file, or a policy.

    Args:
        args: for what ``module:attribute`` names, if that is to be called.
        model: whose tokenizer stored trajectories have, if not their run's own.

    Raises:
        ConfigError: it names nothing, or something else.
    """
    stored = isinstance(demos, Path) or isinstance(demos, str) and _is_path(demos)
    if args and (demos == "oracle" or stored or not isinstance(demos, str)):
        raise ConfigError(f"demo_args are for demonstrators named module:attribute, not for {demos!r}")
    if model is not None and not stored:
        raise ConfigError(f"model is for stored trajectories: for {demos!r} a tokenizer is trained")
    if stored:
        return _stored(Path(str(demos)), model)
    if demos == "oracle":
        return Scripted(name="oracle", policy_for=lambda task: _oracle(env, task))
    if isinstance(demos, str):
        policy = _named(demos, args)
        return Scripted(name=demos, policy_for=lambda _: policy)
    given = _checked(demos, f"demos = {demos!r:.80}")
    return Scripted(name=f"{type(given).__module__}:{type(given).__qualname__}", policy_for=lambda _: given)


def _oracle(env: type[Env], task: Task) -> ScriptedPolicy | None:
    try:
        return env.oracle(task)
    except Exception as error:
        raise EnvError(
            f"{env.__name__}.oracle failed for task '{task.id}': {type(error).__name__}: {error}. "
            f"Return None for a task that it cannot solve."
        ) from error


def select(
    trajectories: Iterable[Trajectory],
    *,
    min_reward: float | None,
    max_context: int,
    format: str,
    format_args: Mapping[str, Any],
    dropped: Mapping[Reason, int] | None = None,
) -> Demonstrations:
    """Keep what can be imitated. ``dropped`` are those that fell out before.

    Raises:
        ConfigError: nothing is left.
    """
    counts: dict[Reason, int] = {reason: 0 for reason in REASONS} | dict(dropped or {})
    kept: list[Trajectory] = []
    for trajectory in trajectories:
        reason = _objection(trajectory, min_reward, max_context)
        if reason is None:
            kept.append(trajectory)
        else:
            counts[reason] += 1
    if not kept:
        raise ConfigError(
            f"no demonstration is left to imitate: {_counts(counts)}. truncated: raise max_steps or "
            f"size.max_context; too_long: raise size.max_context, which is {max_context}; below_min_reward: "
            f"lower min_reward, which is {min_reward}; broken: run 'steprl env check'."
        )
    return Demonstrations(
        kept=tuple(kept),
        rows=rows(replace(t, steps=tuple(map(_neutral, t.steps))) for t in kept),
        dropped=counts,
        format=format,
        format_args=format_args,
    )


def _counts(dropped: Mapping[Reason, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)


def _objection(trajectory: Trajectory, min_reward: float | None, max_context: int) -> Reason | None:
    reason = trajectory.stop_reason
    if trajectory.error is not None or reason in (StopReason.ERROR, StopReason.DEADLINE):
        return "broken"
    if reason is not StopReason.TERMINATED or not trajectory.steps:
        return "truncated"
    if min_reward is not None and (trajectory.reward is None or trajectory.reward < min_reward):
        return "below_min_reward"
    longest = max(len(step.prompt_ids) + len(step.action_ids) for step in trajectory.steps)
    return "too_long" if longest > max_context else None


def _neutral(step: Step) -> Step:
    """Imitation fits the model's own distribution, so filters a step was sampled with are no obstacle."""
    return step if step.sampling.neutral else replace(step, sampling=Sampling())


def _is_path(name: str) -> bool:
    return name.endswith(".parquet") or "/" in name or (name != "oracle" and Path(name).exists())


def _named(name: str, args: Mapping[str, Any]) -> ScriptedPolicy:
    """The scripted policy at ``module:attribute``, or what is made by calling what is there."""
    label = f"demos '{name}'"
    if ":" not in name:
        raise ConfigError(
            f"{label} is neither 'oracle' nor module:attribute, and there is no run folder or .parquet file "
            f"of this name"
        )
    found: Any = load(label, name)
    if not isinstance(found, type) and hasattr(found, "act"):
        if args:
            raise ConfigError(f"{label} is a policy already and takes no options, got {dict(args)}")
        return _checked(found, label)
    if not callable(found):
        raise ConfigError(f"{label} is {found!r:.80}: neither a scripted policy nor something that makes one")
    try:
        made = found(**args)
    except TypeError as error:
        raise ConfigError(f"{label} does not take these options: {error}") from error
    return _checked(made, label)


def _checked(policy: Any, label: str) -> ScriptedPolicy:
    if isinstance(policy, type) or not callable(getattr(policy, "act", None)):
        raise ConfigError(
            f"{label} gives {policy!r:.80}, which is no scripted policy: it needs a method act(messages) "
            f"that returns a steprl.envs.policy.Move"
        )
    found: ScriptedPolicy = policy
    return found


def _stored(path: Path, model: str | None) -> Stored:
    if not path.exists():
        raise ConfigError(f"demos: there is no run folder or .parquet file '{path}'")
    # the episodes of an evaluation stay what they are: held out
    groups = read(path, split="train") if path.is_dir() else read(path)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        raise ConfigError(f"demos: '{path}' holds no trajectories of training")
    return Stored(name=str(path), trajectories=trajectories, model=_model(path, model))


def _model(path: Path, model: str | None) -> ModelConfig:
    """The model whose tokens were recorded: the one named, or that of the run."""
    if model is not None:
        return ModelConfig(path=model)
    run = path if path.is_dir() else path.parent.parent
    config = run / "config.toml"
    if not config.is_file():
        raise ConfigError(
            f"demos: '{path}' does not say which model its tokens belong to. Name it with model=PATH."
        )
    return build(Recipe, read_toml(config)).model
