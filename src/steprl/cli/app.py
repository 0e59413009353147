"""`steprl`: train, evaluate, roll out, and look at what happened."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steprl.cli.check import check
from steprl.cli.compare import compare_app
from steprl.cli.doctor import doctor
from steprl.cli.evaluating import difference, evaluate
from steprl.cli.explain import explain
from steprl.cli.inspect import env_app, show, tool_app
from steprl.cli.plan import plan
from steprl.cli.policy import policy_app
from steprl.cli.replay import replay
from steprl.cli.saving import SaveFile
from steprl.cli.several import TwoWords, taking_several
from steprl.errors import StepRLError

app = typer.Typer(
    name="steprl",
    cls=TwoWords,
    help="Step-level reinforcement learning for LLM agents.\n\n"
    "A recipe is a TOML file; any of its options can be set on the command line as key=value, for example "
    "learner.lr=1e-4. Start with: steprl train recipes/quickstart.toml",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(env_app, name="env")
env_app.command("check")(check)
app.add_typer(tool_app, name="tool")
app.add_typer(policy_app, name="policy")
app.add_typer(compare_app, name="compare")
app.command("eval")(evaluate)
app.command("eval diff")(difference)
app.command()(show)
app.command()(doctor)
app.command()(plan)
app.command()(replay)
app.command(cls=taking_several("--estimators"))(explain)

RecipeFile = Annotated[Path, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")]


Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options of the recipe, such as learner.lr=1e-4.", metavar="[KEY=VALUE]..."),
]


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")] = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this folder.", metavar="RUN")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a run folder of the same name.")] = False,
) -> None:
    """Train a policy, evaluate it before and after.

    Writes runs/<name>: the resolved config, metrics (also for TensorBoard), every trajectory with its
    tokens, checkpoints, summary.json and curves.png. Ctrl-C saves; --resume RUN continues.

    Example: steprl train recipes/quickstart.toml name=first learner.lr=1e-4
    """
    from steprl.trainers import api
    from steprl.trainers.storage.run_folder import RunFolder

    if resume is not None:
        if recipe is not None or overwrite:
            raise typer.BadParameter(
                "--resume takes the recipe from the run folder; give no recipe beside it"
            )
        _, settings = RunFolder.open(resume)
    elif recipe is None:
        raise typer.BadParameter("give a recipe, for example recipes/quickstart.toml, or --resume RUN")
    else:
        settings = api.load_recipe(recipe, overrides or [])
    summary = api.run(settings, resume=resume, overwrite=overwrite)
    _print_summary(summary)


@app.command()
def rollout(
    recipe: RecipeFile,
    overrides: Overrides = None,
    save: SaveFile = None,
) -> None:
    """Play the tasks of one iteration without training, and show the first episode.

    Example: steprl rollout recipes/quickstart.toml rollout.groups=1 --save episodes.parquet
    """
    from steprl.renderers import load_tokenizer
    from steprl.trainers import api
    from steprl.trainers.parts import model_path
    from steprl.trajectory.statistics import batch_statistics
    from steprl.trajectory.store import write
    from steprl.trajectory.view import show_episode

    settings = api.load_recipe(recipe, overrides or [])
    groups = api.play(settings)
    console = Console()
    tokenizer = load_tokenizer(model_path(settings.model.path))
    show_episode(groups[0].trajectories[0], tokenizer.decode, console)
    if save is not None:
        write(save, groups, iteration=0)
    table = Table("figure", "value", title=f"{len(groups)} groups of {settings.rollout.group_size}")
    for name, value in batch_statistics(groups).items():
        table.add_row(Text(name), f"{value:.4g}")
    console.print(table)


def _print_summary(summary: dict[str, object]) -> None:
    table = Table("figure", "value", title="summary")
    for name, value in summary.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else Text(str(value)))
    Console().print(table)


def main() -> None:
    """Entry point: errors that steprl raises on purpose are one message, without a traceback."""
    sys.path.insert(0, "")  # module:attribute finds what lies in the current folder, as with python -m
    try:
        app()
    except StepRLError as error:
        Console(stderr=True).print(
            f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        sys.exit(130 if type(error).__name__ == "Interrupted" else 1)
