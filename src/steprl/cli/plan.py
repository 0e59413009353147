"""``steprl plan``: what a recipe will cost, before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from steprl.trainers.planning.plan import Plan


def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the recipe, such as learner.lr=1e-4.", metavar="[KEY=VALUE]..."),
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Groups to play; as many as run at once otherwise.", min=1)
    ] = None,
) -> None:
    """Measure a recipe before running it: tokens, time and memory per iteration and in all.

    Builds the parts, plays some groups of the first iterations, trains on them once or twice, and throws it
    all away: no run folder is written. Then it says what dominates and what could be changed.

    Example: steprl plan recipes/quickstart.toml rollout.groups=16
    """
    from steprl.trainers import api
    from steprl.trainers.progress import Display

    settings = api.load_recipe(recipe, overrides or [])
    console = Console()
    show(api.plan(settings, groups=groups, display=Display(Console(stderr=True))), console)


def show(plan: Plan, console: Console) -> None:
    """Print a plan: the totals, the parts of each, advice, and the rules behind the figures."""
    from steprl.trainers.planning.plan import rules_of

    recipe, played = plan.recipe, plan.calibration
    per, whole = plan.iteration_seconds, plan.run_seconds
    iterations = recipe.train.iterations
    table = Table("", "iteration", "run", title=f"plan of {recipe.name}: {iterations} iterations")
    evaluating = plan.evaluation_seconds * plan.evaluations
    for name, one, all_ in (
        ("time", _seconds(per), _seconds(whole)),
        ("  rollout", _seconds(sum(plan.rollout.values())), ""),
        ("  learner", _seconds(sum(plan.learner.values())), ""),
        ("  evaluations", "", f"{_seconds(evaluating)} ({plan.evaluations})"),
        ("prompt tokens", _count(plan.tokens.prompt), _count(plan.tokens.prompt * iterations)),
        ("sampled tokens", _count(plan.tokens.sampled), _count(plan.tokens.sampled * iterations)),
        ("learner tokens", _count(plan.tokens.row), _count(plan.tokens.row * iterations)),
        ("memory, at most", "", _bytes(plan.peak)),
    ):
        table.add_row(name, one, all_)
    console.print(table)
    console.print(_dominating(plan))
    for text in plan.advice:
        console.print(Text(f"! {text}"))
    console.print(
        Text(
            f"Measured on {played.groups} of {recipe.rollout.groups} groups ({played.rollout.episodes} "
            f"episodes, {played.rollout.seconds:.1f} s). An iteration in which every group has something to "
            f"learn from takes {_seconds(plan.most_seconds)}."
        )
    )
    for rule in rules_of(recipe):
        console.print(Text(f"- {rule}"))


def _dominating(plan: Plan) -> Table:
    table = Table("what", "made of", "most of it", title="what dominates")
    for name, parts, shown in (
        ("rollout", plan.rollout, _seconds),
        ("learner", plan.learner, _seconds),
        ("memory", plan.memory, _bytes),
    ):
        table.add_row(name, ", ".join(f"{part} {shown(size)}" for part, size in parts.items()), _most(parts))
    return table


def _most(parts: Mapping[str, float]) -> str:
    from steprl.trainers.planning.plan import dominant

    name, share = dominant(parts)
    return f"{name} ({share:.0%})"


def _seconds(value: float) -> str:
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f}"


def _bytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
