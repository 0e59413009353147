"""`steprl compare`: variants of a recipe, or runs that are there, in one report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steprl.cli.several import taking_several

if TYPE_CHECKING:
    from steprl.trainers.comparison.compare import Comparison

compare_app = typer.Typer(
    help="Compare algorithms, or runs, in one report. Example: steprl compare algorithms --help",
    no_args_is_help=True,
)


OutFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder of the report.", metavar="FOLDER", show_default=False)
]


@compare_app.command(cls=taking_several("--algorithms", "--seeds"))
def algorithms(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")],
    algorithms: Annotated[
        list[str],
        typer.Option(
            help="Estimators, with options (gae:credit=step,lam=0.95), and TOML files of named variants.",
            metavar="NAME...",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the recipe, such as learner.lr=1e-4.", metavar="[KEY=VALUE]..."),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option(help="Seeds, the same for every algorithm; 0 1 2 otherwise.", metavar="N..."),
    ] = None,
    out: OutFolder = None,
) -> None:
    """Train a recipe once per algorithm and seed, on the same tasks, and write one report.

    Writes runs/<variant>-<seed>, report.html, curves.png and comparison.json into --out, which is
    comparisons/<recipe's name> if left out. Runs that are finished are not repeated and interrupted ones go
    on: after Ctrl-C, give the same command again.

    Example: steprl compare algorithms recipes/quickstart.toml --algorithms grpo rloo gigpo --seeds 0 1 2
    """
    from steprl.config import override, read_toml
    from steprl.trainers.comparison.compare import compare
    from steprl.trainers.comparison.variants import algorithm_variants
    from steprl.trainers.progress import Display

    table = override(read_toml(recipe), overrides or [])
    name = str(table.get("name", recipe.stem))
    variants = algorithm_variants(algorithms)
    out = out or Path("comparisons") / name
    title = f"{name}: {', '.join(variant.name for variant in variants)}"
    console = Console(stderr=True)
    _print(compare(table, variants, seeds or [0, 1, 2], out, title=title, display=Display(console)))


@compare_app.command()
def runs(
    folders: Annotated[
        list[str],
        typer.Argument(help="Run folders; NAME=RUN says which variant one is.", metavar="[NAME=]RUN..."),
    ],
    out: OutFolder = None,
) -> None:
    """Compare runs that are there already, wherever they were made.

    Runs whose recipes differ in nothing but seed and name are one variant; a name in front says it otherwise.
    Writes report.html, curves.png and comparison.json into --out, which is comparisons/runs if left out.

    Example: steprl compare runs runs/a-0 runs/a-1 slow=runs/b-0 slow=runs/b-1
    """
    from steprl.trainers.comparison.compare import compare_runs

    named = [_named(folder) for folder in folders]
    _print(compare_runs(named, out or Path("comparisons") / "runs", title="runs compared"))


def _named(folder: str) -> tuple[str | None, Path]:
    """A folder of that name, or else a name before it."""
    name, equals, path = folder.partition("=")
    return (name, Path(path)) if equals and not Path(folder).exists() else (None, Path(folder))


def _print(found: Comparison) -> None:
    from steprl.trainers.comparison.aggregation import cautions
    from steprl.trainers.comparison.report import table

    console = Console()
    heads, rows = table(found.results)
    upright = Table("figure", *(escape(row[0]) for row in rows))
    for head, cells in list(zip(heads, zip(*rows, strict=True), strict=True))[1:]:
        upright.add_row(head, *cells)
    console.print(upright)
    for caution in cautions(found.results):
        console.print(f"! {caution}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {found.report}", markup=False, highlight=False, soft_wrap=True)
