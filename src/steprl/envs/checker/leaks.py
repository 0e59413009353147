"""Does the agent read what it must find out? Looks for the answer and for anchors in what it is shown.

A text can hold an answer for good reasons (a choice of two, a passage to read), so own answers are compared
with those of other tasks, and only an answer that always stands in the same place is called a leak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from steprl.envs.checker.episodes import Episode, composed, whole
from steprl.envs.checker.lab import Broken, Instance, Lab
from steprl.envs.checker.report import Check, failed, passed, warned
from steprl.types import Message, Task

_CERTAIN, _CHANCE, _ABOVE_CHANCE = 0.9, 0.5, 0.3
_FEWEST = 5
"""Tasks from which on the same place in all of them is no accident."""
_OTHERS = 20
"""Answers of other tasks that each opening is compared with."""
_AROUND = 12
"""Characters before and after an answer that say where it stands."""


class _Opening(NamedTuple):
    task: Task
    text: str


def answer_leak(lab: Lab, tasks: Sequence[Task], seed: int) -> Check:
    """Whether the openings give the answers away."""
    openings = _openings(lab, [task for task in tasks if _answers(task)], seed)
    if not openings:
        return passed("answer_leak", "no task has an answer that is text or a number")
    answers = [_answers(opening.task) for opening in openings]
    own = _share(_stands(found, opening.text) for found, opening in zip(answers, openings, strict=True))
    pairs = [
        _stands(answers[(index + step) % len(openings)], opening.text)
        for index, opening in enumerate(openings)
        for step in range(1, min(len(openings), _OTHERS + 1))
        if not set(answers[(index + step) % len(openings)]) & set(answers[index])
    ]
    if own == 0:
        return passed("answer_leak", f"no answer stands in the opening of its task ({len(openings)} tasks)")
    if not pairs:
        return warned(
            "answer_leak",
            f"{own:.0%} of {len(openings)} openings hold the answer of their own task, and there is no other "
            f"answer to compare with. Give the check tasks with different answers.",
        )
    chance = _share(pairs)
    numbers = (
        f"{own:.0%} of {len(openings)} openings hold the answer of their own task, {chance:.0%} hold that of "
        f"another one"
    )
    if own >= _CERTAIN and chance <= _CHANCE and (place := _same_place(openings, answers)):
        return failed(
            "answer_leak",
            f"{numbers}; it always stands in the same place: {place}. Take it out: the policy would learn to "
            f"copy it.",
        )
    if own > chance + _ABOVE_CHANCE:
        return warned(
            "answer_leak",
            f"{numbers}. That is right for a choice between options or a passage to read; otherwise look for "
            f"what gives it away.",
        )
    return passed("answer_leak", f"{numbers}: no more than chance explains")


def anchor_leak(played: Sequence[Episode]) -> Check:
    """Whether anchors, which are for credit assignment alone, are shown to the agent."""
    episodes = [episode for episode in whole(played) if episode.rounds]
    anchors = [(episode, t.anchor) for episode in episodes for _, t in episode.rounds if t.anchor]
    if not anchors:
        return passed("anchor_leak", "the environment gives no anchors")
    shown = [(episode, anchor) for episode, anchor in anchors if _inside(anchor, _visible(episode))]
    if not shown:
        return passed("anchor_leak", f"none of {len(anchors)} anchors stands in a message")
    episode, anchor = shown[0]
    about = (
        f"{len(shown)} of {len(anchors)} anchors stand word for word in a message, as in task "
        f"'{episode.task.id}': {anchor[:80]!r}"
    )
    others = [found.task for found in episodes]
    own = _share(_stands(_answers(found.task), text) for found, text in shown)
    pairs = [
        _stands(_answers(other), text)
        for found, text in shown[:100]
        for other in others[:_OTHERS]
        if not set(_answers(other)) & set(_answers(found.task))
    ]
    chance = _share(pairs)
    if own > chance + _ABOVE_CHANCE:
        return failed(
            "anchor_leak",
            f"{about}; {own:.0%} of these hold the answer of their task, {chance:.0%} that of another one. "
            f"Show the agent what it may know, and leave the state in the anchor.",
        )
    return warned(
        "anchor_leak", f"{about}. That is right where the agent sees the whole state; else do not show it."
    )


def _openings(lab: Lab, tasks: Sequence[Task], seed: int) -> list[_Opening]:
    found = []
    for task in tasks:
        try:
            with Instance(lab, task.id) as instance:
                messages = instance.reset(task, seed)
                tools = instance.tools()
        except Broken as broken:
            if broken.hung:
                break
            continue
        told = [message.content for message in messages] + [str(tool.to_json()) for tool in tools]
        found.append(_Opening(task, "\n".join(told)))
    return found


def _answers(task: Task) -> tuple[str, ...]:
    """The task's answer, or each of several, as text; nothing where it is neither text nor a number."""
    given: Any = task.answer
    several = given if isinstance(given, (list, tuple)) else [given]
    usable = [one for one in several if isinstance(one, (str, int, float)) and not isinstance(one, bool)]
    return tuple(text for one in usable if (text := str(one).strip().casefold()))


def _pattern(answers: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the answers as a whole word or number: 4 is not in 42, 4.5, 1,400 or A4."""
    either = "|".join(map(re.escape, answers))
    return re.compile(rf"(?<![\w])(?<!\d[.,])(?:{either})(?![\w]|[.,]\d)")


def _stands(answers: Sequence[str], text: str) -> bool:
    return bool(answers) and _pattern(answers).search(text.casefold()) is not None


def _share(flags: Iterable[bool]) -> float:
    given = list(flags)
    return sum(given) / len(given) if given else 0.0


def _same_place(openings: Sequence[_Opening], answers: Sequence[Sequence[str]]) -> str:
    """What stands right before, or right after, the answer in nearly every opening; empty: it varies."""
    if len(openings) < _FEWEST:
        return ""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for opening, own in zip(openings, answers, strict=True):
        text = opening.text.casefold()
        places = list(_pattern(own).finditer(text))
        before.update({text[max(0, place.start() - _AROUND) : place.start()] for place in places})
        after.update({text[place.end() : place.end() + _AROUND] for place in places})
    for around, how in ((before, "after"), (after, "before")):
        (words, times), *_ = [*around.most_common(1), ("", 0)]
        if times >= _CERTAIN * len(openings):
            return f"right {how} {words!r}"
    return ""


def _visible(episode: Episode) -> list[Message]:
    later = [m for _, transition in episode.rounds for m in (*transition.feedback, *composed(transition))]
    return [*episode.opening, *later]


def _inside(anchor: str, messages: Sequence[Message]) -> bool:
    return any(
        anchor != message.content
        and re.search(rf"(?<!\w){re.escape(anchor)}(?!\w)", message.content) is not None
        for message in messages
    )
