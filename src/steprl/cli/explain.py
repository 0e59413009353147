"""`steprl explain`: the credit of stored episodes under every estimator, side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from steprl.trainers.explaining.disagreement import Pair
    from steprl.trainers.explaining.explain import Explanation

PAIRS = 10
"""As many pairs of estimators are shown as disagree most."""


def explain(
    run: Annotated[Path, typer.Argument(help="Run folder, or a .parquet file with trajectories.")],
    iteration: Annotated[
        int | None, typer.Option(help="Training batch of this iteration; the last otherwise.")
    ] = None,
    episode: Annotated[
        str | None, typer.Option(help="Show this episode; the one most in dispute otherwise.", metavar="UID")
    ] = None,
    estimators: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these, with options if need be (gigpo:omega=0.5); all that are known otherwise.",
            metavar="NAME...",
        ),
    ] = None,
) -> None:
    """Give stored episodes their credit by every estimator, and say where they disagree and why.

    Needs no model and no GPU. Estimators that need a critic are named and left out. Advantages are shown in
    units of their root mean square over the batch: what is compared is sign and proportion, not size.

    Example: steprl explain runs/quickstart --iteration 3
    """
    from steprl.trainers.explaining.explain import explain as explained

    found = explained(run, iteration=iteration, episode=episode, estimators=estimators)
    console = Console()
    trajectories = [t for group in found.groups for t in group.trajectories]
    _say(
        console,
        f"{found.source}: {len(found.applied.keys)} steps of {len(trajectories)} episodes in "
        f"{len(found.groups)} groups",
    )
    console.print(_estimators(found))
    for name, reason in found.applied.refused.items():
        _say(console, f"  {name} is left out: {reason}")
    _dispute(console, found)
    _episode(console, found)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _estimators(found: Explanation) -> Table:
    from steprl.trainers.explaining.disagreement import signs

    table = Table("estimator", "steps", "+", "0", "-", "unit", title="what each says")
    for column in found.applied.columns:
        said = [int((signs(column) == sign).sum()) for sign in (1, 0, -1)]
        table.add_row(Text(column.name), str(sum(said)), *map(str, said), f"{column.scale:.3g}")
    return table


def _dispute(console: Console, found: Explanation) -> None:
    if found.pairs:
        table = Table(
            "one", "other", "opposite signs", "one silent", "rank correlation", title="where they disagree"
        )
        for pair in found.pairs[:PAIRS]:
            table.add_row(Text(pair.one), Text(pair.other), *_shares(pair), _number(pair.rank_correlation))
        console.print(table)
    if len(found.applied.columns) < 2:
        _say(console, "one estimator alone is in no dispute")
        return
    count = int(found.disputed.sum())
    told = (
        "not all estimators give them one sign" if count else "they agree on every sign, if not on how much"
    )
    _say(console, f"{count} of {len(found.disputed)} steps are in dispute: {told}")
    for reason in found.reasons:
        key = reason.example
        _say(console, f"  {reason.steps:>5}  {reason.kind}")
        _say(console, f"         e.g. {key.trajectory}, step {key.step}: {reason.told}")


def _shares(pair: Pair) -> tuple[str, str]:
    steps = max(1, pair.steps)
    return f"{pair.opposite} ({pair.opposite / steps:.0%})", f"{pair.silent} ({pair.silent / steps:.0%})"


def _episode(console: Console, found: Explanation) -> None:
    episode = found.episode
    reward = "none" if episode.reward is None else f"{episode.reward:g}"
    columns = found.applied.columns
    table = Table(
        "step", "reward", "to go", "same state",
        *(Column(escape(column.name), overflow="fold") for column in columns),
        title=escape(f"episode {episode.uid}: reward {reward}, {episode.stop_reason}"),
    )  # fmt: skip
    where = {key: index for index, key in enumerate(found.applied.keys)}
    told: list[tuple[int, str]] = []
    for step in range(len(episode.steps)):
        key = episode.key(step)
        facts, index = found.facts[key], where[key]
        mark = " !" if found.disputed[index] else ""
        met = f"{facts.same_state} of {facts.same_state_trajectories}" if facts.same_state else ""
        numbers = [_number(float(column.scaled[index]), "+.2f") for column in columns]
        table.add_row(f"{step}{mark}", _number(facts.reward), _number(facts.return_to_go), met, *numbers)
        told += [(step, fact.told) for fact in facts.facts]
    console.print(table)
    _say(console, "  !: in dispute. same state: how many steps of how many other trajectories acted in it")
    said: dict[str, list[int]] = {}
    for step, text in told:
        said.setdefault(text, []).append(step)
    for text, steps in said.items():
        _say(console, f"  {_steps(steps, len(episode.steps))}: {text}")


def _steps(steps: list[int], total: int) -> str:
    if len(steps) == total and total > 1:
        return "every step"
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _number(value: float | None, form: str = ".3g") -> str:
    return "" if value is None or math.isnan(value) else format(value, form)
