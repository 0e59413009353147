"""A demonstrator of Guestbook that plays perfectly on what it is shown, and on nothing else; or a forgetful
one, to warm a policy up that reinforcement learning improves on.

How often the perfect one is right under a context rule is the most that the rule allows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from steprl.envs.guestbook import THE_END, THIEVES
from steprl.envs.policy import Move, check_probabilities
from steprl.errors import EnvError
from steprl.types import Message

NONE = "none"
"""In a summary, where no thief has been read of."""

_QUESTION = re.compile(r"which two thieves slept there\?")
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Turns pages up to the end of the book, then answers with the thieves that its messages show.

    A thief that no message shows is a guess, any name as likely as another. Whether a message is a page or a
    summary makes no difference to it.

    With probability ``forgetful`` a summary leaves out a thief that is known, and with probability
    ``careless`` an answer has any name in place of one; each for every thief. Both 0: it never slips.

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
        names = [rng.choice(THIEVES) if rng.random() < self.careless else name for name in _thieves(read)]
        unknown = [name for name in THIEVES if name not in names]
        return Move(text=_line([*names, *rng.sample(unknown, max(0, 2 - len(names)))]))

    def summarise(self, messages: Sequence[Message]) -> str:
        """One line with the thieves read of so far, ``Thieves: Fox``, and if the book has ended.

        Raises:
            EnvError: the messages hold no Guestbook question.
        """
        rng, read = self._random(messages), _read(messages)
        noted = [name for name in _thieves(read) if rng.random() >= self.forgetful]
        return f"{_line(noted)}. {THE_END}" if THE_END in read else _line(noted)

    def _random(self, messages: Sequence[Message]) -> Random:
        return Random(f"{self.seed}\n" + "\n".join(message.content for message in messages))


def _thieves(read: str) -> list[str]:
    """Every thief that was read of, once each, in order."""
    return list(dict.fromkeys(word for word in _WORD.findall(read) if word in THIEVES))


def _line(names: Sequence[str]) -> str:
    """What a summary and an answer are."""
    return f"Thieves: {', '.join(names) or NONE}"


def _read(messages: Sequence[Message]) -> str:
    """All that the reader has before it: pages, summaries, its own words."""
    if not any(message.role == "user" and _QUESTION.search(message.content) for message in messages):
        raise EnvError("Reader: no message asks for two thieves. It can act in Guestbook only.")
    return "\n".join(message.content for message in messages)
