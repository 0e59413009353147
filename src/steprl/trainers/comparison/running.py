"""Training every variant with every seed. What is finished is not trained again and what was interrupted goes
on, so the same call repeated, after Ctrl-C or a kill, completes a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from steprl.config import Table, build, differing, flattened
from steprl.errors import ConfigError
from steprl.trainers import api
from steprl.trainers.comparison.variants import Variant
from steprl.trainers.interrupt import Interrupted
from steprl.trainers.parts import build_parts
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trainers.watch import Collapsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One run of a comparison: a variant of the recipe with one seed."""

    variant: str
    recipe: Recipe

    @property
    def path(self) -> Path:
        """Its run folder."""
        return Path(self.recipe.runs) / self.recipe.name

    @property
    def finished(self) -> bool:
        """Whether it has been trained to its end."""
        return self.path.exists() and RunFolder(self.path).summary() is not None


def trainings(table: Table, variants: Sequence[Variant], seeds: Sequence[int], out: Path) -> list[Training]:
    """Every variant with every seed, seed by seed: an early stop leaves variants that can be compared.

    Args:
        table: the recipe, as its file says it, overrides applied.
        variants: what is compared.
        seeds: each decides tasks and their order, sampling and mini-batches, for every variant alike.
        out: the runs are ``out/runs/<variant>-<seed>``.

    Raises:
        ConfigError: nothing to compare, a seed twice, or a variant that does not fit a recipe.
    """
    if not variants or not seeds:
        raise ConfigError("a comparison needs at least one variant and one seed")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"the seeds of a comparison are {list(seeds)}; give each once")
    found = []
    for seed in seeds:
        for variant in variants:
            try:
                recipe = build(Recipe, variant.apply(table))
            except ConfigError as error:
                raise ConfigError(f"variant '{variant.name}': {error}") from error
            name = f"{variant.name}-{seed}"
            found.append(
                Training(
                    variant=variant.name,
                    recipe=replace(recipe, seed=seed, name=name, runs=str(out / "runs")),
                )
            )
    return found


def train_all(planned: Sequence[Training], display: Display) -> None:
    """Train what is not finished. A run that its watch stopped is told and left; the others go on.

    Raises:
        ConfigError: a variant that cannot work, or a run folder of another recipe; before any training.
        Interrupted: Ctrl-C, after saving.
    """
    for training in planned:
        _check_folder(training)
    left = [training for training in planned if not training.finished]
    checked: set[str] = set()
    for training in left:
        if training.variant not in checked:
            _check_parts(training)
            checked.add(training.variant)
    for number, training in enumerate(planned, start=1):
        where = f"run {number} of {len(planned)}, {training.variant} with seed {training.recipe.seed}"
        if training not in left:
            display.say(f"{where}: finished before")
            continue
        display.say(f"{where}: {training.path}")
        _train(training, display)


def _train(training: Training, display: Display) -> None:
    begun = training.path.exists()
    try:
        api.run(training.recipe, resume=training.path if begun else None, display=display)
    except Collapsed as error:
        display.say(f"{training.path}: {error}")
    except Interrupted as error:
        raise Interrupted(
            f"{training.path} was {error} The same command again goes on with the whole comparison."
        ) from None


def _check_folder(training: Training) -> None:
    """Refuse a folder that holds a run of another recipe."""
    if not training.path.exists():
        return
    folder, recorded = RunFolder.open(training.path)
    here = replace(recorded, name=training.recipe.name, runs=training.recipe.runs)  # it may have been moved
    if found := differing(flattened(asdict(here)), flattened(asdict(training.recipe))):
        raise ConfigError(
            f"'{folder.path}' is a run of another recipe: {'; '.join(found)}. Compare into another folder "
            f"(--out), or repeat the comparison as it was begun."
        )


def _check_parts(training: Training) -> None:
    """Refuse what cannot work now, and not after the variants before it have been trained."""
    try:
        build_parts(training.recipe)
    except ConfigError as error:
        raise ConfigError(f"variant '{training.variant}': {error}") from error
