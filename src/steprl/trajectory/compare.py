"""An episode as it was recorded beside the same actions played again: where the two first differ.

The actions are the same, token for token; so whatever differs is the environment's doing, or that of
whatever turns its answers into prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steprl.trajectory.tokens import Decode, common_prefix
from steprl.types import Ints, MalformedCall, Message, Step, ToolCall, Trajectory

_TOKENS = 12
"""Tokens shown before and after the first one that differs."""
_CHARACTERS = 60
"""The same for text."""

_Pair = tuple[str, str, str]
"""What differs, as recorded, and now: texts for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing in which an episode that was played again was not as recorded.

    ``step`` is None where none had begun. ``field`` names the thing; ``recorded`` and ``now`` show it, of
    long ones the part around the first token or character that differs.
    """

    episode: str
    step: int | None
    field: str
    recorded: str
    now: str


def first_difference(recorded: Trajectory, now: Trajectory, decode: Decode) -> Difference | None:
    """The first difference, in the order in which things happened; None when all is as it was.

    Compared are prompts, tool calls as read, feedback, anchors, reward components and rewards of every step
    (a broken episode has none), how and with which error the episode ended, and its final prompt. Where
    playing again ended at a prompt that is not the recorded one, ``now.final_prompt_ids`` is that prompt.
    """
    for step, (field, then, again) in _differences(recorded, now, decode):
        return Difference(episode=recorded.uid, step=step, field=field, recorded=then, now=again)
    return None


def _differences(recorded: Trajectory, now: Trajectory, decode: Decode) -> Iterator[tuple[int | None, _Pair]]:
    # what broke has no answer to its last action, and no rewards; how it ended says so
    unanswered = {len(t.steps) - 1 for t in (recorded, now) if _broke(t)}
    scored = recorded.stop_reason.trains and now.stop_reason.trains
    for index, (then, again) in enumerate(zip(recorded.steps, now.steps, strict=False)):
        yield from ((index, pair) for pair in _asked_pairs(then, again, decode))
        if index not in unanswered:
            yield from ((index, pair) for pair in _answer_pairs(then, again, scored=scored))
    reached = len(now.steps)
    asked = now.final_prompt_ids
    if now.error is not None and now.error.kind == "Diverged" and asked is not None:
        yield reached, ("prompt", *_around_token(recorded.steps[reached].prompt_ids, asked, decode))
    yield from ((reached - 1 if reached else None, pair) for pair in _end_pairs(recorded, now, decode))


def _broke(trajectory: Trajectory) -> bool:
    """Whether it was the environment's answer that was not to be had."""
    return trajectory.error is not None and trajectory.error.kind not in ("Diverged", "EngineError")


def _asked_pairs(then: Step, again: Step, decode: Decode) -> Iterator[_Pair]:
    if not np.array_equal(then.prompt_ids, again.prompt_ids):
        yield ("prompt", *_around_token(then.prompt_ids, again.prompt_ids, decode))
    if then.calls != again.calls:
        yield ("tool calls", *_around_character(_calls(then.calls), _calls(again.calls)))


def _answer_pairs(then: Step, again: Step, *, scored: bool) -> Iterator[_Pair]:
    if then.feedback != again.feedback:
        yield ("feedback", *_around_character(_messages(then.feedback), _messages(again.feedback)))
    if then.anchor != again.anchor:
        yield ("anchor", *_around_character(str(then.anchor), str(again.anchor)))
    if scored and dict(then.rewards) != dict(again.rewards):
        yield ("reward components", _components(then.rewards), _components(again.rewards))
    if scored and then.reward != again.reward:
        yield ("reward", str(then.reward), str(again.reward))


def _end_pairs(recorded: Trajectory, now: Trajectory, decode: Decode) -> Iterator[_Pair]:
    ended, ends = _end(recorded), _end(now)
    if ended != ends:
        yield ("end", ended, ends)
    final, finally_now = recorded.final_prompt_ids, now.final_prompt_ids
    if final is not None and finally_now is not None and not np.array_equal(final, finally_now):
        yield ("final prompt", *_around_token(final, finally_now, decode))


def _around_token(then: Ints, again: Ints, decode: Decode) -> tuple[str, str]:
    """Both prompts around the first token that differs, decoded, with the token's place."""
    at = common_prefix(then, again)
    before = decode(then[max(0, at - _TOKENS) : at].tolist())

    def shown(ids: Ints) -> str:
        if at == len(ids):
            return f"ends after token {at - 1}: {before!r}"
        return f"token {at} of {len(ids)}: {before!r}, then {decode(ids[at : at + _TOKENS].tolist())!r}"

    return shown(then), shown(again)


def _around_character(then: str, again: str) -> tuple[str, str]:
    """Both texts around the first character that differs."""
    pairs = enumerate(zip(then, again, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(then), len(again)))
    start = max(0, at - _CHARACTERS)

    def shown(text: str) -> str:
        end = at + _CHARACTERS
        return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"

    return shown(then), shown(again)


def _messages(messages: Sequence[Message]) -> str:
    told = (
        " ".join(filter(None, (message.role, message.name, message.tool_call_id, message.mark)))
        + f": {message.content}"
        for message in messages
    )
    return "\n".join(told) or "none"


def _calls(calls: Sequence[ToolCall | MalformedCall]) -> str:
    return "\n".join(map(str, calls)) or "none"


def _components(rewards: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(rewards.items())) or "none"


def _end(trajectory: Trajectory) -> str:
    ended = f"{trajectory.stop_reason.value} after {len(trajectory.steps)} steps"
    error = trajectory.error
    return ended if error is None else f"{ended}, {error.kind}: {error.message}"
