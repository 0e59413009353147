"""An episode as a person reads it: what was new to the model, what it sampled, what came of it.

Text of models and tools is shown literally: it is never read as markup, and control characters appear
as escapes, so that no output can move the cursor or hide itself.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.text import Text

from steprl.trajectory.tokens import Decode, common_prefix, step_ids
from steprl.types import EpisodeError, Ints, MalformedCall, Step, ToolCall, Trajectory

_SAMPLED, _ADDED, _CARRIED, _LABEL, _BAD = "bold green", "yellow", "dim", "bold", "bold red"
_MARKS = {_SAMPLED: ("{+", "+}"), _ADDED: ("{~", "~}")}
"""Around sampled tokens and around added, not sampled ones, where there is no colour."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that steer a terminal or cannot be seen."""


def safe(text: str) -> str:
    r"""``text`` with every control or invisible character but newline and tab as an escape (``\x1b``)."""
    return "".join(
        c.encode("unicode_escape").decode() if c not in "\n\t" and unicodedata.category(c) in _HIDDEN else c
        for c in text
    )


def _one_line(text: str) -> str:
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def show_episode(
    trajectory: Trajectory, decode: Decode, console: Console | None = None, *, full: bool = False
) -> None:
    """Print an episode step by step.

    Of each prompt, what the step before did not have is printed, and how much was carried over;
    ``full`` prints the carried part as well. Sampled text has a colour of its own; without colour it
    stands in ``{+ +}``, and text that was added but not sampled (a forced stop tag) in ``{~ ~}``.
    """
    console = console or Console()
    plain = console.color_system is None or console.no_color
    for line in _episode(trajectory, decode, plain=plain, full=full):
        console.print(line, soft_wrap=True)


def summary_lines(trajectory: Trajectory, decode: Decode, *, width: int = 120) -> list[Text]:
    """The episode in brief: a header, then one line per step with the start of what it sampled.

    No line is longer than ``width``. They are rich texts, which a console prints without reading
    markup in them; ``str(line)`` is the plain text.
    """
    lines = [_header(trajectory)]
    for index, step in enumerate(trajectory.steps):
        malformed = sum(isinstance(call, MalformedCall) for call in step.calls)
        calls = f", {len(step.calls)} calls" if step.calls else ""
        line = Text(f"{index:>3} {step.kind:<7} ")
        line.append(f"prompt {len(step.prompt_ids)} (+{len(step.prompt_ids) - _carried(trajectory, index)})")
        line.append(f", action {_sampling_facts(step)}{calls}")
        if malformed:
            line.append(f" ({malformed} malformed)", _BAD)
        line.append(f", reward {_number(step.reward)}: ")
        line.append(_one_line(decode(step.action_ids[step.sampled_mask].tolist())), _SAMPLED)
        lines.append(line)
    if trajectory.error is not None:
        lines.append(_error(trajectory.error))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _episode(trajectory: Trajectory, decode: Decode, *, plain: bool, full: bool) -> Iterator[Text]:
    yield _header(trajectory)
    if plain:
        yield Text("{+sampled by the model+}  {~added, not sampled~}")
    for index, step in enumerate(trajectory.steps):
        yield Text(
            f"\n── step {index}, {step.kind} of {_one_line(step.agent)}, {_versions(step.policy_versions)}",
            _LABEL,
        )
        yield from _prompt(trajectory, index, decode, full=full)
        yield _labelled("action", _sampling_facts(step))
        yield _action(step, decode, plain=plain)
        yield from (_call(call) for call in step.calls)
        for message in step.feedback:
            name = f" {message.name}" if message.name else ""
            yield _labelled("feedback", safe(f"{message.role}{name}: {message.content}"))
        yield _labelled("reward", f"{_number(step.reward)}{_components(step.rewards)}")
    yield Text(f"\n── stopped: {trajectory.stop_reason.value}", _LABEL)
    if trajectory.error is not None:
        yield _error(trajectory.error)
        yield Text(safe(trajectory.error.traceback), _CARRIED)


def _header(trajectory: Trajectory) -> Text:
    versions = [step.policy_versions for step in trajectory.steps]
    line = Text(f"episode {_one_line(trajectory.uid)}", _LABEL)
    line.append(
        f" of group {_one_line(trajectory.group_uid)}, task {_one_line(trajectory.task_id)}, "
        f"seed {trajectory.seed}, "
        f"{_versions(np.concatenate(versions) if versions else np.empty(0, np.int32))}, "
        f"{len(trajectory.steps)} steps, reward {_number(trajectory.reward)}, "
        f"{trajectory.stop_reason.value}",
        "not bold",
    )
    return line


def _prompt(trajectory: Trajectory, index: int, decode: Decode, *, full: bool) -> Iterator[Text]:
    prompt = trajectory.steps[index].prompt_ids
    carried = _carried(trajectory, index)
    facts = f"{len(prompt)} tokens, {len(prompt) - carried} new"
    if index and carried < len(_before(trajectory, index)):
        facts += f"; the context was rewritten after token {carried}"
    yield _labelled("prompt", facts)
    shown = Text()
    if full:
        shown.append(safe(decode(prompt[:carried].tolist())), _CARRIED)
    elif carried:
        shown.append(f"[{carried} tokens as before]", _CARRIED)
    shown.append(safe(decode(prompt[carried:].tolist())))
    yield shown


def _before(trajectory: Trajectory, index: int) -> Ints:
    """The tokens that the prompt of a step continues: of its parent, or else of the step before it."""
    parent = trajectory.steps[index].parent
    return step_ids(trajectory.steps[index - 1 if parent is None else parent])


def _carried(trajectory: Trajectory, index: int) -> int:
    """How many leading tokens of a step's prompt were there before."""
    if index == 0:
        return 0
    return common_prefix(trajectory.steps[index].prompt_ids, _before(trajectory, index))


def _action(step: Step, decode: Decode, *, plain: bool) -> Text:
    text = Text()
    tokens = zip(step.action_ids.tolist(), step.sampled_mask.tolist(), strict=True)
    for sampled, run in groupby(tokens, key=lambda token: token[1]):
        style = _SAMPLED if sampled else _ADDED
        before, after = _MARKS[style] if plain else ("", "")
        text.append(f"{before}{safe(decode([token for token, _ in run]))}{after}", style)
    return text


def _sampling_facts(step: Step) -> str:
    sampled = step.sampled_mask
    facts = f"{len(sampled)} tokens" if sampled.all() else f"{sampled.sum()} of {len(sampled)} tokens sampled"
    if step.logprobs is None:
        facts += ", no logprobs"
    elif sampled.any():
        facts += f", logprob {step.logprobs[sampled].mean(dtype=np.float64):.3f}"
    return f"{facts}, {step.finish}"


def _call(call: ToolCall | MalformedCall) -> Text:
    if isinstance(call, MalformedCall):
        line = _labelled("malformed", safe(call.reason))
        line.stylize(_BAD)
        return line.append(f": {safe(call.raw)}")
    return _labelled("call", safe(f"{call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})"))


def _components(rewards: Mapping[str, float]) -> str:
    if not rewards:
        return ""
    return safe(" = " + ", ".join(f"{name} {_number(value)}" for name, value in rewards.items()))


def _error(error: EpisodeError) -> Text:
    return _labelled("error", _one_line(f"{error.kind}: {error.message}"))


def _labelled(label: str, rest: str) -> Text:
    return Text().append(f"{label:<9} ", _LABEL).append(rest)


def _versions(policy_versions: Ints) -> str:
    if len(policy_versions) == 0:
        return "no policy"
    low, high = policy_versions.min(), policy_versions.max()
    return f"policy {low}" if low == high else f"policy {low}-{high}"


def _number(value: float | None) -> str:
    return "not scored" if value is None else f"{value:g}"
