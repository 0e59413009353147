"""The verb: read stored episodes, apply every estimator, and say where they disagree and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from steprl.config import flattened
from steprl.errors import ConfigError, unknown
from steprl.registry import make
from steprl.trainers.explaining.apply import Applied, apply_all, default_words
from steprl.trainers.explaining.disagreement import Pair, Reason, disputed, pairs, reasons, spread
from steprl.trainers.explaining.facts import StepFacts, facts_of
from steprl.trainers.filtering.choose import Chosen, choose, filters_of
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import files, read
from steprl.types import Bools, Doubles, StepKey, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A batch under every estimator. ``disputed`` bool[S] and ``spread`` f64[S] stand beside
    ``applied.keys``; ``episode`` is the one asked for, or the one most in dispute."""

    source: Path
    groups: Sequence[TrajectoryGroup]
    applied: Applied
    facts: Mapping[StepKey, StepFacts]
    pairs: Sequence[Pair]
    disputed: Bools
    spread: Doubles
    reasons: Sequence[Reason]
    episode: Trajectory


def explain(
    path: str | Path,
    *,
    iteration: int | None = None,
    episode: str | None = None,
    estimators: Sequence[str] | None = None,
) -> Explanation:
    """Credit of stored episodes under several estimators.

    Args:
        path: a run folder, or a .parquet file of trajectories.
        iteration: which training batch of the run; the last one otherwise, or the one of ``episode``.
        episode: uid of the episode to show.
        estimators: names, with options if need be (``gigpo:omega=0.5``); left out, all that are registered,
            and the run's own.

    Raises:
        ConfigError: there is nothing to read, no such episode or estimator, or none that can work.
    """
    source, groups = _batch(Path(path), iteration, episode)
    if not any(t.steps for group in groups for t in group.trajectories):
        raise ConfigError(f"'{source}' holds no steps: there is no credit to explain")
    recipe = RunFolder.open(path)[1] if (Path(path) / "config.toml").is_file() else None
    applied = apply_all(groups, estimators or _words(recipe), recipe)
    if not applied.columns:
        told = "; ".join(f"{name}: {reason}" for name, reason in applied.refused.items())
        raise ConfigError(f"no estimator can work with '{source}': {told}")
    chosen = _chosen(recipe, groups)
    facts = facts_of(groups, left_out=chosen.left_out, compared=chosen.untrained)
    in_dispute = disputed(applied.columns)
    apart = spread(applied.columns)
    return Explanation(
        source=source,
        groups=groups,
        applied=applied,
        facts=facts,
        pairs=pairs(applied.columns),
        disputed=in_dispute,
        spread=apart,
        reasons=reasons(applied.keys, in_dispute, facts),
        episode=_shown(groups, applied.keys, in_dispute, apart, episode),
    )


def _chosen(recipe: Recipe | None, groups: Sequence[TrajectoryGroup]) -> Chosen:
    """What the run trained on."""
    if recipe is None or not (filters := filters_of(recipe)):
        return Chosen(groups=groups, played=len(groups))
    estimator = make("estimator", recipe.algorithm.estimator, recipe.algorithm.args)
    return choose(recipe, filters, estimator, groups)


def _words(recipe: Recipe | None) -> list[str]:
    """All registered estimators; the run's own comes first, with its options."""
    words = default_words()
    if recipe is None:
        return words
    own, args = recipe.algorithm.estimator, flattened(recipe.algorithm.args)
    options = ",".join(f"{key}={_value(value)}" for key, value in args.items())
    own = f"{own}:{options}" if options else own
    return [own, *(word for word in words if word != own)]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _batch(path: Path, iteration: int | None, episode: str | None) -> tuple[Path, list[TrajectoryGroup]]:
    """One rollout batch, whole: the file asked for, or the newest of training that has the episode."""
    if path.is_file():
        if iteration is not None:
            raise ConfigError(f"'{path}' is one batch; --iteration chooses one of a run folder")
        found = [path]
    else:
        found = [file for file in files(path) if file.name.endswith("-train.parquet")]
        if iteration is not None:
            found = [file for file in found if file.name.startswith(f"{iteration:06d}-")]
    if not found:
        wanted = f" of iteration {iteration}" if iteration is not None else ""
        raise ConfigError(f"'{path}' holds no training episodes{wanted}")
    if episode is None:
        return found[-1], read(found[-1])
    uids: list[str] = []
    for file in reversed(found):
        groups = read(file)
        here = [t.uid for group in groups for t in group.trajectories]
        if episode in here:
            return file, groups
        uids += here
    near = get_close_matches(episode, uids)  # not all of them: a run has thousands
    raise ConfigError(unknown("training episode", episode, near, hint=f"See: steprl show {path} --list"))


def _shown(
    groups: Sequence[TrajectoryGroup],
    keys: Sequence[StepKey],
    disputed_S: Bools,
    spread_S: Doubles,
    episode: str | None,
) -> Trajectory:
    """The episode asked for, or the one with the most steps in dispute, and then the furthest apart."""
    by_uid = {t.uid: t for group in groups for t in group.trajectories}
    if episode is not None:
        return by_uid[episode]
    score: dict[str, tuple[int, float]] = {}
    for key, in_dispute, apart in zip(keys, disputed_S.tolist(), spread_S.tolist(), strict=True):
        count, furthest = score.get(key.trajectory, (0, 0.0))
        score[key.trajectory] = (count + in_dispute, max(furthest, apart))
    return by_uid[max(score, key=lambda uid: score[uid])]
