"""The three records of one conversation: its messages, one growing token string, and its steps.

The first two are what a trainer sees that stores text, or tokens without what each step was given. They read
control tokens wherever these are spelled, as a tokenizer does that is handed a template's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from steprl.errors import ConfigError
from steprl.renderers import ChatRenderer
from steprl.renderers.spans import TokenSpans
from steprl.trainers.doctor.play import Play
from steprl.types import Message

TraceName = Literal["message", "token", "step"]
Ids = tuple[int, ...]

_MARK = "@@steprl-doctor-{}@@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An action as a trace has it: the ids before it, and its own."""

    context: Ids
    action: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Every action of a conversation (None: it is not in the trace, or nobody can say where), and how many
    control tokens are in the trace that a text only spelled."""

    actions: tuple[Placed | None, ...]
    forged: int = 0


def sampled_actions(play: Play) -> tuple[Placed, ...]:
    """What was given and what was sampled, as recorded: the step trace."""
    steps = [play.trajectory.steps[index] for index in play.acts]
    return tuple(
        Placed(context=tuple(step.prompt_ids.tolist()), action=tuple(step.action_ids.tolist()))
        for step in steps
    )


def token_trace(play: Play, renderer: ChatRenderer) -> Trace:
    """The first prompt, then each action as sampled and what the template writes from there to the next one,
    tokenised by itself."""
    sampled = sampled_actions(play)
    string = sampled[0].context
    placed: list[Placed] = []
    forged = 0
    for action, feedback in zip((one.action for one in sampled), _rounds(play), strict=True):
        placed.append(Placed(context=string, action=action))
        if feedback:
            between, spelled = _between(renderer, action, feedback)
            string += action + between
            forged += spelled
    return Trace(actions=tuple(placed), forged=forged)


def message_trace(play: Play, renderer: ChatRenderer) -> Trace:
    """The conversation rendered and tokenised as a whole, with actions where the template puts them."""
    sampled = sampled_actions(play)
    lost = (None,) * len(sampled)
    messages = [replace(message, token_ids=None) for message in play.said]
    try:
        text = renderer.text(messages, play.tools)
        parts = _parts(renderer, messages, play)
    except ConfigError:
        return Trace(actions=lost)  # the template refuses the whole of it
    ids = renderer.encode(text)
    forged = _control(renderer, ids) - _control(renderer, renderer.render(messages, play.tools))
    if parts is None or renderer.decode(ids) != text:
        return Trace(actions=lost, forged=forged)
    spans = TokenSpans(renderer.decode, ids, text)
    placed: list[Placed | None] = []
    for one, part in zip(sampled, _written(text, parts), strict=True):
        if part is None:
            placed.append(None)
            continue
        start, end = spans.span(*part)
        ends = one.action[-1:] and one.action[-1] in renderer.stop_ids
        if ends and ids[end : end + 1] and ids[end] in renderer.stop_ids:
            end += 1
        placed.append(Placed(context=ids[:start], action=ids[start:end]))
    return Trace(actions=tuple(placed), forged=forged)


def _control(renderer: ChatRenderer, ids: Sequence[int]) -> int:
    control = {*renderer.control_ids.values()}
    return sum(i in control for i in ids)


def _rounds(play: Play) -> list[list[Message]]:
    """The messages after each action."""
    rounds: list[list[Message]] = []
    for message in play.said:
        if message.role == "assistant":
            rounds.append([])
        elif rounds:
            rounds[-1].append(message)
    return rounds


def _between(renderer: ChatRenderer, action: Ids, feedback: Sequence[Message]) -> tuple[Ids, int]:
    """Ids from the end of an action to the next one, and how many are control tokens that a text spelled."""
    mark = _MARK.format("action")
    messages = (Message(role="user", content="?"), Message(role="assistant", content=mark), *feedback)
    whole = renderer.text(messages)
    forged = _control(renderer, renderer.encode(whole)) - _control(renderer, renderer.render(messages))
    text = whole.partition(mark)[2]
    if action and action[-1] in renderer.stop_ids:
        stripped = renderer.encode(text.lstrip())
        if stripped[:1] == action[-1:]:
            return stripped[1:], forged
    return renderer.encode(text), forged


def _parts(renderer: ChatRenderer, messages: Sequence[Message], play: Play) -> list[str] | None:
    """What the template writes around the actions; None when it does not write them all, or not in order."""
    marked: list[Message] = []
    marks: list[str] = []
    for message in messages:
        if message.role == "assistant":
            marks.append(_MARK.format(len(marks)))
            message = replace(message, content=marks[-1])
        marked.append(message)
    text = renderer.text(marked, play.tools)
    parts = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            return None
        parts.append(before)
    return [*parts, text]


def _written(text: str, parts: Sequence[str]) -> list[tuple[int, int] | None]:
    """Where each action stands in the text, by what stands around it."""
    found: list[tuple[int, int] | None] = []
    at = 0
    for before, after in zip(parts[:-1], parts[1:], strict=True):
        start = text.find(before, at)
        end = -1 if start < 0 else text.find(after, start + len(before))
        if end < 0:
            found.append(None)
            continue
        at = end
        found.append((start + len(before), end))
    return found
