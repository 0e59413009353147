"""`steprl doctor`: what tokenizer, template, format and context rule do to the tokens that are trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steprl.cli.json_object import json_object

if TYPE_CHECKING:
    from steprl.trainers.doctor.compare import Shift, TraceReport
    from steprl.trainers.doctor.doctor import Diagnosis, Examined


def doctor(
    model: Annotated[
        str,
        typer.Option(help="Folder with a tokenizer, with or without weights; or a hub id.", metavar="MODEL"),
    ] = "quickstart",
    format: Annotated[str, typer.Option(help="Tool-call format.", metavar="ID")] = "hermes",
    format_args: Annotated[str, typer.Option(help="Options of the format.", metavar="JSON")] = "{}",
    context: Annotated[str, typer.Option(help="Context rule.", metavar="ID")] = "append_only",
    context_args: Annotated[str, typer.Option(help="Options of the rule.", metavar="JSON")] = "{}",
    chat_template: Annotated[
        Path | None, typer.Option(help="Jinja file in place of the tokenizer's template.", metavar="FILE")
    ] = None,
    template_options: Annotated[str, typer.Option(help="Variables of the template.", metavar="JSON")] = "{}",
    allow_control_tokens: Annotated[
        bool, typer.Option(help="Read control tokens that a message spells as control tokens.")
    ] = False,
    scores: Annotated[bool, typer.Option(help="Compute log-probabilities, if there are weights.")] = True,
    out: Annotated[Path | None, typer.Option("--json", help="Write all of it there.", metavar="FILE")] = None,
) -> None:
    """Play scripted conversations and say what would be trained, and what other traces would make of them.

    Exits with 1 when a token would be trained otherwise than it was sampled. Drift of traces that steprl does
    not use is a finding and no error. docs/doctor.md explains every column.

    Example: steprl doctor --model quickstart --context sliding_window --context-args '{"rounds": 1}'
    """
    from steprl.trainers.doctor.doctor import as_json, examine
    from steprl.trainers.progress import Display

    diagnosis = examine(
        model,
        format=format,
        format_args=json_object("--format-args", format_args),
        context=context,
        context_args=json_object("--context-args", context_args),
        chat_template=chat_template,
        template_options=json_object("--template-options", template_options),
        allow_control_tokens=allow_control_tokens,
        scores=scores,
        display=Display(Console(stderr=True)),
    )
    if out is not None:
        out.write_text(json.dumps(as_json(diagnosis), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    show(diagnosis, Console())
    raise typer.Exit(1 if diagnosis.found.wrong else 0)


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print a diagnosis: conversations, traces, and what it comes to."""
    found = diagnosis.found
    table = Table(
        "conversation", "steps", "whole = parts", "extends", "rows", "drift",
        title=Text(f"{diagnosis.model}: format {diagnosis.format}, context {diagnosis.context}"),
    )  # fmt: skip
    for one in found.conversations:
        table.add_row(*map(Text, _conversation(one)))
    console.print(table)
    reasons = {one.refused: one.name for one in reversed(found.conversations) if one.refused}
    for reason, name in reasons.items():
        _say(console, f"  refused ({name}): {reason}")
    console.print(_traces(found.traces))
    for line in _told(diagnosis):
        _say(console, line)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _conversation(one: Examined) -> tuple[str, ...]:
    if one.refused:
        return one.name, "", "", "", "", "refused"
    total = len(one.boundaries)
    whole, extending = (
        f"{count} of {total}"
        for count in (sum(b.incremental for b in one.boundaries), sum(b.extends for b in one.boundaries))
    )
    kinds = dict.fromkeys(b.drift for b in one.boundaries if b.drift != "none")
    return one.name, str(one.steps), whole, extending, str(one.rows), ", ".join(kinds) or "none"


def _traces(traces: tuple[TraceReport, ...]) -> Table:
    """A figure a row, a trace a column."""
    table = Table("what it would train", *(trace.name for trace in traces), title="traces")

    def figure(name: str, say: Callable[[TraceReport], str]) -> None:
        table.add_row(name, *map(say, traces))

    figure("sampled ids that changed", lambda t: f"{t.changed} of {t.sampled} ({t.changed_share:.1%})")
    figure("actions that are lost", lambda t: f"{t.lost} of {t.actions}")
    figure("actions whose boundaries moved", lambda t: str(t.shifted))
    figure("actions in another context", lambda t: str(t.actions - t.lost - t.in_context))
    figure("control tokens that a text forged", lambda t: str(t.forged))
    figure("actions that are exact", lambda t: f"{t.exact} of {t.actions}")
    if any(trace.shift for trace in traces):
        figure("|Δ log-prob| of a token: mean, max", lambda t: _delta(t.shift, "token"))
        figure("|Δ log-prob| of an action: mean, max", lambda t: _delta(t.shift, "action"))
    return table


def _delta(shift: Shift | None, unit: Literal["token", "action"]) -> str:
    if shift is None:
        return ""
    mean, most = (
        (shift.token_mean, shift.token_max) if unit == "token" else (shift.action_mean, shift.action_max)
    )
    return f"{mean:.3f}, {most:.1f}"


def _told(diagnosis: Diagnosis) -> list[str]:
    found = diagnosis.found
    played = [one for one in found.conversations if not one.refused]
    steps, rows = sum(one.steps for one in played), sum(one.rows for one in played)
    lines = [f"merging: {steps} steps in {rows} rows; every boundary that extends saves one"]
    if diagnosis.unscored:
        lines.append(f"log-probabilities are left out: {diagnosis.unscored}")
    if not found.turns_end_in_control:
        lines.append("! the template marks turns with ordinary text, so that any text can forge a turn")
    if found.ordinary:
        lines.append(f"ordinary tokens, which any text can spell: {' '.join(found.ordinary)}")
    if diagnosis.allow_control_tokens:
        lines.append("! control tokens that a message spells are read as control tokens, as was asked for")
    if found.wrong:
        lines += ["WRONG: tokens would be trained otherwise than they were sampled", *found.wrong]
    elif not played:
        lines.append("! nothing could be played: see above for what refuses it")
    else:
        lines.append("exact: every sampled token is trained once, in the context it was sampled in")
    return lines
