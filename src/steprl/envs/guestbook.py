"""Guestbook: an environment on which context matters. An inn's book is read page by page, and no page twice;
which two thieves slept at the inn?

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
THIEF = "thief"
"""What stands before the name of one in the book."""
THIEVES = tuple(
    (
        "Bear Boar Carp Crow Dove Fox Gull Hare Hawk Kite Lark Lynx Mole Newt Owl Pike Puma Rat Rook Stag "
        "Swan Toad Wolf Wren"
    ).split()
)
"""What thieves go by."""
INNS = tuple(
    f"{color} {sign}"
    for color in ("Black", "Blue", "Golden", "Green", "Grey", "Red", "Silver", "White")
    for sign in ("Anchor", "Barrel", "Crown", "Garland", "Key", "Moon", "Ship", "Wheel")
)
LENGTHS = (19, 23, 25, 26, 28)
"""Pages of a book. A context of 2,944 tokens holds books of the first length only."""
SHORT = (4, 5, 5, 6, 6)
"""Pages of a short book, a fifth of the length. A context of 768 tokens holds the shortest only."""
ENTRIES = (21, 27)
"""Guests on a page, from and to."""
PRIMER = (2, 2, 3, 2, 3, 4)
"""Pages of a book to learn reading on, with any number of guests on a page: finding one among three comes
first, and finding one among 27 hardly comes without it."""
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
LAST = f"{THE_END} Answer: Thieves: name, name."
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
_HEADING = "Thieves"


class Guestbook(ToolEnv):
    """Turn every page, then answer ``Thieves: Fox, Owl``. Outcome 1.0 for both, else 0.0.

    An answer before the book is at its end is worth 0.0, whatever it says. A page with a thief, and the end,
    are marked as evidence.
    """

    system_prompt = "Turn every page, then answer."

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        """``"train"``: 4096 tasks; ``"eval"``: 240 tasks, whose two thieves are those of no training task;
        ``"short"`` and ``"short_eval"``: as many with books of 4 to 6 pages; ``"primer"``: 4096 to learn
        reading on, with books of 2 to 4 pages of 1 to 27 guests."""
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
        self.turned = 0
        self.evidence: set[str] = {LAST, *(self.pages[page] for page in task.data["thieves"].values())}

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
        """1.0 when every page was turned and the answer names the two thieves."""
        read = self.turned >= len(self.pages)
        return float(read and is_right(task, answer))

    def anchor(self, feedback: Sequence[Message]) -> str:
        """How far the book has been read, and what the agent was told last."""
        read = min(self.turned, len(self.pages))
        return f"{read} | {' | '.join(message.content for message in feedback)}"


def is_right(task: Task, answer: str) -> bool:
    """Whether an answer names the two thieves, in any order, and nothing else."""
    words = [word for word in _WORD.findall(answer) if word != _HEADING]
    return sorted(words) == sorted(task.data["thieves"])


def book(task: Task) -> tuple[str, ...]:
    """The pages of a task's book: a number, a remark, the rooms of some guests, another remark."""
    thieves: Mapping[str, int] = task.data["thieves"]
    fewest, most = task.data["entries"]
    rng = Random(f"guestbook {task.data['noise']}")
    pages = []
    for number in range(task.data["pages"]):
        entries = [f"{guest} {rng.choice(ROOMS)}" for guest in rng.sample(GUESTS, rng.randint(fewest, most))]
        for name, page in thieves.items():
            if page == number:
                entries[rng.randrange(len(entries))] = f"{THIEF} {name} {rng.choice(ROOMS)}"
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

    The two thieves decide which split a task belongs to, so tasks of different splits differ whatever the
    seeds. The two pages that matter are any two, each pair as likely as the others. ``Task.data`` holds
    ``pages`` (how many), ``entries``, ``thieves`` (name → page counted from 0, in the order of the pages) and
    ``noise`` (seed of the rest).

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
    if not 1 <= entries[0] <= entries[1] <= len(GUESTS):
        raise TaskError(
            f"entries must be the least and the most guests on a page, 1 to {len(GUESTS)}; got {entries}"
        )
    rng = Random(f"guestbook {split} {seed}")
    tasks: list[Task] = []
    while len(tasks) < count:
        names = rng.sample(THIEVES, 2)
        if _split_of(names) == split:
            task = _draw(rng, names, lengths[len(tasks) % len(lengths)], entries)
            tasks.append(replace(task, id=f"guestbook-{task_hash(task)}"))
    return tuple(tasks)


def _draw(rng: Random, names: Sequence[str], length: int, entries: tuple[int, int]) -> Task:
    thieves = dict(zip(names, sorted(rng.sample(range(length), 2)), strict=True))
    return Task(
        id="",
        prompt=f"{rng.choice(INNS)}: which two thieves slept there?",
        answer=", ".join(thieves),
        data={"pages": length, "entries": [*entries], "thieves": thieves, "noise": rng.getrandbits(32)},
    )


def _split_of(names: Sequence[str]) -> Split:
    """One pair of thieves in five is for evaluation, by a hash of their names."""
    return "eval" if sha256(" ".join(sorted(names)).encode("ascii")).digest()[0] % 5 == 0 else "train"
