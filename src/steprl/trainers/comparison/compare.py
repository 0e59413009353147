"""The verbs: compare variants of a recipe by training them, or compare runs that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steprl.config import Table
from steprl.errors import ConfigError
from steprl.trainers.comparison.aggregation import Result, Run, read_run, result_of, unlike_options
from steprl.trainers.comparison.figure import OF_ALGORITHMS
from steprl.trainers.comparison.report import write_report
from steprl.trainers.comparison.running import train_all, trainings
from steprl.trainers.comparison.variants import Variant
from steprl.trainers.progress import Display


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was found, and where it can be read."""

    results: Sequence[Result]
    report: Path


def compare(
    table: Table,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    out: Path,
    *,
    title: str,
    curves: Sequence[str] = OF_ALGORITHMS,
    display: Display | None = None,
) -> Comparison:
    """Train every variant of a recipe with every seed, then write the report. Repeated, it goes on.

    Args:
        table: the recipe, as its file says it, overrides applied.
        variants: what is compared.
        seeds: the same for every variant.
        out: gets ``runs/<variant>-<seed>``, ``report.html``, ``curves.png`` and ``comparison.json``.
        title: of the report.
        curves: the four that are drawn.
        display: where progress is told.

    Raises:
        ConfigError: something cannot work, or ``out`` holds runs of another recipe; before any training.
        Interrupted: Ctrl-C, after saving.
    """
    planned = trainings(table, variants, seeds, out)
    train_all(planned, display or Display())
    results = [
        result_of(
            variant.name,
            [read_run(training.path) for training in planned if training.variant == variant.name],
        )
        for variant in variants
    ]
    return Comparison(results=results, report=write_report(results, out, title=title, curves=curves))


def compare_runs(runs: Sequence[tuple[str | None, Path]], out: Path, *, title: str) -> Comparison:
    """Compare runs that were made elsewhere. A name puts a run into that variant; runs without one are one
    variant when their recipes differ in nothing but name, place and seed.

    Raises:
        ConfigError: a folder holds no run, or nothing of one yet; or two runs of a variant have one seed.
    """
    if not runs:
        raise ConfigError("give the folders of the runs to compare")
    places = [path.resolve() for _, path in runs]
    for place in places:
        if places.count(place) > 1:
            raise ConfigError(f"the run '{place}' is named twice; it would be compared with itself")
    read = [(name, read_run(path)) for name, path in runs]
    variants: dict[str, list[Run]] = {}
    for name, run in read:
        if name is not None:
            variants.setdefault(name, []).append(run)
    unnamed = _alike([run for name, run in read if name is None])
    for name, alike in zip(_names(unnamed), unnamed, strict=True):
        variants.setdefault(name, []).extend(alike)
    for name, of_one in variants.items():
        seeds = sorted(run.seed for run in of_one)
        if len(set(seeds)) < len(seeds):
            raise ConfigError(
                f"variant '{name}' has the seeds {seeds}: a seed counts once. Leave a run out, or tell them "
                f"apart by names: NAME=RUN"
            )
    results = [result_of(name, of_one) for name, of_one in variants.items()]
    return Comparison(results=results, report=write_report(results, out, title=title))


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in sets, those of a set differing in nothing but name, place and seed."""
    found: list[list[Run]] = []
    for run in runs:
        same = (
            alike for alike in found if not unlike_options({"one": alike[0].options, "other": run.options})
        )
        alike = next(same, None)
        if alike is None:
            found.append([run])
        else:
            alike.append(run)
    return found


def _names(alike: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each set: its estimator, and where that does not tell them apart, what else differs."""
    estimators = [str(runs[0].options["algorithm.estimator"]) for runs in alike]
    options = unlike_options({str(index): runs[0].options for index, runs in enumerate(alike)})
    names = []
    for runs, estimator in zip(alike, estimators, strict=True):
        told = [
            f"{option.rsplit('.', 1)[-1]}={runs[0].options[option]}"
            for option in options
            if option != "algorithm.estimator" and runs[0].options.get(option) is not None
        ]
        names.append(estimator if estimators.count(estimator) == 1 else " ".join([estimator, *told]))
    return names
