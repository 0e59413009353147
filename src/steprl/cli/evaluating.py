"""`steprl eval` and `steprl eval diff`: what a model can do, and whether another one can do more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from steprl.cli.saving import SaveFile

What = Annotated[
    Path,
    typer.Argument(
        help="Recipe, a TOML file; a run folder (its newest checkpoint); or a checkpoint in one.",
        metavar="RECIPE|RUN|CHECKPOINT",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options of the recipe, such as evaluation.tasks=50.", metavar="[KEY=VALUE]..."),
]
Kept = Annotated[Path, typer.Argument(help="Folder that 'steprl eval --out' wrote, or its evaluation.json.")]


def evaluate(
    what: What,
    overrides: Overrides = None,
    samples: Annotated[int, typer.Option(help="Attempts at every task.", metavar="K", min=1)] = 1,
    greedy: Annotated[bool, typer.Option(help="Always take the likeliest token.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Keep everything in this folder. What is there already is not played again: the same "
            "command goes on after a stop, and more attempts or tasks extend it.",
            metavar="FOLDER",
        ),
    ] = None,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Play attempts again that an error of environment or scorer spoiled."),
    ] = False,
    solved_by: Annotated[
        str, typer.Option(help="Component that says what is solved; 'reward': the total.", metavar="NAME")
    ] = "outcome",
    threshold: Annotated[float, typer.Option(help="Solved is what has this much of it, or more.")] = 1.0,
    save: SaveFile = None,
) -> None:
    """Play every evaluation task K times; report pass@1, pass@k, pass^k, rewards and what went wrong.

    Errors of the environment and of what scores an answer are counted apart from wrong answers. The figures
    go to standard output as JSON, a table and progress to standard error. "steprl eval diff A B" compares
    two evaluations.

    Example: steprl eval recipes/quickstart.toml evaluation.tasks=50 --samples 4 --out evaluations/quickstart
    """
    from steprl.trainers import api
    from steprl.trainers.evaluation.attempts import Solved
    from steprl.trainers.evaluation.report import rows
    from steprl.trainers.evaluation.what import recipe_of
    from steprl.trainers.progress import Display
    from steprl.trajectory.statistics import batch_statistics
    from steprl.trajectory.store import write

    display = Display(Console(stderr=True))
    result = api.evaluate_attempts(
        recipe_of(what, overrides or []),
        greedy=greedy,
        samples=samples,
        solved=Solved(by=solved_by, threshold=threshold),
        out=out,
        retry=retry,
        display=display,
    )
    if save is not None:
        write(save, result.groups, iteration=0, split="eval")
    _print(display.console, ("figure", "value"), rows(result.report), result.report["intervals"]["shares"])
    print(json.dumps({**result.report, **batch_statistics(result.groups)}, indent=2))


def difference(
    a: Kept,
    b: Kept,
    common: Annotated[
        bool, typer.Option("--common", help="Compare what both have; otherwise, what differs is refused.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
) -> None:
    """Compare two evaluations of the same tasks and seeds, task by task: differences are B - A.

    Pass@1, reward and every component with a paired interval over tasks, an exact sign test, and the tasks
    that one solves and the other never does. JSON goes to standard output, a table to standard error.

    Example: steprl eval diff evaluations/before evaluations/after
    """
    from steprl.trainers.evaluation.diff import difference as differ
    from steprl.trainers.evaluation.diff import lines, load, rows

    found = differ(load(a), load(b), common=common, seed=seed)
    console = Console(stderr=True)
    heads = ("figure", f"A: {found['a']}", f"B: {found['b']}", "B - A")
    _print(
        console, heads, rows(found), f"{found['tasks']} tasks, {found['pairs']} pairs. {found['interval']}"
    )
    for line in lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(json.dumps(found, indent=2))


def _print(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], note: Any) -> None:
    table = Table(*(Column(Text(head)) for head in heads))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print(str(note), markup=False, highlight=False, soft_wrap=True)
