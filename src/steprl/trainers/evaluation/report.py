"""The report of an evaluation: figures with intervals over tasks, and what went wrong counted apart from what
was answered wrongly. As plain values for scripts, as rows for people.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from steprl.trainers.evaluation.attempts import Attempt, Fault, Solved
from steprl.trainers.evaluation.estimators import (
    MEAN_INTERVAL,
    SHARE_INTERVAL,
    Interval,
    counts_of_k,
    mean,
    pass_at_k,
    pass_hat_k,
    share,
)
from steprl.types import StopReason

FORMAT = 1
"""Of ``evaluation.json``. A change that an old reader would misread raises it."""

PASS_AT, PASS_HAT = "pass@k", "pass^k"

_ESTIMATES: Mapping[str, Callable[[int, int, int], float]] = {PASS_AT: pass_at_k, PASS_HAT: pass_hat_k}
_FAULTS: tuple[Fault, ...] = ("environment", "scorer")
_LENGTHS = ("steps", "calls", "malformed_calls", "prompt_tokens", "action_tokens", "seconds")


def report_of(attempts: Sequence[Attempt], solved: Solved) -> dict[str, Any]:
    """Everything that attempts tell, as JSON holds it.

    ``pass@k`` and ``pass^k`` count an attempt with a fault as not solved; under ``left_out`` it is left out,
    so that the truth of a scorer that works lies between the two or above. They are None where nothing said
    what is solved, and a k is missing under ``left_out`` where no task has so many attempts left.

    Args:
        attempts: every attempt at every task, tasks together.
        solved: what counts as solved.
    """
    tasks = [list(found) for _, found in groupby(attempts, key=lambda attempt: attempt.place)]
    sound = [attempt for attempt in attempts if attempt.fault is None]
    says = tells(attempts, solved)
    samples = len(tasks[0])
    return {
        "tasks": len(tasks),
        "samples": samples,
        "success": sum(map(solved, attempts)) / len(attempts) if says else None,
        "reward": _plain_mean([a.reward for a in sound if a.reward is not None]),
        "errors": len(attempts) - len(sound),
        "format": FORMAT,
        "solved": asdict(solved),
        **(_passes(tasks, solved, samples) if says else {PASS_AT: None, PASS_HAT: None}),
        "left_out": _left_out(tasks, solved, samples) if says and len(sound) < len(attempts) else None,
        "intervals": {"shares": SHARE_INTERVAL, "means": MEAN_INTERVAL},
        "means": {name: _json(_mean_of(tasks, name)) for name in ("reward", *component_names(attempts))},
        "stop_reasons": {
            reason.value: count
            for reason in StopReason
            if (count := sum(a.stop_reason == reason.value for a in attempts))
        },
        "faults": {fault: _faults(attempts, fault) for fault in _FAULTS},
        "by_agent": sum(attempt.by_agent for attempt in attempts),
        "per_attempt": {
            name: _plain_mean([float(getattr(attempt, name)) for attempt in sound]) for name in _LENGTHS
        },
    }


def tells(attempts: Sequence[Attempt], solved: Solved) -> bool:
    """Whether something said what is solved: an attempt that was reported, or limits and the agent's own
    breaking of things that ended all of them before they could be."""
    sound = [attempt for attempt in attempts if attempt.fault is None]
    reported = any(attempt.worth(solved.by) is not None for attempt in sound)
    limited = all(a.by_agent or a.stop_reason != StopReason.TERMINATED.value for a in sound)
    return reported or (bool(sound) and limited)


def component_names(attempts: Sequence[Attempt]) -> list[str]:
    """Every component that any attempt was given."""
    return sorted({name for attempt in attempts for name in attempt.components})


def worth(attempt: Attempt, name: str) -> float | None:
    """The total for "reward", else the component's sum: 0 where a scored attempt was not given it, None where
    nobody could score it."""
    if attempt.fault is not None or attempt.reward is None:
        return None
    return attempt.reward if name == "reward" else attempt.components.get(name, 0.0)


def rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The report as a table of figures and values, for people."""
    found = [("tasks × attempts", f"{report['tasks']} × {report['samples']}")]
    solved = report["solved"]
    if report[PASS_AT] is None:
        found.append(("pass@1", f"– (no episode reported '{solved['by']}'; see --solved-by)"))
    else:
        found += _pass_rows(report)
    for name, interval in report["means"].items():
        found.append((name if name == "reward" else f"  {name}", _shown(interval)))
    found += [(f"ended: {reason}", str(count)) for reason, count in report["stop_reasons"].items()]
    for fault, counted in report["faults"].items():
        found.append((f"{fault} errors", _fault_text(counted)))
    if report["by_agent"]:
        found.append(("broken by the agent", f"{report['by_agent']} attempts, counted as wrong"))
    for name, value in report["per_attempt"].items():
        if value is not None:
            found.append((f"{name.replace('_', ' ')} per attempt", f"{value:,.2f}"))
    return found


def _pass_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for kind, sign in ((PASS_AT, "@"), (PASS_HAT, "^")):
        for k, interval in report[kind].items():
            if k != "1" or kind == PASS_AT:
                found.append((f"pass{sign}{k}", _shown(interval)))
    if report["left_out"] is not None:
        of_one = report["left_out"][PASS_AT].get("1")
        found.append(("pass@1, errors left out", _shown(of_one)))
    return found


def _passes(tasks: Sequence[Sequence[Attempt]], solved: Solved, samples: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, estimate in _ESTIMATES.items():
        found[name] = {}
        for k in counts_of_k(samples):
            able = [of_task for of_task in tasks if len(of_task) >= k]
            values = [estimate(len(of_task), sum(map(solved, of_task)), k) for of_task in able]
            if interval := share(values, most=sum(map(len, able))):
                found[name][str(k)] = _json(interval)
    return found


def _left_out(tasks: Sequence[Sequence[Attempt]], solved: Solved, samples: int) -> dict[str, Any]:
    sound = [[attempt for attempt in of_task if attempt.fault is None] for of_task in tasks]
    return _passes(sound, solved, samples)


def _mean_of(tasks: Sequence[Sequence[Attempt]], name: str) -> Interval | None:
    """The mean over tasks of the mean over their scored attempts."""
    values = []
    for of_task in tasks:
        scored = [value for attempt in of_task if (value := worth(attempt, name)) is not None]
        if scored:
            values.append(math.fsum(scored) / len(scored))
    return mean(values)


def _faults(attempts: Sequence[Attempt], fault: Fault) -> dict[str, Any]:
    spoiled = [attempt for attempt in attempts if attempt.fault == fault]
    kinds = Counter((attempt.error or attempt.stop_reason).partition(":")[0] for attempt in spoiled)
    return {
        "attempts": len(spoiled),
        "tasks": len({attempt.place for attempt in spoiled}),
        "kinds": dict(sorted(kinds.items())),
        "first": next(
            (f"{attempt.uid}: {attempt.error or attempt.stop_reason}" for attempt in spoiled), None
        ),
    }


def _fault_text(counted: Mapping[str, Any]) -> str:
    if not counted["attempts"]:
        return "0"
    kinds = ", ".join(f"{count} {kind}" for kind, count in counted["kinds"].items())
    return f"{counted['attempts']} attempts at {counted['tasks']} tasks ({kinds})"


def _plain_mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _json(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def _shown(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return "–"
    if interval["low"] is None:
        return f"{interval['mean']:.3f}"
    return f"{interval['mean']:.3f}  [{interval['low']:.3f}, {interval['high']:.3f}]"
