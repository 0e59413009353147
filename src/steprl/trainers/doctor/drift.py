"""What happens between two steps: whether the next prompt extends the last one, and if not, what kept it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Literal

from steprl.renderers import ChatRenderer, extends
from steprl.trainers.doctor.play import Play
from steprl.types import Message

Drift = Literal[
    "none", "context rule", "template", "stripping: thinking", "stripping: white space", "retokenisation"
]
"""What makes the whole conversation, rendered and tokenised anew, differ from prompt and action as they were:
the rule left messages out or rewrote them; the template writes other text; it leaves out thoughts or white
space; or the text is the same and its ids are not."""

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Between two actions of a conversation.

    ``incremental``: the text of the next prompt, rendered as a whole, begins with that of the last one and
    the action. ``extends``: the ids of the next prompt, as it was given, begin with those of the last one and
    of the action as sampled, so that the steps can share a row.
    """

    after: int
    incremental: bool
    extends: bool
    drift: Drift


def boundaries(play: Play, renderer: ChatRenderer) -> tuple[Boundary, ...]:
    """Every boundary of a conversation, in order."""
    found: list[Boundary] = []
    acts = play.acts
    for number in range(len(acts) - 1):
        step, following = (play.trajectory.steps[index] for index in acts[number : number + 2])
        shown, later = play.shown[number], play.shown[number + 1]
        before = renderer.text(shown, play.tools) + renderer.decode(step.action_ids.tolist())
        after = renderer.text(later, play.tools)
        found.append(
            Boundary(
                after=number,
                incremental=after.startswith(before),
                extends=extends(step.prompt_ids, step.action_ids, following.prompt_ids),
                drift=_drift(play, renderer, number, before, after),
            )
        )
    return tuple(found)


def _drift(play: Play, renderer: ChatRenderer, number: int, before: str, after: str) -> Drift:
    step = play.trajectory.steps[play.acts[number]]
    shown, later = play.shown[number], play.shown[number + 1]
    if not _kept(shown, later, tuple(step.action_ids.tolist())):
        return "context rule"
    if after.startswith(before):
        whole = renderer.render([replace(message, token_ids=None) for message in later], play.tools)
        return "none" if extends(step.prompt_ids, step.action_ids, whole) else "retokenisation"
    if _bare(after).startswith(_bare(before)):
        at = len(commonprefix([before, after]))
        return "stripping: white space" if before[at].isspace() else "template"
    if _bare(_THOUGHT.sub("", after)).startswith(_bare(_THOUGHT.sub("", before))):
        return "stripping: thinking"
    return "template"


def _kept(shown: Sequence[Message], later: Sequence[Message], action: tuple[int, ...]) -> bool:
    """Whether the rule showed the same messages again, and the action behind them."""
    known = len(shown)
    return len(later) > known and tuple(later[:known]) == tuple(shown) and later[known].token_ids == action


def _bare(text: str) -> str:
    return _BLANK.sub("", text)
