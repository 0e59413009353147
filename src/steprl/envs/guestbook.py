"""Guestbook: an environment on which context matters. An inn's book is read page by page, and no page twice;
in which rooms did two guests sleep?

Pages are long and nearly all of them beside the point. The two that matter lie anywhere in the book, which is
longer than most contexts hold, so what the agent is shown of its past decides whether it can know the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Literal, get_args

from steprl.envs.policy import ScriptedPolicy
from steprl.envs.tool_env import ToolEnv
from steprl.errors import TaskError, unknown
from steprl.tasks import task_hash
from steprl.tools import tool
from steprl.types import Action, Message, Task, Transition

GUESTS = tuple(
    (
        "Ada Alba Amir Anna Aron Bela Ben Carl Cleo Dana Dina Dora Egon Ella Emil Eva Fay Finn Gina Gus Hana "
        "Hugo Ida Ines Ivan Jan Jill Juan Kai Kim Lena Leo Lise Luca Mara Max Mina Nils Nora Olga Omar Otto "
        "Paul Pia Ravi Rita Rosa Sara Sven Tess Theo Tom Uma Vera Viki Will Yara Yuri Zara Zoe"
    ).split()
)
ROOMS = tuple(range(1, 10))
LENGTHS = (19, 23, 25, 26, 28)
"""Pages of a book. A context of 2,944 tokens holds books of the first length only."""
SHORT = (4, 5, 5, 6, 6)
"""Pages of a short book: the same at a fifth of the length. A context of 832 tokens holds the shortest only."""
ENTRIES = (21, 27)
"""Guests on a page, from and to."""
PRIMER = (2, 3, 4, 2, 3, 4, 8, 19)
"""Pages of a book to learn reading on, with any number of guests on a page: finding one among three comes
first, and finding one among 27 does not come without it."""
REMARKS = (
    "Rain all day.",
    "Snow on the hills.",
    "A quiet night.",
    "The lamp was mended.",
    "The cook was ill.",
    "Fresh bread came.",
    "The road was closed.",
    "Two wagons passed.",
    "The roof leaks again.",
    "Fog in the valley.",
    "A wedding next door.",
    "The well is low.",
    "The cat is back.",
    "Wind from the sea.",
    "New hay for the horses.",
    "The bell was rung late.",
)
THE_END = "The end."
LAST = f"{THE_END} Answer: Rooms: guest room, guest room."
"""What is read on turning over the last page, however often."""

Split = Literal["train", "eval"]

_SETS: Mapping[str, tuple[Split, int, Sequence[int], tuple[int, int]]] = {
    "train": ("train", 4096, LENGTHS, ENTRIES),
    "eval": ("eval", 240, LENGTHS, ENTRIES),
    "short": ("train", 4096, SHORT, ENTRIES),
    "short_eval": ("eval", 240, SHORT, ENTRIES),
    "primer": ("train", 4096, PRIMER, (1, ENTRIES[1])),
}
_WORD = re.compile(r"[A-Za-z]+|\d+")


class Guestbook(ToolEnv):
    """Turn every page, then answer ``Rooms: Ada 4, Zoe 7``. Outcome 1.0 for both rooms right, else 0.0.

    An answer before the book is at its end is worth 0.0, whatever it says. A page with one of the two guests,
    and the end, are marked as evidence.
    """

    system_prompt = "Turn every page, then answer."

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        """``"train"``: 4096 tasks; ``"eval"``: 240 tasks, with no two guests of whom training asks as well;
        ``"short"`` and ``"short_eval"``: as many with books of 4 to 6 pages; ``"primer"``: 4096 to learn reading
        on, with books of 2 to 19 pages of 1 to 27 guests."""
        if source not in _SETS:
            raise TaskError(unknown("Guestbook task set", source, _SETS))
        split, count, lengths, entries = _SETS[source]
        return guestbook_tasks(split, count=count, lengths=lengths, entries=entries)

    @classmethod
    def oracle(cls, task: Task) -> ScriptedPolicy:
        """The reader of the demonstrations, who never slips."""
        from steprl.envs.guestbook_demos import Reader  # which needs the guests from here

        return Reader(seed=0)

    def setup(self, task: Task, seed: int) -> None:
        """The book follows from the task: nothing is random here."""
        self.pages: Sequence[str] = book(task)
        self.stays: Mapping[str, Sequence[int]] = task.data["stays"]
        self.turned = 0
        self.evidence: set[str] = {LAST, *(self.pages[page] for page, _ in self.stays.values())}

    @tool
    async def turn(self) -> str:
        """Next page."""
        self.turned += 1
        return self.pages[self.turned - 1] if self.turned <= len(self.pages) else LAST

    tools = (turn,)

    async def step(self, action: Action) -> Transition:
        """See ``ToolEnv.step``; what is worth keeping is marked."""
        transition = await super().step(action)
        marked = (
            replace(message, mark="evidence") if message.content in self.evidence else message
            for message in transition.feedback
        )
        return replace(transition, feedback=tuple(marked))

    def reward(self, task: Task, answer: str) -> float:
        """1.0 when every page was turned and the answer names the two guests, in order, with their rooms."""
        read = self.turned >= len(self.pages)
        return float(read and is_right(task, answer))

    def anchor(self, feedback: Sequence[Message]) -> str:
        """How far the book has been read, and what the agent was told last."""
        read = min(self.turned, len(self.pages))
        return f"{read} | {' | '.join(message.content for message in feedback)}"


def is_right(task: Task, answer: str) -> bool:
    """Whether an answer names the two guests, in order, with their rooms, and nothing else but "Rooms"."""
    words = [word for word in _WORD.findall(answer) if word != "Rooms"]
    return words == _WORD.findall(str(task.answer))


def book(task: Task) -> tuple[str, ...]:
    """The pages of a task's book: a number, a remark, the rooms of some guests, another remark."""
    stays: Mapping[str, Sequence[int]] = task.data["stays"]
    fewest, most = task.data["entries"]
    rng = Random(f"guestbook {task.data['noise']}")
    others = [guest for guest in GUESTS if guest not in stays]
    pages = []
    for number in range(task.data["pages"]):
        entries = [f"{guest} {rng.choice(ROOMS)}" for guest in rng.sample(others, rng.randint(fewest, most))]
        for guest, (page, room) in stays.items():
            if page == number:
                entries[rng.randrange(len(entries))] = f"{guest} {room}"
        before, after = rng.sample(REMARKS, 2)
        pages.append(f"Page {number + 1}. {before} Rooms: {', '.join(entries)}. {after}")
    return tuple(pages)


def guestbook_tasks(
    split: Split,
    *,
    count: int,
    seed: int = 0,
    lengths: Sequence[int] = LENGTHS,
    entries: tuple[int, int] = ENTRIES,
) -> tuple[Task, ...]:
    """Generate ``count`` different tasks; the number of pages cycles through ``lengths``, and each page has
    any number of guests from ``entries[0]`` to ``entries[1]``.

    The two guests decide which split a task belongs to, so tasks of different splits differ whatever the
    seeds. The two pages that matter are any two, each pair as likely as the others. ``Task.data`` holds
    ``pages`` (how many), ``entries``, ``stays`` (guest → page counted from 0, room) and ``noise`` (seed of
    the rest).

    Raises:
        TaskError: unknown split, no tasks asked for, no lengths, a book of less than two pages, or a page of
            no guests or more than there are.
    """
    if split not in get_args(Split):
        raise TaskError(unknown("Guestbook split", split, get_args(Split)))
    if count < 1:
        raise TaskError(f"count must be at least 1 task, got {count}")
    if not lengths or min(lengths) < 2:
        raise TaskError(f"lengths must be one or more numbers of pages from 2 up, got {list(lengths)}")
    if not 1 <= entries[0] <= entries[1] <= len(GUESTS) - 2:
        raise TaskError(
            f"entries must be the least and the most guests on a page, 1 to {len(GUESTS) - 2}; got {entries}"
        )
    rng = Random(f"guestbook {split} {seed}")
    tasks: list[Task] = []
    while len(tasks) < count:
        guests = rng.sample(GUESTS, 2)
        if _split_of(guests) == split:
            task = _draw(rng, guests, lengths[len(tasks) % len(lengths)], entries)
            tasks.append(replace(task, id=f"guestbook-{task_hash(task)}"))
    return tuple(tasks)


def _draw(rng: Random, guests: Sequence[str], length: int, entries: tuple[int, int]) -> Task:
    stays = {
        guest: [page, rng.choice(ROOMS)]
        for guest, page in zip(guests, rng.sample(range(length), 2), strict=True)
    }
    return Task(
        id="",
        prompt=f"Where did {' and '.join(guests)} sleep?",
        answer=", ".join(f"{guest} {room}" for guest, (_, room) in stays.items()),
        data={"pages": length, "entries": [*entries], "stays": stays, "noise": rng.getrandbits(32)},
    )


def _split_of(guests: Sequence[str]) -> Split:
    """One pair of guests in five is for evaluation, by a hash of their names."""
    return "eval" if sha256(" ".join(sorted(guests)).encode("ascii")).digest()[0] % 5 == 0 else "train"
