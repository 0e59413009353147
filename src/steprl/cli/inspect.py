"""Commands that look at things: episodes of a run, environments, tools."""

from __future__ import annotations

import asyncio
import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steprl.errors import ConfigError, unknown
from steprl.registry import addresses, resolve
from steprl.tools import Tool

env_app = typer.Typer(help="Environments. Example: steprl env list", no_args_is_help=True)
tool_app = typer.Typer(help="Tools. Example: steprl tool list", no_args_is_help=True)


def show(
    run: Annotated[Path, typer.Argument(help="Run folder, or a .parquet file with trajectories.")],
    episode: Annotated[str | None, typer.Option(help="uid of an episode; the last one otherwise.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Take the episodes of this iteration.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer to use, if not the run's own.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the episodes, a line each.")] = False,
) -> None:
    """Print an episode step by step, sampled tokens apart from the rest.

    Example: steprl show runs/quickstart --iteration 3
    """
    from steprl.config import read_toml
    from steprl.renderers import load_tokenizer
    from steprl.trainers.parts import model_path
    from steprl.trajectory.store import files, read
    from steprl.trajectory.view import show_episode

    if not run.exists():
        raise ConfigError(f"there is no run folder or file '{run}'")
    console = Console()
    found = files(run) if run.is_dir() else [run]
    if iteration is not None:
        found = [file for file in found if file.name.startswith(f"{iteration:06d}-")]
    if not found or not found[0].exists():
        raise ConfigError(
            f"'{run}' holds no trajectories" + (f" of iteration {iteration}" if iteration is not None else "")
        )
    wanted = found if listing else _holding(episode, found) if episode is not None else found[-1:]
    trajectories = [t for file in wanted for group in read(file) for t in group.trajectories]
    if wanted != found and episode is not None and episode not in {t.uid for t in trajectories}:
        trajectories = [t for file in found for group in read(file) for t in group.trajectories]
    if listing:
        table = Table("uid", "task", "steps", "reward", "stopped")
        for t in trajectories:
            reward = "none" if t.reward is None else f"{t.reward:.3f}"
            # as Text, for what others wrote is not markup
            table.add_row(Text(t.uid), Text(t.task_id), str(len(t.steps)), reward, t.stop_reason.value)
        console.print(table)
        return
    if episode is not None:
        by_uid = {t.uid: t for t in trajectories}
        if episode not in by_uid:
            near = get_close_matches(episode, by_uid)  # not all of them: a run has thousands
            raise ConfigError(unknown("episode", episode, near, hint=f"See: steprl show {run} --list"))
        trajectory = by_uid[episode]
    else:
        trajectory = trajectories[-1]
    if model is None:
        config = run / "config.toml"
        if not config.is_file():
            raise ConfigError(f"'{run}' does not say which model its tokens belong to; give --model PATH")
        model = read_toml(config)["model"]["path"]
    show_episode(trajectory, load_tokenizer(model_path(model)).decode, console)


def _holding(episode: str, found: list[Path]) -> list[Path]:
    """The file that an episode's uid speaks of ("train-12-3.4"), where it is there; else all of them."""
    named = re.match(r"(train|eval)-([0-9]+)-", episode)
    likely = f"{int(named[2]):06d}-{named[1]}.parquet" if named else ""
    return [file for file in found if file.name == likely] or found


@env_app.command("list")
def list_envs() -> None:
    """Every environment that a recipe can name, with its tools and what it is.

    Example: steprl env list
    """
    table = Table("id", "tools", "what it is", "address")
    for name, address in addresses("env").items():
        env: Any = resolve("env", name)
        chosen = isinstance(env.tools, property)  # by each instance
        tools = "depends on the task" if chosen else ", ".join(tool.name for tool in env.tools)
        described = (env.__doc__ or "").strip().split("\n")[0]
        table.add_row(*map(Text, (name, tools, described, address)))
    Console().print(table)


@tool_app.command("list")
def list_tools() -> None:
    """Every tool that is registered, with what the model is told about it.

    Example: steprl tool list
    """
    table = Table("name", "arguments", "description")
    for name in addresses("tool"):
        tool: Any = resolve("tool", name)
        arguments = ", ".join(tool.spec.parameters.get("properties", {}))
        table.add_row(*map(Text, (name, arguments, tool.description)))
    Console().print(table)


@tool_app.command("call")
def call_tool(
    name: Annotated[str, typer.Argument(help="Tool: a registered name or module:attribute.")],
    arguments: Annotated[str, typer.Argument(help="Arguments as JSON.", metavar="'{JSON}'")] = "{}",
) -> None:
    """Call a tool as an agent would, and print what the agent would read.

    Example: steprl tool call calculator '{"expression": "2*(3+4)"}'
    """
    tool: Any = resolve("tool", name)
    if not isinstance(tool, Tool):
        raise ConfigError(f"'{name}' is {tool!r}, not a tool. Decorate it with @tool.")
    try:
        values = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the arguments are not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"the arguments must be a JSON object, got {arguments}")
    print(asyncio.run(tool.run(values)))
