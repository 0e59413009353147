"""`steprl compare`: variants of a recipe, or runs that are there, in one report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from steprl.cli.several import taking_several
from steprl.errors import ConfigError

if TYPE_CHECKING:
    from steprl.trainers.comparison.compare import Comparison
    from steprl.trainers.comparison.variants import Variant

compare_app = typer.Typer(
    help="Compare algorithms, context rules, or runs. Example: steprl compare algorithms --help",
    no_args_is_help=True,
)


RecipeFile = Annotated[Path, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options of the recipe, such as learner.lr=1e-4.", metavar="[KEY=VALUE]..."),
]
Seeds = Annotated[
    list[int] | None,
    typer.Option(help="Seeds, the same for every variant; 0 1 2 otherwise.", metavar="N..."),
]
_SIDE_BY_SIDE = 4
"""With more variants than this a terminal has room for a line each, of the main figures."""
_MAIN = ("variant", "success after", "reward after", "spread of success", "environment steps", "seconds")

OutFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder of the report.", metavar="FOLDER", show_default=False)
]


@compare_app.command(cls=taking_several("--algorithms", "--seeds"))
def algorithms(
    recipe: RecipeFile,
    algorithms: Annotated[
        list[str],
        typer.Option(
            help="Estimators, with options (gae:credit=step,lam=0.95), and TOML files of named variants.",
            metavar="NAME...",
        ),
    ],
    overrides: Overrides = None,
    seeds: Seeds = None,
    out: OutFolder = None,
) -> None:
    """Train a recipe once per algorithm and seed, on the same tasks, and write one report.

    Writes runs/<variant>-<seed>, report.html, curves.png and comparison.json into --out, which is
    comparisons/<recipe's name> if left out. Runs that are finished are not repeated and interrupted ones go
    on: after Ctrl-C, give the same command again.

    Example: steprl compare algorithms recipes/quickstart.toml --algorithms grpo rloo gigpo --seeds 0 1 2
    """
    from steprl.trainers.comparison.figure import OF_ALGORITHMS
    from steprl.trainers.comparison.variants import algorithm_variants

    _compare(recipe, overrides, algorithm_variants(algorithms), seeds, out, OF_ALGORITHMS)


@compare_app.command(cls=taking_several("--rules", "--seeds"))
def context(
    recipe: RecipeFile,
    rules: Annotated[
        list[str],
        typer.Option(
            help="Context rules, with options (sliding_window:rounds=2), and TOML files of named variants.",
            metavar="NAME...",
        ),
    ],
    overrides: Overrides = None,
    seeds: Seeds = None,
    out: OutFolder = None,
) -> None:
    """Train a recipe once per context rule and seed, on the same tasks, and write one report.

    The same as "compare algorithms", with prompt tokens and seconds in the picture. Writes into --out, which
    is comparisons/<recipe's name> if left out, and goes on where it stopped.

    Example: steprl compare context recipes/context.toml --rules append_only sliding_window:rounds=2
    """
    from steprl.trainers.comparison.figure import OF_CONTEXT
    from steprl.trainers.comparison.variants import context_variants

    _compare(recipe, overrides, context_variants(rules), seeds, out, OF_CONTEXT)


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
    if equals and not name:
        raise ConfigError(f"'{folder}' gives its run no name: write NAME=RUN, or the run alone")
    return (name, Path(path)) if equals and not Path(folder).exists() else (None, Path(folder))


def _compare(
    recipe: Path,
    overrides: list[str] | None,
    variants: Sequence[Variant],
    seeds: list[int] | None,
    out: Path | None,
    curves: Sequence[str],
) -> None:
    from steprl.config import override, read_toml
    from steprl.trainers.comparison.compare import compare
    from steprl.trainers.progress import Display

    table = override(read_toml(recipe), overrides or [])
    name = str(table.get("name", recipe.stem))
    title = f"{name}: {', '.join(variant.name for variant in variants)}"
    display = Display(Console(stderr=True))
    folder = out or Path("comparisons") / name
    found = compare(table, variants, seeds or [0, 1, 2], folder, title=title, curves=curves, display=display)
    _print(found)


def _print(found: Comparison) -> None:
    from steprl.trainers.comparison.aggregation import cautions
    from steprl.trainers.comparison.report import table

    console = Console()
    heads, rows = table(found.results)
    if len(rows) <= _SIDE_BY_SIDE:
        shown = Table("figure", *(escape(row[0]) for row in rows))
        for head, cells in list(zip(heads, zip(*rows, strict=True), strict=True))[1:]:
            shown.add_row(head, *cells)
    else:
        chosen = [heads.index(name) for name in _MAIN]
        shown = Table(Column(_MAIN[0], min_width=min(40, max(len(row[0]) for row in rows))), *_MAIN[1:])
        for row in rows:
            shown.add_row(*(escape(row[index]) for index in chosen))
    console.print(shown)
    for caution in cautions(found.results):
        console.print(f"! {caution}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {found.report}", markup=False, highlight=False, soft_wrap=True)
