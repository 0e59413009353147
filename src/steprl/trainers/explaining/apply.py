"""Estimators on stored episodes: which of them can work with what is stored, and what they say of each step.

Shapes: S steps of the batch, in the order of the record; A action tokens of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steprl.credit import check_group_size
from steprl.errors import ConfigError
from steprl.registry import addresses, resolve
from steprl.trainers.comparison.variants import parse_word
from steprl.trainers.crediting import credits_of
from steprl.trainers.filtering.choose import choose, filters_of
from steprl.trainers.recipe import Recipe
from steprl.types import Credits, Doubles, Estimator, Need, Scores, StepKey, TrajectoryGroup

SECOND_READINGS = {"reinforce_pp": "reinforce_pp:credit=step"}
"""Estimators that say something else with another option, and so are applied with both."""

_MISSING = {
    Need.CRITIC: "it needs a critic, and values are not stored with episodes",
    Need.REFERENCE: "it needs a reference model's log-probabilities, which are not stored with episodes",
    Need.SNAPSHOTS: "it needs fresh continuations of snapshots, which are not stored with episodes",
    Need.ANCHORS: "it compares steps in one state, and no step has an anchor to say which",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What one estimator says.

    ``advantages`` f64[S] is the mean over a step's trained tokens, NaN for a step that does not train;
    ``scaled`` f64[S] is in units of ``scale``, their root mean square: other units, the same signs.
    """

    name: str
    advantages: Doubles
    scale: float

    @property
    def scaled(self) -> Doubles:
        return self.advantages / self.scale if self.scale > 0 else self.advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What all that can work say of the steps ``keys``, and by name why others cannot."""

    keys: Sequence[StepKey]
    columns: Sequence[Column]
    refused: Mapping[str, str]


def default_words() -> list[str]:
    """Every registered estimator, and the second readings."""
    found = []
    for name in addresses("estimator"):
        found += [name, SECOND_READINGS[name]] if name in SECOND_READINGS else [name]
    return found


def apply_all(
    groups: Sequence[TrajectoryGroup], words: Sequence[str], recipe: Recipe | None = None
) -> Applied:
    """Every estimator on the whole batch, less what the run's filters left out: whitening is over the batch.

    Args:
        groups: the batch as it was stored.
        words: names of estimators, with options if need be: ``gigpo:omega=0.5``.
        recipe: that of the run, which decides what of the batch trains; None: all of it.

    Raises:
        ConfigError: no such estimator, or an option that it does not have.
    """
    keys = [t.key(i) for group in groups for t in group.trajectories for i in range(len(t.steps))]
    columns, refused = [], {}
    for word in words:
        estimator = made(word)
        reason = _obstacle(groups, estimator)
        if reason is not None:
            refused[word] = reason
        else:
            columns.append(column(word, keys, _credits(recipe, estimator, groups)))
    return Applied(keys=keys, columns=columns, refused=refused)


def column(name: str, keys: Sequence[StepKey], credits: Credits) -> Column:
    """Credits per token as one number per step."""
    advantages_S = np.full(len(keys), np.nan)
    for index, key in enumerate(keys):
        trained_A = credits.loss_mask.get(key)  # none of a group that the run has dropped
        if trained_A is not None and trained_A.any():
            advantages_S[index] = credits.advantages[key][trained_A].mean()
    trained_S = advantages_S[~np.isnan(advantages_S)]
    scale = float(np.sqrt(np.mean(trained_S**2))) if len(trained_S) else 0.0
    return Column(name=name, advantages=advantages_S, scale=scale)


def _credits(recipe: Recipe | None, estimator: Estimator, groups: Sequence[TrajectoryGroup]) -> Credits:
    if recipe is None:
        return estimator(groups, Scores())
    chosen = choose(recipe, filters_of(recipe), estimator, groups)
    return credits_of(recipe, estimator, chosen.groups, Scores(), untrained=chosen.untrained)


def made(word: str) -> Estimator:
    """The estimator that a word names, options included: ``gigpo:omega=0.5``.

    Raises:
        ConfigError: no such estimator, or an option that it does not have.
    """
    name, options = parse_word(word)
    component: Any = resolve("estimator", name)
    try:
        estimator: Estimator = component(**options)
    except TypeError as error:
        raise ConfigError(f"estimator '{name}' does not take these options: {error}") from error
    return estimator


def _obstacle(groups: Sequence[TrajectoryGroup], estimator: Estimator) -> str | None:
    """Why an estimator cannot work with what is stored, or None."""
    missing = estimator.requires & _MISSING.keys()
    if any(step.anchor is not None for g in groups for t in g.trajectories for step in t.steps):
        missing -= {Need.ANCHORS}
    if missing:
        return "; ".join(_MISSING[need] for need in sorted(missing))
    try:
        check_group_size(estimator, max(len(group.trajectories) for group in groups))
    except ConfigError:
        return "it compares the trajectories of a group, and there are too few in every group here"
    return None
