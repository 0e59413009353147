"""An imperfect demonstrator of Courier, to warm a policy up before reinforcement learning improves on it.

It reads only what a policy reads, the messages, and makes the moves that a policy would make.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from steprl.envs.courier import PLACES
from steprl.envs.policy import Move, check_probabilities
from steprl.errors import ConfigError, EnvError
from steprl.types import Message

_START = re.compile(r"The parcel starts at (\w+)\.")
_STOP = re.compile(r"(?:fee (\d+)|no fee), (?:forwarded to (\w+)|delivered)")
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Apprentice:
    """A scripted courier clerk who knows the procedure but is careless and impatient.

    With probability ``careless`` an action goes wrong: a look-up of the wrong place, a term of the sum
    left out or misread, a result miscopied. After ``patience`` look-ups it gives up with probability
    ``impatience`` and adds up what it has, as if the parcel were delivered; if it goes on, it goes on to
    the end. It never notices its own slips, only errors it is told of. ``careless`` and ``impatience``
    0: it always solves the task.

    What it does is a function of its seed and the messages alone, so episodes may run in any order;
    for several attempts at one task use several seeds.
    """

    seed: int
    careless: float = 0.12
    impatience: float = 0.6
    patience: int = 2

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"Apprentice: patience is at least 1 look-up, got {self.patience}")
        check_probabilities(self, "careless", "impatience")

    def act(self, messages: Sequence[Message]) -> Move:
        """The next action: a tool call, or the answer.

        Raises:
            EnvError: the messages hold no Courier question.
        """
        rng = Random(f"{self.seed}\n" + "\n".join(message.content for message in messages))
        slips = rng.random() < self.careless
        question = _question(messages)
        told = [message.content for message in messages if message.role == "tool"]
        results = [text for text in told if _NUMBER.fullmatch(text)]
        if results:
            return Move(text=_miscopied(results[-1], rng) if slips else results[-1])
        stops = [found for found in map(_STOP.fullmatch, told) if found]
        place = stops[-1][2] if stops else question
        gives_up = len(stops) == self.patience and rng.random() < self.impatience
        if place is not None and not gives_up:
            named = [question, *(found[2] for found in stops if found[2])]
            return _call("lookup", "place", _mixed_up(place, named, rng) if slips else place)
        terms = [int(found[1]) for found in stops if found[1]] or [0]
        return _call("calculator", "expression", "+".join(map(str, _misread(terms, rng) if slips else terms)))


def _question(messages: Sequence[Message]) -> str:
    for message in messages:
        found = _START.search(message.content) if message.role == "user" else None
        if found:
            return found[1]
    raise EnvError("Apprentice: no message says where a parcel starts. It can act in Courier only.")


def _mixed_up(place: str, named: Sequence[str], rng: Random) -> str:
    """Another place: one that was named before, or any."""
    anywhere = rng.choice([name for name in PLACES if name != place])
    return rng.choice([*(name for name in named if name != place), anywhere])


def _misread(terms: Sequence[int], rng: Random) -> list[int]:
    """One term left out (of several) or read as another digit."""
    at = rng.randrange(len(terms))
    if len(terms) > 1 and rng.random() < 0.5:
        return [*terms[:at], *terms[at + 1 :]]
    other = rng.choice([digit for digit in range(1, 10) if digit != terms[at]])
    return [*terms[:at], other, *terms[at + 1 :]]


def _miscopied(result: str, rng: Random) -> str:
    return str(int(result) + rng.choice((-2, -1, 1, 2)))


def _call(name: str, argument: str, value: str) -> Move:
    return Move(calls=((name, {argument: value}),))
