"""Two evaluations of the same tasks with the same seeds, compared task by task: what differs is then the
model (or what else was changed), and not which tasks were hard.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steprl.errors import ConfigError
from steprl.trainers.evaluation.attempts import Attempt, Solved, attempt_from
from steprl.trainers.evaluation.estimators import PAIRED_INTERVAL, Interval, paired, sign_test
from steprl.trainers.evaluation.folder import REPORT
from steprl.trainers.evaluation.report import FORMAT, component_names, tells, worth

_EXAMPLES = 5

_Pair = tuple[Attempt, Attempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An evaluation as ``evaluation.json`` holds it. ``options`` are those of its recipe, flattened."""

    path: Path
    solved: Solved
    options: Mapping[str, Any]
    attempts: tuple[Attempt, ...]


def load(path: str | Path) -> Kept:
    """The evaluation in a folder that ``steprl eval --out`` wrote, or in its ``evaluation.json``.

    Raises:
        ConfigError: there is none, it was not finished, or it is of another version.
    """
    path = Path(path)
    file = path / REPORT if path.is_dir() else path
    if not file.is_file():
        if (path / "settings.json").is_file():
            raise ConfigError(f"the evaluation in '{path}' is not finished: give its command again")
        raise ConfigError(f"there is no evaluation '{path}': give a folder that 'steprl eval --out' wrote")
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        if table["format"] != FORMAT:
            raise ConfigError(f"'{file}' has format {table['format']}, this steprl reads {FORMAT}")
        return Kept(
            path=path,
            solved=Solved(**table["solved"]),
            options=table["recipe"],
            attempts=tuple(map(attempt_from, table["attempts"])),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"'{file}' is no evaluation that 'steprl eval --out' wrote: {type(error).__name__}: {error}"
        ) from error


def difference(a: Kept, b: Kept, *, common: bool = False, seed: int = 0) -> dict[str, Any]:
    """What B does better than A (differences are B − A), as JSON holds it.

    Args:
        common: compare the attempts that both have, instead of refusing where they differ.
        seed: of the bootstrap.

    Raises:
        ConfigError: other tasks, seeds, attempts or another idea of what is solved.
    """
    if a.solved != b.solved:
        raise ConfigError(
            f"'{a.path}' and '{b.path}' differ in what counts as solved: {_said(a.solved)} and "
            f"{_said(b.solved)}. Report one of them again with the other's --solved-by and --threshold; "
            f"with the same --out nothing is played again."
        )
    ours, theirs = ({attempt.name: attempt for attempt in kept.attempts} for kept in (a, b))
    if not common:
        _refuse_other_attempts(a, b, ours, theirs)
    pairs = [(ours[name], theirs[name]) for name in ours if name in theirs]
    if not pairs:
        raise ConfigError(f"'{a.path}' and '{b.path}' have no task with the same seeds in common")
    tasks: dict[tuple[str, int], list[_Pair]] = {}
    for pair in pairs:
        tasks.setdefault((pair[0].task_hash, pair[0].seed), []).append(pair)
    by_task = list(tasks.values())
    says = tells(a.attempts, a.solved) and tells(b.attempts, b.solved)
    return {
        "a": str(a.path),
        "b": str(b.path),
        "tasks": len(by_task),
        "pairs": len(pairs),
        "interval": f"{PAIRED_INTERVAL}, seed {seed}; differences are B - A",
        "options": _options(a, b),
        "solved": _solved(by_task, a.solved, seed) if says else None,
        "means": {
            name: found
            for name in ("reward", *component_names([attempt for pair in pairs for attempt in pair]))
            if (found := _means(by_task, name, seed)) is not None
        },
    }


def rows(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Figure, A, B, and B − A with its interval."""
    shown = []
    if found["solved"] is not None:
        shown.append(_row("pass@1", found["solved"]["counted_as_wrong"]))
        if found["solved"]["faults"]:
            shown.append(_row("pass@1, errors left out", found["solved"]["left_out"]))
    return shown + [_row(name, figures) for name, figures in found["means"].items()]


def lines(found: Mapping[str, Any]) -> list[str]:
    """What a table does not show: the tasks that one of them solves and the other does not, and what differs
    between the two recipes."""
    told = []
    if (solved := found["solved"]) is not None:
        told.append(
            f"better in B: {solved['better']} tasks, worse: {solved['worse']}, the same: {solved['same']}; "
            f"exact sign test p = {solved['p']:.4g}"
        )
        for only, other in (("a", "b"), ("b", "a")):
            of_one = solved[f"only_{only}"]
            examples = f": {', '.join(of_one['examples'])}" if of_one["examples"] else ""
            more = " …" if of_one["tasks"] > len(of_one["examples"]) else ""
            told.append(
                f"solved by {only.upper()} and never by {other.upper()}: {of_one['tasks']}{examples}{more}"
            )
    told += [
        f"differs: {key} is {of_a!r} in A and {of_b!r} in B" for key, (of_a, of_b) in found["options"].items()
    ]
    return told


def _solved(tasks: Sequence[Sequence[_Pair]], solved: Solved, seed: int) -> dict[str, Any]:
    shares = [
        tuple(sum(solved(pair[i]) for pair in of_task) / len(of_task) for i in (0, 1)) for of_task in tasks
    ]
    sound = [[pair for pair in of_task if not (pair[0].fault or pair[1].fault)] for of_task in tasks]
    left = [
        tuple(sum(solved(pair[i]) for pair in of_task) / len(of_task) for i in (0, 1))
        for of_task in sound
        if of_task
    ]
    better, worse = sum(b > a for a, b in shares), sum(b < a for a, b in shares)
    return {
        "by": asdict(solved),
        "counted_as_wrong": _figures(shares, seed),
        "left_out": _figures(left, seed),
        "faults": sum(map(len, tasks)) - sum(map(len, sound)),
        "better": better,
        "worse": worse,
        "same": len(tasks) - better - worse,
        "p": sign_test(better, worse),
        "only_a": _only(tasks, shares, 0),
        "only_b": _only(tasks, shares, 1),
    }


def _only(tasks: Sequence[Sequence[_Pair]], shares: Sequence[Sequence[float]], which: int) -> dict[str, Any]:
    """Tasks that one solves at least once and the other never."""
    ids = [
        of_task[0][0].task_id
        for of_task, both in zip(tasks, shares, strict=True)
        if both[which] > 0 and both[1 - which] == 0
    ]
    return {"tasks": len(ids), "examples": ids[:_EXAMPLES]}


def _means(tasks: Sequence[Sequence[_Pair]], name: str, seed: int) -> dict[str, Any] | None:
    """Of tasks with an attempt that both could be scored for."""
    values = []
    for of_task in tasks:
        scored = [
            (one, other)
            for a, b in of_task
            if (one := worth(a, name)) is not None and (other := worth(b, name)) is not None
        ]
        if scored:
            values.append(tuple(math.fsum(side) / len(scored) for side in zip(*scored, strict=True)))
    return _figures(values, seed)


def _figures(values: Sequence[Sequence[float]], seed: int) -> dict[str, Any] | None:
    found: Interval | None = paired([b - a for a, b in values], seed=seed)
    if found is None:
        return None
    return {
        "a": math.fsum(a for a, _ in values) / len(values),
        "b": math.fsum(b for _, b in values) / len(values),
        "difference": asdict(found),
    }


def _refuse_other_attempts(
    a: Kept, b: Kept, ours: Mapping[Any, Attempt], theirs: Mapping[Any, Attempt]
) -> None:
    only_a = [found for name, found in ours.items() if name not in theirs]
    only_b = [found for name, found in theirs.items() if name not in ours]
    if not only_a and not only_b:
        return
    hashes_a, hashes_b = ({attempt.task_hash for attempt in kept.attempts} for kept in (a, b))
    told = []
    for kept, only, others in ((a, only_a, hashes_b), (b, only_b, hashes_a)):
        tasks = list(dict.fromkeys(found.task_id for found in only if found.task_hash not in others))
        rest = sum(found.task_hash in others for found in only)
        if tasks:
            told.append(f"{len(tasks)} tasks are in '{kept.path}' alone ({', '.join(tasks[:3])}…)")
        if rest:
            told.append(
                f"{rest} attempts at common tasks are in '{kept.path}' alone (other seeds, or more of them)"
            )
    raise ConfigError(
        f"the two evaluations are not of the same tasks and seeds: {'; '.join(told)}. Evaluate with the same "
        f"seed, tasks and --samples, or compare what they have in common with --common."
    )


def _options(a: Kept, b: Kept) -> dict[str, list[Any]]:
    keys = sorted({*a.options, *b.options})
    return {
        key: [a.options.get(key), b.options.get(key)]
        for key in keys
        if a.options.get(key) != b.options.get(key)
    }


def _row(name: str, figures: Mapping[str, Any] | None) -> tuple[str, str, str, str]:
    if figures is None:
        return name, "–", "–", "–"
    gap = figures["difference"]
    interval = "" if gap["low"] is None else f"  [{gap['low']:+.3f}, {gap['high']:+.3f}]"
    return name, f"{figures['a']:.3f}", f"{figures['b']:.3f}", f"{gap['mean']:+.3f}{interval}"


def _said(solved: Solved) -> str:
    return f"{solved.by} >= {solved.threshold:g}"
