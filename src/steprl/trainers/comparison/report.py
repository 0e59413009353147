"""The report of a comparison: ``report.html``, complete in itself and readable without scripts, the picture
in it as ``curves.png``, and every number as ``comparison.json``.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from steprl.trainers.comparison.aggregation import Result, Run, cautions, differences
from steprl.trainers.comparison.figure import OF_ALGORITHMS, picture
from steprl.trainers.comparison.statistics import LEVEL, Estimate
from steprl.trainers.storage.durable import storing, write_whole

Rows = list[list[str]]

NOTES = (
    f"A figure is the mean over seeds ± half of a {LEVEL:.0%} interval (Student's t with one degree of "
    "freedom less than there are seeds). The interval is about other seeds on the same tasks. With three "
    "seeds it reaches 4.3 standard errors to each side: intervals that overlap may still hide a difference. "
    "One seed has no interval.",
    "Success and reward are apart because one does not imply the other: reward may count more than the "
    "outcome (format, length, steps on the way), and rise while the outcome does not.",
    "Before and after: the evaluation tasks, sampled; greedy is apart. Last tenth: training episodes of the "
    "last tenth of the iterations.",
    "Spread of success: its sample standard deviation over seeds after training. Drawdown: how far the "
    "running mean of a training curve fell below its own peak, in the worst seed.",
    "Environment steps and seconds are of training, evaluations left aside. Steps from which only a critic "
    "learned, and steps that were sampled to value states, are counted apart; their seconds are not. Seconds "
    "depend on the machine and what else it did.",
    "Curves: mean over seeds, the shade is one standard deviation to each side. Prompt tokens are those of "
    "all steps of an episode, as if none were shared. KL is of each iteration's "
    "update (the policy that sampled against the policy trained), not the distance to the first policy.",
)


def write_report(
    results: Sequence[Result], out: Path, *, title: str, curves: Sequence[str] = OF_ALGORITHMS
) -> Path:
    """Write the three files into ``out``, which is made if need be; returns that of ``report.html``.

    Raises:
        StorageError: they cannot be written.
    """
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
    drawn = picture(results, curves, title=title)
    write_whole(out / "curves.png", drawn)
    write_whole(out / "comparison.json", json.dumps(as_json(results, title=title), indent=2) + "\n")
    write_whole(out / "report.html", _html(results, drawn, out, title, curves))
    return out / "report.html"


def as_json(results: Sequence[Result], *, title: str) -> dict[str, Any]:
    """Everything of the report as plain values: for scripts, and for other pictures."""
    return {
        "title": title,
        "interval": {"level": LEVEL, "kind": "Student's t over seeds; margin is half its width"},
        "cautions": cautions(results),
        "differences": differences(results),
        "variants": [
            {
                "variant": result.variant,
                "seeds": [run.seed for run in result.runs],
                "figures": {name: found and asdict(found) for name, found in result.figures.items()},
                "drawdown": {**result.drawdown, "window": result.window},
                "curves": {name: asdict(band) for name, band in result.curves.items()},
                "evaluated": {name: asdict(band) for name, band in result.evaluated.items()},
                "runs": [_run_json(run) for run in result.runs],
            }
            for result in results
        ],
    }


def table(results: Sequence[Result]) -> tuple[list[str], Rows]:
    """Heads and rows of the main table, as text."""
    return list(_COLUMNS), [[show(result) for show in _COLUMNS.values()] for result in results]


def _html(results: Sequence[Result], drawn: bytes, out: Path, title: str, curves: Sequence[str]) -> str:
    heads, rows = table(results)
    warned = cautions(results)
    encoded = b64encode(drawn).decode("ascii")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        *(["<h2>Not alike</h2>", _list(warned, "warning")] if warned else []),
        f'<img alt="{escape(_spoken(results, curves))}" src="data:image/png;base64,{encoded}">',
        "<h2>Figures</h2>",
        _table(heads, rows),
        _ranking(results),
        "<h2>How to read them</h2>",
        _list(NOTES),
        "<h2>What differs</h2>",
        _differences(results),
        "<h2>Runs</h2>",
        _runs(results, out),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _ranking(results: Sequence[Result]) -> str:
    """Who is ahead in success and in reward, if that is not the same."""

    def order(name: str) -> list[str]:
        known = [(found.mean, r.variant) for r in results if (found := r.figures[name]) is not None]
        return [variant for _, variant in sorted(known, key=lambda pair: -pair[0])]

    by_success, by_reward = order("success_after"), order("reward_after")
    if len(by_success) < 2 or by_success == by_reward:
        return ""
    text = f"By success: {', '.join(by_success)}. By reward: {', '.join(by_reward)}. The two orders differ."
    return f"<p>{escape(text)}</p>"


def _differences(results: Sequence[Result]) -> str:
    rows = [
        [option, *("" if row[r.variant] is None else str(row[r.variant]) for r in results)]
        for option, row in differences(results).items()
    ]
    if not rows:
        return "<p>Nothing but the seed.</p>"
    return _table(["option", *(result.variant for result in results)], rows)


def _runs(results: Sequence[Result], out: Path) -> str:
    rows = []
    for result in results:
        for run in result.runs:
            ends = [
                run.end(f"{name}_{when}") for name in ("success", "reward") for when in ("before", "after")
            ]
            state = "finished" if run.summary is not None else "not finished"
            place = os.path.relpath(run.path, out)
            rows.append(
                [result.variant, str(run.seed), *map(_number, ends), str(run.iterations)]
                + [f"{run.environment_steps:,}", f"{run.seconds:,.0f}", state, place]
            )
    heads = [
        "variant",
        "seed",
        "success before",
        "success after",
        "reward before",
        "reward after",
        "iterations",
    ]
    return _table([*heads, "environment steps", "seconds", "state", "folder"], rows)


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "seed": run.seed,
        "iterations": run.iterations,
        "environment_steps": run.environment_steps,
        "warmup_steps": run.warmup_steps,
        "continuation_steps": run.continuation_steps,
        "seconds": run.seconds,
        "summary": run.summary,
    }


def _spoken(results: Sequence[Result], curves: Sequence[str]) -> str:
    """The picture in words, for who cannot see it."""
    ends = [
        f"{result.variant} ends at {band.mean[-1]:.2f}"
        for result in results
        if (band := result.curves.get("success")) is not None
    ]
    return f"{', '.join(curves)} against iterations. ".capitalize() + (
        f"Success in training: {', '.join(ends)}." if ends else ""
    )


def _table(heads: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _list(items: Iterable[str], kind: str = "") -> str:
    lines = "\n".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{lines}</ul>' if kind else f"<ul>{lines}</ul>"


def _text(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{found.mean:.3f}" if found.margin is None else f"{found.mean:.3f} ± {found.margin:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _whole(found: Estimate | None) -> str:
    return "–" if found is None else f"{found.mean:,.0f}"


def _share(name: str) -> Callable[[Result], str]:
    return lambda result: _text(result.figures[name])


def _count(name: str) -> Callable[[Result], str]:
    return lambda result: _whole(result.figures[name])


def _spread(result: Result) -> str:
    after = result.figures["success_after"]
    return _number(after.std if after else None)


_COLUMNS: dict[str, Callable[[Result], str]] = {
    "variant": lambda result: result.variant,
    "seeds": lambda result: str(len(result.runs)),
    "success before": _share("success_before"),
    "success after": _share("success_after"),
    "greedy success after": _share("greedy_after"),
    "success, last tenth": _share("success_training"),
    "reward before": _share("reward_before"),
    "reward after": _share("reward_after"),
    "reward, last tenth": _share("reward_training"),
    "spread of success": _spread,
    "drawdown of success": lambda result: _number(result.drawdown["success"]),
    "drawdown of reward": lambda result: _number(result.drawdown["reward"]),
    "prompt tokens per episode, last tenth": _count("prompt_tokens_training"),
    "environment steps": _count("environment_steps"),
    "critic warm-up steps": _count("warmup_steps"),
    "continuation steps": _count("continuation_steps"),
    "seconds": _count("seconds"),
}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
img { max-width: 100%; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { white-space: normal; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
.warning { background: #fff4d6; padding: .6rem 2rem }
"""
