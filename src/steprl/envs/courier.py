"""Courier: the quickstart environment. A parcel is forwarded from place to place; what are its fees in total?

Tasks are generated, short and regular, so that a policy of under a million parameters can learn them,
and still need several rounds: one look-up per place, one calculation, one answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Literal

from steprl.envs.policy import ScriptedPolicy
from steprl.envs.tool_env import ToolEnv
from steprl.errors import TaskError, ToolError, unknown
from steprl.tasks import task_hash
from steprl.tasks.answers import numbers_equal
from steprl.tools import tool
from steprl.tools.calculator import calculator
from steprl.types import Message, Task

PLACES = tuple(
    (
        "Abra Belo Bika Cora Dalo Dena Dori Elba Fano Fira Gala Gemo Hilo Homa Ilda Ivra Jola Juno Kali "
        "Kemo Kira Lako Lima Lomo Luna Mako Mena Mira Moro Nako Neva Nilo Nora Odra Olmo Oreo Pavo Pela "
        "Pino Rala Rema Rico Rola Sabo Sena Siri Sola Tamo Tela Tiro Tula Ulma Umbo Vako Vela Vino Wika "
        "Yala Zeno Zola"
    ).split()
)
DEPTHS = (1, 2, 3, 4, 5)
DECOYS = 3
"""Places of every task that lie off the parcel's way; looking them up works."""

Split = Literal["train", "eval"]

Stop = tuple[int, str | None]
"""A place's fee (0: none) and where it forwards the parcel; None where the parcel is delivered."""

_SIZES: Mapping[Split, int] = {"train": 4096, "eval": 240}
_TRAINED_DEPTHS = (1, 2, 3, 4, 5, 3, 4, 5)
"""Training leans towards the long ways, where there is more to learn; evaluation has all depths alike."""


class Courier(ToolEnv):
    """Look up places, add up the fees, answer with the number. Outcome 1.0 for the right total, else 0.0."""

    system_prompt = "Follow the parcel, add up the fees, answer with the number."

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        """``"train"``: 4096 tasks; ``"eval"``: 240 tasks. No way of a parcel is in both."""
        if source == "train":
            return courier_tasks("train", count=_SIZES["train"], depths=_TRAINED_DEPTHS)
        if source == "eval":
            return courier_tasks("eval", count=_SIZES["eval"])
        raise TaskError(unknown("Courier task set", source, _SIZES))

    @classmethod
    def oracle(cls, task: Task) -> ScriptedPolicy:
        """The apprentice of the demonstrations, neither careless nor impatient."""
        from steprl.envs.courier_demos import Apprentice  # which needs the places from here

        return Apprentice(seed=0, careless=0.0, impatience=0.0)

    def setup(self, task: Task, seed: int) -> None:
        """The graph comes with the task: nothing is random here."""
        self.graph: Mapping[str, Stop] = task.data["graph"]
        self.seen: set[str] = set()

    @tool
    def lookup(self, place: str) -> str:
        """Fee at a place and where the parcel goes next."""
        if place not in self.graph:
            raise ToolError(f"unknown place '{place}'")
        self.seen.add(place)
        fee, onward = self.graph[place]
        charged = f"fee {fee}" if fee else "no fee"
        return f"{charged}, delivered" if onward is None else f"{charged}, forwarded to {onward}"

    tools = (lookup, calculator)

    def reward(self, task: Task, answer: str) -> float:
        """1.0 when the answer states the total."""
        return float(numbers_equal(answer, task.answer))

    def anchor(self, feedback: Sequence[Message]) -> str:
        """The places seen so far, and what the agent was told last."""
        return f"{' '.join(sorted(self.seen))} | {' | '.join(message.content for message in feedback)}"


def courier_tasks(
    split: Split, *, count: int, seed: int = 0, depths: Sequence[int] = DEPTHS
) -> tuple[Task, ...]:
    """Generate ``count`` different tasks; depth (places on the parcel's way) cycles through ``depths``.

    The way itself decides which split a task belongs to, so tasks of different splits differ whatever
    the seeds. ``Task.data`` holds ``graph`` (place → fee, next place or None), ``start`` and ``depth``.

    Raises:
        TaskError: unknown split, no tasks asked for, no depths, or more depth than there are places.
    """
    if split not in _SIZES:
        raise TaskError(unknown("Courier split", split, _SIZES))
    if count < 1:
        raise TaskError(f"count must be at least 1 task, got {count}")
    longest = len(PLACES) - DECOYS
    if not depths or not all(1 <= depth <= longest for depth in depths):
        raise TaskError(f"depths must be one or more numbers from 1 to {longest}, got {list(depths)}")
    rng = Random(f"courier {split} {seed}")
    tasks: list[Task] = []
    hashes: set[str] = set()
    while len(tasks) < count:
        task = _draw(rng, depths[len(tasks) % len(depths)])
        name = task_hash(task)
        if _split_of(task) == split and name not in hashes:
            hashes.add(name)
            tasks.append(replace(task, id=f"courier-{name}"))
    return tuple(tasks)


def _draw(rng: Random, depth: int) -> Task:
    places = rng.sample(PLACES, depth + DECOYS)
    way, decoys = places[:depth], places[depth:]
    graph: dict[str, Stop] = {}
    # Whoever stops early misses a fee: the last place always charges, and one more at most.
    early, last = rng.sample(range(1, 10), 2)
    fees = {rng.choice(way): early, way[-1]: last}
    for place, onward in zip(way, [*way[1:], None], strict=True):
        graph[place] = (fees.get(place, 0), onward)
    total = sum(fee for fee, _ in graph.values())
    for place in decoys:
        others = [other for other in places if other != place]
        graph[place] = (rng.randint(0, 9), rng.choice([*others, None]))
    return Task(
        id="",
        prompt=f"The parcel starts at {way[0]}. What is the total fee?",
        answer=total,
        data={"graph": graph, "start": way[0], "depth": depth},
    )


def _split_of(task: Task) -> Split:
    """One way in five is for evaluation, by a hash of its places and fees."""
    way: list[str] = []
    place: str | None = task.data["start"]
    while place is not None:
        fee, onward = task.data["graph"][place]
        way.append(f"{place} {fee}")
        place = onward
    return "eval" if sha256(", ".join(way).encode("ascii")).digest()[0] % 5 == 0 else "train"
