"""What a comparison found: run folders in, curves and figures over seeds out, by variant.

Only what the runs left on disk is read, so runs made elsewhere are compared just the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steprl.config import flattened
from steprl.errors import ConfigError
from steprl.trainers.comparison.statistics import Estimate, drawdown, estimate, smoothed
from steprl.trainers.storage.run_folder import RunFolder

CURVES = {
    "success": "reward/success_share",
    "reward": "reward/mean",
    "response length": "episode/action_tokens",
    "KL": "learner/approx_kl",
    "prompt tokens": "episode/prompt_tokens",
    "seconds": "time/iteration",
}
"""What can be drawn against iterations, and the figure of ``metrics.jsonl`` behind it."""

EVALUATED = {"success": "eval/success", "reward": "eval/reward"}
"""Curves of which there are evaluations as well."""

_OWN = frozenset({"name", "runs", "seed"})
_SAME = ("env.", "evaluation.", "model.", "rollout.groups", "rollout.group_size", "train.iterations")
"""Options in which variants are expected to agree: what is asked, of whom, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run left: its options, the lines of its metrics, its summary (None: not finished)."""

    path: Path
    options: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any] | None

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    @property
    def iterations(self) -> int:
        """Of training, so far."""
        return max((line["iteration"] for line in self.metrics), default=0)

    def curve(self, figure: str) -> dict[int, float]:
        """A figure by iteration; iterations without it are absent."""
        return {line["iteration"]: line[figure] for line in self.metrics if line.get(figure) is not None}

    def end(self, name: str) -> float | None:
        """A figure of the summary."""
        value = (self.summary or {}).get(name)
        return None if value is None else float(value)

    @property
    def environment_steps(self) -> int:
        """Steps of the episodes that the policy was trained on, or found nothing to learn from."""
        return sum(_steps(line) for line in self.metrics if not _is_warmup(line))

    @property
    def warmup_steps(self) -> int:
        """Steps of the episodes from which a critic learned alone, before the policy did."""
        return sum(_steps(line) for line in self.metrics if _is_warmup(line))

    @property
    def continuation_steps(self) -> int:
        """Steps that were sampled to value states (VinePPO), and not to train on."""
        return round(sum(line.get("continuations/steps") or 0.0 for line in self.metrics))

    @property
    def seconds(self) -> float:
        """Of training: rollout and updates, without evaluations."""
        return sum(line.get("time/iteration") or 0.0 for line in self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A curve over seeds: at each of N iterations the mean of the runs that have it, their sample standard
    deviation (0 for one), and how many they are."""

    iterations: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]
    seeds: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one variant. ``figures`` are the columns of the table; None where no run has it."""

    variant: str
    runs: Sequence[Run]
    curves: Mapping[str, Band]
    evaluated: Mapping[str, Band]
    figures: Mapping[str, Estimate | None]
    drawdown: Mapping[str, float | None]
    """The largest of any seed, by curve."""
    window: int
    """Iterations of the running mean in which drawdown is measured."""


def read_run(path: str | Path) -> Run:
    """What a run folder holds.

    Raises:
        ConfigError: there is no run at ``path``, or nothing of it yet.
    """
    folder, recipe = RunFolder.open(path)
    metrics = folder.metrics()
    if not metrics:
        raise ConfigError(f"the run '{path}' has no figures yet; nothing to compare")
    return Run(path=Path(path), options=flattened(asdict(recipe)), metrics=metrics, summary=folder.summary())


def result_of(variant: str, runs: Sequence[Run]) -> Result:
    """The curves and figures of a variant over its runs, one for each seed."""
    curves = {name: band([run.curve(figure) for run in runs]) for name, figure in CURVES.items()}
    evaluated = {name: band([run.curve(figure) for run in runs]) for name, figure in EVALUATED.items()}
    figures: dict[str, Estimate | None] = {}
    for name in ("success", "greedy", "reward"):
        for when in ("before", "after"):
            figures[f"{name}_{when}"] = _estimated([run.end(f"{name}_{when}") for run in runs])
    for name in ("success", "reward", "prompt tokens"):
        last = [_last_tenth(run.curve(CURVES[name])) for run in runs]
        figures[f"{name.replace(' ', '_')}_training"] = _estimated(last)
    figures["environment_steps"] = estimate([float(run.environment_steps) for run in runs])
    figures["warmup_steps"] = estimate([float(run.warmup_steps) for run in runs])
    figures["continuation_steps"] = estimate([float(run.continuation_steps) for run in runs])
    figures["seconds"] = estimate([run.seconds for run in runs])
    window = max(1, min(5, min(run.iterations for run in runs) // 4))
    fallen: dict[str, float | None] = {}
    for name in ("success", "reward"):
        falls = [
            drawdown(smoothed(list(c.values()), window)) for run in runs if (c := run.curve(CURVES[name]))
        ]
        fallen[name] = max(falls, default=None)
    return Result(
        variant=variant,
        runs=sorted(runs, key=lambda run: run.seed),
        curves={name: found for name, found in curves.items() if found.iterations},
        evaluated={name: found for name, found in evaluated.items() if found.iterations},
        figures=figures,
        drawdown=fallen,
        window=window,
    )


def band(curves: Sequence[Mapping[int, float]]) -> Band:
    """Mean and spread of several curves, at every iteration that one of them has."""
    iterations = sorted({iteration for curve in curves for iteration in curve})
    found = [
        estimate([curve[iteration] for curve in curves if iteration in curve]) for iteration in iterations
    ]
    present = [at for at in found if at is not None]
    return Band(
        iterations=iterations,
        mean=[at.mean for at in present],
        std=[at.std or 0.0 for at in present],
        seeds=[at.seeds for at in present],
    )


def unlike_options(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options of several recipes that are not alike, but for name, place and seed: by option, the value that
    each has."""
    names = sorted({name for found in options.values() for name in found} - _OWN)
    table = {name: {who: found.get(name) for who, found in options.items()} for name in names}
    return {
        name: row for name, row in table.items() if any(v != next(iter(row.values())) for v in row.values())
    }


def differences(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Options in which the variants differ: by option, the value of each variant."""
    return unlike_options({result.variant: result.runs[0].options for result in results})


def cautions(results: Sequence[Result]) -> list[str]:
    """What keeps the figures from being those of the same tasks, seeds and effort, a sentence each."""
    found = [
        f"the variants differ in {option}: " + ", ".join(f"{v} {value!r}" for v, value in row.items())
        for option, row in differences(results).items()
        if option.startswith(_SAME)
    ]
    seeds = {result.variant: [run.seed for run in result.runs] for result in results}
    if len({tuple(of_one) for of_one in seeds.values()}) > 1:
        found.append("the seeds differ: " + "; ".join(f"{v} has {of_one}" for v, of_one in seeds.items()))
    for result in results:
        mixed = unlike_options({str(run.path): run.options for run in result.runs})
        if mixed:
            found.append(f"the runs of {result.variant} differ from each other in {', '.join(mixed)}")
        for run in result.runs:
            if run.summary is None:
                found.append(
                    f"{run.path.name} is not finished (iteration {run.iterations}): its curve is drawn, but "
                    f"it is not in the figures before and after training"
                )
    return found


def _steps(line: Mapping[str, Any]) -> int:
    """Steps of an iteration's episodes, without those that a deadline or an error took out of training."""
    counted = line.get("batch/counted")
    return round(line.get("episode/steps", 0.0) * counted) if counted else 0


def _is_warmup(line: Mapping[str, Any]) -> bool:
    return bool(line.get("critic/updates")) and not line.get("learner/updates")


def _last_tenth(curve: Mapping[int, float]) -> float | None:
    """Mean of the last tenth of a curve, of at least one point."""
    values = list(curve.values())
    last = values[-max(1, len(values) // 10) :]
    return sum(last) / len(last) if last else None


def _estimated(values: Sequence[float | None]) -> Estimate | None:
    return estimate([value for value in values if value is not None])
