"""`steprl replay`: what a run recorded, played and scored again, and where it first differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from steprl.trainers.gap import TokenGap
    from steprl.trainers.replay import EnvironmentSide, ModelSide


def replay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    iteration: Annotated[
        int | None, typer.Option(help="Only the episodes of this iteration, its evaluation included.")
    ] = None,
    episode: Annotated[str | None, typer.Option(help="Only the episode of this uid.", metavar="UID")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the last so many episodes.", metavar="N")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Model folder to score with; 'none': the model the run started from. Left out: the newest "
            "checkpoint.",
            metavar="PATH",
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Point out the first log-probability that differs by more.")
    ] = 1e-3,
    env: Annotated[bool, typer.Option(help="Play the recorded actions in fresh environments.")] = True,
    model: Annotated[bool, typer.Option(help="Score the recorded tokens under the checkpoint.")] = True,
) -> None:
    """Play and score again what a run recorded, and show the first difference.

    The environment side takes the recorded actions with the recorded seeds and compares prompts, feedback,
    anchors, rewards and how each episode ended; where something differs, the exit code is 1. The model side
    compares the log-probabilities of the engine with those of a checkpoint.

    Example: steprl replay runs/quickstart --iteration 3 --limit 8
    """
    from steprl.trainers.progress import Display
    from steprl.trainers.replay import replay as again

    report = again(
        run,
        iteration=iteration,
        episode=episode,
        limit=limit,
        environment=env,
        model=model,
        checkpoint=checkpoint,
        tolerance=tolerance,
        display=Display(Console(stderr=True)),
    )
    console = Console()
    if report.environment is not None:
        _print(console, _environment_lines(report.environment))
    if report.model is not None:
        _print_model_side(console, report.model)
    if report.environment is not None and not report.environment.same:
        raise typer.Exit(1)


def _print(console: Console, lines: Iterator[str]) -> None:
    from steprl.trajectory.view import safe

    for line in lines:
        console.print(safe(line), markup=False, highlight=False, soft_wrap=True)


def _environment_lines(side: EnvironmentSide) -> Iterator[str]:
    played = side.equal + side.different
    yield f"environment: {played} episodes played again, {side.equal} equal, {side.different} different"
    if side.skipped:
        yield f"  {side.skipped} skipped: ended by a deadline, an abort or an error (--episode UID plays one)"
    for uids, what in ((side.gone, "is gone"), (side.changed, "has changed")):
        if uids:
            rest = "" if len(uids) == 1 else f" and {len(uids) - 1} more"
            yield f"  the task of {uids[0]}{rest} {what}: not played"
    if side.first is not None:
        first = side.first
        where = "before its first step" if first.step is None else f"step {first.step}"
        yield f"  first difference: episode {first.episode}, {where}, {first.field}"
        for name, text in (("recorded", first.recorded), ("now", first.now)):
            yield f"    {name:<8}  " + text.replace("\n", "\n" + " " * 14)


def _print_model_side(console: Console, side: ModelSide) -> None:
    holds = "of no known policy version" if side.version is None else f"policy version {side.version}"
    _print(console, iter([f"model: |log-probability now - recorded| under {side.checkpoint}, {holds}"]))
    table = Table("policy version", "tokens", "mean", "p99", "max")
    for found in side.versions:
        mark = " (the checkpoint's)" if found.version == side.version else ""
        sizes = (found.mean, found.p99, found.largest.size)
        table.add_row(f"{found.version}{mark}", f"{found.tokens:,}", *(f"{size:.1e}" for size in sizes))
    console.print(table)
    _print(console, _model_lines(side))


def _model_lines(side: ModelSide) -> Iterator[str]:
    if side.left_out:
        yield f"  {side.left_out:,} tokens have no recorded log-probability to compare with"
    if len(side.versions) > (side.gap is not None):
        yield "  tokens of other policy versions come from other weights, and differ for that reason too"
    if side.gap is None:
        yield "  the checkpoint's own version sampled none of these tokens: nothing here measures the engine"
        return
    yield f"  largest: {_token(side.gap.largest)}"
    if side.gap.first is None:
        yield f"  no token of version {side.gap.version} is above {side.tolerance:g}"
    else:
        yield f"  first above {side.tolerance:g}: {_token(side.gap.first)}"


def _token(gap: TokenGap) -> str:
    return (
        f"episode {gap.episode}, step {gap.step}, action token {gap.position}: {gap.token!r} after "
        f"{gap.before!r}, recorded {gap.recorded:.6f}, now {gap.computed:.6f}"
    )
