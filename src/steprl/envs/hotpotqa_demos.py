"""An oracle of HotpotQA: it searches by what it has read, as an agent could, and then gives the gold answer.

How it searches is honest and can be learned from; its answer is the task's own, not drawn from what it read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steprl.envs.policy import Move
from steprl.errors import ConfigError
from steprl.tasks.short_answers import CLOSED, CLOSED_QUESTIONS, OPENED, normalised
from steprl.types import Message

_WORD = r"(?:[A-Z]\.(?=\s)|[A-Z0-9](?:[\w'’-]|\.(?=\w))*)"
_NAME = re.compile(rf"{_WORD}(?: (?:(?:and|de|for|in|la|of|the|van|von) )?{_WORD})*")
_TITLE = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_FIRST_WORDS = frozenset(
    (
        "A An Are At By Did Do Does For From He Her His How In Is It Its Of On She The They This To Was Were "
        "What When Where Which Who Whom Whose Why With"
    ).split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher:
    """Searches for the question, then for names in it, then for names in what it found. Stops when it has
    read ``answer`` (a yes or no stands in no text: then after ``searches``), and gives it.

    Args:
        answer: what it answers.
        searches: how often it searches at most.

    Raises:
        ConfigError: ``searches`` is less than 1.
    """

    answer: str
    searches: int = 4

    def __post_init__(self) -> None:
        if self.searches < 1:
            raise ConfigError(f"Searcher: searches must be at least 1, got {self.searches}")

    def act(self, messages: Sequence[Message]) -> Move:
        """The next search, or the answer."""
        asked = max((i for i, message in enumerate(messages) if message.role == "user"), default=0)
        question = messages[asked].content
        read = [message.content for message in messages[asked:] if message.role == "tool"]
        query = None if self._knows(read) else next_query(question, read)
        if query is None or len(read) >= self.searches:
            return Move(text=f"{OPENED}{self.answer}{CLOSED}")
        return Move(calls=(("search", {"query": query}),))

    def _knows(self, read: Sequence[str]) -> bool:
        answer = normalised(self.answer)
        return answer not in CLOSED_QUESTIONS and any(
            f" {answer} " in f" {normalised(text)} " for text in read
        )


def next_query(question: str, read: Sequence[str]) -> str | None:
    """What to search for after ``read``, one text for each search made; None: there is nothing left.

    It depends on the texts in order, so that who plays along knows which searches led to them.
    """
    made: list[str] = []
    for count in range(len(read) + 1):
        query = next(_ideas(question, read[:count], made), None)
        if query is None:
            return None
        made.append(query)
    return made[-1]


def _ideas(question: str, read: Sequence[str], made: Sequence[str]) -> Iterator[str]:
    if not made:
        yield question
        return
    known = {title.casefold() for text in read for title in _TITLE.findall(text)}
    known.update(query.casefold() for query in made)
    for name in names_in(question):
        if name.casefold() not in known:
            yield name
    for text in read:
        for name in names_in(text):
            if name.casefold() not in known:
                yield name


def names_in(text: str) -> list[str]:
    """Runs of capitalised words, each once, in order; without numbers and the usual first words of sentences
    in front."""
    found = []
    for met in _NAME.finditer(text):
        run = met[0].removesuffix("'s").removesuffix("’s").split()
        while run and (run[0] in _FIRST_WORDS or run[0][0].isdigit()):
            run.pop(0)
        if run:
            found.append(" ".join(run))
    return list(dict.fromkeys(found))
