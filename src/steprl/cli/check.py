"""`steprl env check`: would this environment train? Prints the checks and the scores of scripted policies."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steprl.cli.json_object import json_object
from steprl.envs.base import Env
from steprl.envs.checker import CheckReport, check_env
from steprl.errors import ConfigError, StepRLError, TaskError
from steprl.registry import resolve

Result = TypeVar("Result")

_STYLES = {"passed": "green", "warned": "yellow", "failed": "bold red"}


def check(
    name: Annotated[str, typer.Argument(help="Environment: an id or module:attribute.")],
    tasks: Annotated[
        str, typer.Option(help="Task set: what the environment calls it, or a file.", metavar="SOURCE")
    ] = "train",
    args: Annotated[
        str, typer.Option(help="Arguments of the environment as JSON.", metavar="'{JSON}'")
    ] = "{}",
    resets: Annotated[int, typer.Option(help="Short episodes, to see what they leave behind.")] = 500,
    episodes: Annotated[int, typer.Option(help="Episodes of each policy.")] = 20,
    max_steps: Annotated[int, typer.Option(help="Steps after which an episode is cut.")] = 32,
    seed: Annotated[int, typer.Option(help="Draws tasks and random actions.")] = 0,
    deadline: Annotated[float, typer.Option(help="Seconds that a single call may take.")] = 30.0,
) -> None:
    """Play an environment with scripted policies and say what would go wrong in training.

    Exits with 1 when a check failed. docs/checking.md says what each check means and what to do about it.

    Example: steprl env check courier
    """
    env: Any = _told(f"importing '{name}'", lambda: resolve("env", name))
    if not (isinstance(env, type) and issubclass(env, Env)):
        raise ConfigError(f"'{name}' is {env!r}, not a class derived from steprl.Env; only these are checked")
    made = partial(env, **json_object("--args", args))
    with Console(stderr=True).status(Text(f"checking {name}")):
        report = check_env(
            made,
            _told(f"{env.__name__}.tasks({tasks!r})", lambda: env.tasks(tasks)),
            resets=resets,
            episodes=episodes,
            max_steps=max_steps,
            seed=seed,
            deadline=deadline,
        )
    _print(report, Console())
    raise typer.Exit(0 if report.ok else 1)


def _told(what: str, function: Callable[[], Result]) -> Result:
    """What ``function`` returns; what the user's own code raises is told in a line, with its place."""
    try:
        return function()
    except StepRLError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise TaskError(
            f"{what} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def _print(report: CheckReport, console: Console) -> None:
    # as Text, for what an environment says is not markup
    table = Table("check", "", "what was found", title=Text(f"{report.env}: {_verdict(report)}"))
    for found in report.checks:
        table.add_row(Text(found.name), Text(found.status, _STYLES[found.status]), Text(found.detail))
    console.print(table)
    if not report.scores:
        return
    table = Table("policy", "episodes", "mean return", "min", "max", "mean steps", "ended by itself")
    for policy, score in report.scores.items():
        figures = (f"{value:.3g}" for value in (score.mean, score.minimum, score.maximum, score.steps))
        table.add_row(Text(policy), str(score.episodes), *figures, f"{score.ended:.0%}")
    console.print(table)


def _verdict(report: CheckReport) -> str:
    counts = {status: sum(c.status == status for c in report.checks) for status in _STYLES}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)
