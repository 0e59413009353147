"""Commands about policies: building a small one for an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steprl.cli.json_object import json_object
from steprl.errors import ConfigError, unknown

if TYPE_CHECKING:
    from steprl.trainers.imitation.config import PolicyConfig

policy_app = typer.Typer(
    help="Small policies for your own environments. Example: steprl policy build --help", no_args_is_help=True
)

INTERRUPTED = 130

Demos = Annotated[
    str,
    typer.Option(
        help='Demonstrations: "oracle", a scripted policy as module:attribute, a run folder or a .parquet '
        "file with trajectories.",
        metavar="oracle|MODULE:ATTRIBUTE|RUN",
    ),
]
Template = Annotated[str | None, typer.Option(help="Jinja file; a short ChatML otherwise.", metavar="FILE")]
Options = Annotated[
    list[str] | None,
    typer.Argument(
        help="Further options, such as size.hidden=256 size.layers=4 vocabulary=2048 warm_start.batch=32.",
        metavar="[KEY=VALUE]...",
    ),
]


@policy_app.callback()
def policy() -> None:
    """Small policies for your own environments. Example: steprl policy build --help"""


@policy_app.command("build")
def build(
    env: Annotated[str, typer.Option(help="Environment: a registered id or module:attribute.")],
    demos: Demos,
    out: Annotated[Path, typer.Option(help="Folder to write the policy to.", metavar="FOLDER")],
    options: Options = None,
    tasks: Annotated[str, typer.Option(help="What to demonstrate: a split or a file.")] = "train",
    eval_tasks: Annotated[
        str | None, typer.Option(help="What to evaluate on; otherwise some tasks are held out.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="Tasks to demonstrate; otherwise all.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Drop demonstrations with less.")] = None,
    size: Annotated[str, typer.Option(help="tiny, small (the quickstart's) or medium.")] = "small",
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of the warm start.")] = None,
    seed: Annotated[int, typer.Option(help="Decides weights, order and held-out tasks.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads; another number rounds differently.")] = 1,
    context: Annotated[str | None, typer.Option(help="Context rule.", metavar="ID")] = None,
    args: Annotated[str, typer.Option(help="Options of the environment.", metavar="JSON")] = "{}",
    demo_args: Annotated[str, typer.Option(help="Options of MODULE:ATTRIBUTE.", metavar="JSON")] = "{}",
    chat_template: Template = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a model folder at --out.")] = False,
) -> None:
    """Build a small policy for an environment: tokenizer, model, warm start on demonstrations.

    Writes a model folder that a recipe takes as model.path, with policy.json, the report, in it. Complete or
    absent: Ctrl-C leaves nothing.

    Example: steprl policy build --env courier --demos oracle --out policies/courier
    """
    from steprl.trainers.imitation.build import build_policy
    from steprl.trainers.progress import Display

    given = {
        "count": count,
        "min_reward": min_reward,
        "warm_start.steps": steps,
        "seed": seed,
        "threads": threads,
        "context": context,
        "args": json_object("--args", args),
        "demo_args": json_object("--demo-args", demo_args),
        "chat_template": chat_template,
    }
    config = _config(size, given, options or [])
    display = Display(Console(stderr=True))
    try:
        report = build_policy(
            env,
            demos=demos,
            out=out,
            tasks=tasks,
            eval_tasks=eval_tasks,
            config=config,
            overwrite=overwrite,
            display=display,
        )
    except KeyboardInterrupt:
        display.say(f"interrupted; '{out}' is as it was")
        raise typer.Exit(INTERRUPTED) from None
    _print_report(report, out)


def _config(size: str, given: Mapping[str, Any], options: list[str]) -> PolicyConfig:
    """The size by name, then what has a flag of its own, then what has not."""
    from steprl.config import build, override, put
    from steprl.learner.small_policy import SIZES
    from steprl.trainers.imitation.config import PolicyConfig

    if size not in SIZES:
        raise ConfigError(unknown("size", size, SIZES, hint="Or set size.hidden=… and size.layers=…"))
    table: dict[str, Any] = {"size": asdict(SIZES[size])}
    for path, value in given.items():
        if value is not None:
            put(table, path, value)
    return build(PolicyConfig, override(table, options))


def _print_report(report: Mapping[str, Any], out: Path) -> None:
    table = Table("figure", "value", title=Text(f"policy '{out}'"))
    for name, value in _flat(report):
        table.add_row(Text(name), Text(f"{value:.4g}" if isinstance(value, float) else str(value)))
    Console().print(table)


def _flat(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested figures by dotted name."""
    found: list[tuple[str, Any]] = []
    for name, value in report.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found
