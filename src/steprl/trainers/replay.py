"""Replay: what a run recorded, played and scored again. The environment side takes the recorded actions in
fresh environments and looks for the first thing that differs; the model side computes the log-probabilities
of the recorded tokens under a checkpoint."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from steprl.errors import ConfigError, unknown
from steprl.learner.loading import load_model
from steprl.learner.threads import set_threads
from steprl.learner.torch_learner import TorchLearner
from steprl.renderers import load_tokenizer
from steprl.tasks import task_hash
from steprl.trainers.gap import GapMeter, VersionGap
from steprl.trainers.given import Given
from steprl.trainers.interrupt import run_async
from steprl.trainers.parts import Player, build_player, model_path, tasks_of
from steprl.trainers.progress import Display
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trainers.storage.state import STATE
from steprl.trajectory import files, read
from steprl.trajectory.compare import Difference, first_difference
from steprl.types import Task, Trajectory
from steprl.weights.source import FullWeights

TOLERANCE = 1e-3
"""A gap between log-probabilities that rounding in float32 does not explain."""

STARTING_MODEL = "none"
"""In place of a checkpoint: the model that the run started from."""

_Tasks = Mapping[tuple[str, str], Task]
"""By id and content hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSide:
    """What playing again showed, in episodes.

    ``skipped``: ended by a deadline, an abort or an error, which do not follow from actions alone. ``gone``
    and ``changed`` are uids of episodes that cannot be played any more: no task has the id, or it has other
    content now. ``first`` is the first difference of all.
    """

    equal: int
    different: int
    skipped: int
    gone: tuple[str, ...]
    changed: tuple[str, ...]
    first: Difference | None

    @property
    def same(self) -> bool:
        """Whether every episode that follows from its actions came out as recorded."""
        return not (self.different or self.gone or self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSide:
    """What scoring again showed, by the policy version that sampled the tokens.

    ``version`` is the one that ``checkpoint`` holds (None: unknown). ``left_out`` are sampled tokens without
    a log-probability to compare with: the engine gave none, or sampled greedily.
    """

    checkpoint: str
    version: int | None
    tolerance: float
    versions: tuple[VersionGap, ...]
    left_out: int

    @property
    def gap(self) -> VersionGap | None:
        """The gap between engine and learner: that of the tokens which the checkpoint's own weights sampled.
        None when there are none; those of other versions differ because the weights do."""
        return next((found for found in self.versions if found.version == self.version), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What either side showed; None for one that was not asked for."""

    environment: EnvironmentSide | None
    model: ModelSide | None


def replay(
    run: str | Path,
    *,
    iteration: int | None = None,
    episode: str | None = None,
    limit: int | None = None,
    environment: bool = True,
    model: bool = True,
    checkpoint: str | Path | None = None,
    tolerance: float = TOLERANCE,
    given: Given | None = None,
    display: Display | None = None,
) -> ReplayReport:
    """Play and score again what a run recorded: all of it, unless told otherwise.

    Args:
        run: the run folder.
        iteration: only episodes of this iteration, those of its evaluation included.
        episode: only the one of this uid, whatever ended it.
        limit: only the last so many.
        environment: play the recorded actions again.
        model: score the recorded tokens again.
        checkpoint: a model folder; None: the run's newest checkpoint, or without one the model it started
            from, which "none" means in any case.
        tolerance: the first token whose log-probability differs by more is pointed out.
        given: what was handed over when the run was started from Python.

    Raises:
        ConfigError: no such run, episode or checkpoint; or the run was started with objects that are not
            handed over now.
    """
    folder, recipe = RunFolder.open(run)
    display, given = display or Display(), given or Given()
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1 episode, got {limit}")
    _check_given(folder, given)
    recorded = _Recorded(folder.path, iteration=iteration, episode=episode, limit=limit)
    played = _environment_side(recipe, given, recorded, display) if environment else None
    scored = _model_side(folder, recipe, checkpoint, tolerance, recorded, display) if model else None
    return ReplayReport(environment=played, model=scored)


class _Recorded:
    """The chosen trajectories in the order in which they were played, file by file, read anew each time."""

    def __init__(self, run: Path, *, iteration: int | None, episode: str | None, limit: int | None) -> None:
        named = ((re.fullmatch(r"([0-9]{6,})-(train|eval)\.parquet", file.name), file) for file in files(run))
        ours = sorted((int(name[1]), name[2] == "eval", file) for name, file in named if name)
        self.files = [file for number, _, file in ours if iteration in (None, number)]
        self.episode = episode
        self._limit = limit
        if not self.files:
            of = "" if iteration is None else f" of iteration {iteration}"
            raise ConfigError(f"'{run}' holds no trajectories{of}")
        if episode is not None:
            self.files = [file for file in self.files if any(t.uid == episode for t in _members(file))]
            if not self.files:
                raise ConfigError(unknown("episode", episode, [], hint=f"See: steprl show {run} --list"))

    def __iter__(self) -> Iterator[list[Trajectory]]:
        if self.episode is not None:
            yield from ([t for t in _members(file) if t.uid == self.episode] for file in self.files)
        elif self._limit is None:
            yield from map(_members, self.files)
        else:
            last: list[list[Trajectory]] = []
            wanted = self._limit
            for file in reversed(self.files):
                last.append(_members(file)[-wanted:])
                wanted -= len(last[-1])
                if wanted == 0:
                    break
            yield from reversed(last)


def _members(file: Path) -> list[Trajectory]:
    return [trajectory for group in read(file) for trajectory in group.trajectories]


def _check_given(folder: RunFolder, given: Given) -> None:
    if missing := folder.given().keys() - given.record().keys():
        names = ", ".join(sorted(missing))
        raise ConfigError(
            f"'{folder.path}' was started from Python with what its config.toml cannot name: {names}. "
            f"Replay it from Python, handing over the same: steprl.trainers.replay.replay('{folder.path}', "
            f"given=Given({', '.join(f'{name}=…' for name in sorted(missing))}))"
        )


# ── environment side ──────────────────────────────────────────────────────────────────────────────


def _environment_side(recipe: Recipe, given: Given, recorded: _Recorded, display: Display) -> EnvironmentSide:
    tasks = {
        (task.id, task_hash(task)): task
        for split in ("train", "eval")
        for task in tasks_of(recipe, split, given)
    }
    player = build_player(recipe, given)
    ids = {task_id for task_id, _ in tasks}
    skipped = 0
    gone: list[str] = []
    changed: list[str] = []
    differences: list[Difference | None] = []

    async def play() -> None:
        nonlocal skipped
        free = asyncio.Semaphore(recipe.rollout.concurrency)
        with display.phase("playing again", len(recorded.files)) as bar:
            for batch in recorded:
                follows = [t for t in batch if t.stop_reason.trains or recorded.episode is not None]
                skipped += len(batch) - len(follows)
                playable = [t for t in follows if (t.task_id, t.task_hash) in tasks]
                gone.extend(t.uid for t in follows if t.task_id not in ids)
                changed.extend(t.uid for t in follows if t.task_id in ids and t not in playable)
                again = (_compared(t, tasks, player, _limit(recipe, t), free) for t in playable)
                differences.extend(await asyncio.gather(*again))
                bar.advance()

    run_async(play)
    found = [difference for difference in differences if difference is not None]
    return EnvironmentSide(
        equal=len(differences) - len(found),
        different=len(found),
        skipped=skipped,
        gone=tuple(gone),
        changed=tuple(changed),
        first=found[0] if found else None,
    )


def _limit(recipe: Recipe, recorded: Trajectory) -> int:
    """Most actions that the episode could take: a growing horizon had its length then."""
    trained = re.match(r"train-([0-9]+)-", recorded.uid)
    return recipe.rollout.limit(int(trained[1])) if trained else recipe.rollout.max_steps


async def _compared(
    recorded: Trajectory, tasks: _Tasks, player: Player, max_steps: int, free: asyncio.Semaphore
) -> Difference | None:
    task = tasks[recorded.task_id, recorded.task_hash]
    async with free:
        now = await player.pool.replay(task, recorded, max_steps=max_steps)
    return first_difference(recorded, now, player.renderer.decode)


# ── model side ────────────────────────────────────────────────────────────────────────────────────


def _model_side(
    folder: RunFolder,
    recipe: Recipe,
    checkpoint: str | Path | None,
    tolerance: float,
    recorded: _Recorded,
    display: Display,
) -> ModelSide:
    path, version = _checkpoint(folder, recipe, checkpoint)
    threads = 1 if recipe.deterministic else recipe.threads
    if threads is not None:
        set_threads(threads)
    model = load_model(path)
    meter = GapMeter(
        TorchLearner(model, recipe.learner, source=FullWeights(model)),
        load_tokenizer(model_path(recipe.model.path)).decode,
        tolerance=tolerance,
        merge=recipe.algorithm.merge,
    )
    with display.phase("scoring again", len(recorded.files)) as bar:
        for batch in recorded:
            meter.add(batch)
            bar.advance()
    return ModelSide(
        checkpoint=path,
        version=version,
        tolerance=tolerance,
        versions=meter.result(),
        left_out=meter.left_out,
    )


def _checkpoint(folder: RunFolder, recipe: Recipe, chosen: str | Path | None) -> tuple[str, int | None]:
    """A model folder, and the policy version that it holds: version k are the weights after iteration k, with
    which iteration k + 1 sampled."""
    starting = model_path(recipe.model.path)
    if chosen is None:
        saved = folder.checkpoints()
        chosen = saved[-1] if saved else STARTING_MODEL
    if str(chosen) in (STARTING_MODEL, recipe.model.path, starting):
        return starting, 0
    path = Path(chosen)
    if not path.is_dir():
        kept = ", ".join(str(saved) for saved in folder.checkpoints()) or "none"
        raise ConfigError(
            f"there is no checkpoint folder '{chosen}'. The run keeps {kept}; "
            f"'{STARTING_MODEL}' is the model that it started from."
        )
    ours = path.resolve().parent == (folder.path / "checkpoints").resolve() and (path / STATE).is_file()
    return str(path), folder.state(path).iteration if ours else None
