"""A demonstrator of Guestbook that plays perfectly on what it is shown, and on nothing else; or a forgetful
one, to warm a policy up that reinforcement learning improves on.

How often the perfect one is right under a context rule is the most that the rule allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from steprl.envs.guestbook import ROOMS, THE_END
from steprl.envs.policy import Move, check_probabilities
from steprl.errors import EnvError
from steprl.types import Message

UNKNOWN = "unknown"
"""The room, in a summary, of a guest who has not been read of."""

_QUESTION = re.compile(r"Where did (\w+) and (\w+) sleep\?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Turns pages up to the end of the book, then answers with the rooms that its messages show.

    A room that no message shows is a guess, any as likely as the others. Whether a message is a page or a
    summary makes no difference to it: what it read last of a guest counts.

    With probability ``forgetful`` a summary leaves out a room that is known, and with probability
    ``careless`` a summary or an answer has another room in its place. Both 0: it never slips.

    What it does is a function of its seed and the messages alone, so episodes may run in any order.
    """

    seed: int
    forgetful: float = 0.0
    careless: float = 0.0

    def __post_init__(self) -> None:
        check_probabilities(self, "forgetful", "careless")

    def act(self, messages: Sequence[Message]) -> Move:
        """The next action: a page turned, or the answer.

        Raises:
            EnvError: the messages hold no Guestbook question.
        """
        rng, read = self._random(messages), _read(messages)
        if THE_END not in read:
            return Move(calls=(("turn", {}),))
        rooms = {guest: self._room(guest, read, rng) for guest in _guests(messages)}
        known = {guest: room or str(rng.choice(ROOMS)) for guest, room in rooms.items()}
        return Move(text=_line(known))

    def summarise(self, messages: Sequence[Message]) -> str:
        """One line with the rooms read of so far, ``Rooms: Ada 4, Zoe unknown``, and if the book has ended.

        Raises:
            EnvError: the messages hold no Guestbook question.
        """
        rng, read = self._random(messages), _read(messages)
        rooms = {guest: self._room(guest, read, rng) for guest in _guests(messages)}
        forgotten = {guest for guest in rooms if rng.random() < self.forgetful}
        noted = {
            guest: UNKNOWN if room is None or guest in forgotten else room for guest, room in rooms.items()
        }
        return f"{_line(noted)}. {THE_END}" if THE_END in read else _line(noted)

    def _random(self, messages: Sequence[Message]) -> Random:
        return Random(f"{self.seed}\n" + "\n".join(message.content for message in messages))

    def _room(self, guest: str, read: str, rng: Random) -> str | None:
        """The room that was last read of, or now and then another one; None: none was."""
        slips = rng.random() < self.careless
        found = re.findall(rf"\b{guest} (\d)\b", read)
        if not found:
            return None
        return str(rng.choice([room for room in ROOMS if str(room) != found[-1]])) if slips else found[-1]


def _line(rooms: Mapping[str, str]) -> str:
    """As on a page, so that what is copied is written as it is read."""
    return f"Rooms: {', '.join(f'{guest} {room}' for guest, room in rooms.items())}"


def _read(messages: Sequence[Message]) -> str:
    """All that the reader has before it: pages, summaries, its own words."""
    return "\n".join(message.content for message in messages)


def _guests(messages: Sequence[Message]) -> tuple[str, str]:
    for message in messages:
        found = _QUESTION.search(message.content) if message.role == "user" else None
        if found:
            return found[1], found[2]
    raise EnvError("Reader: no message asks where two guests slept. It can act in Guestbook only.")
