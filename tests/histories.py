"""Random histories, and an actor that measures prompts without a tokenizer, for tests of context rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from steprl.context import AppendOnly
from steprl.types import Action, ContextRule, History, Message, Observation, Round, Writer

OPENING = (Message(role="system", content="Be brief."), Message(role="user", content="Where is Ada?"))

_WORDS = st.text(alphabet="ab <", max_size=12)
_SAID = st.one_of(
    _WORDS,
    st.builds("<think>{}</think>{}".format, _WORDS, _WORDS),
    st.builds("{}</think>\n\n{}".format, _WORDS, _WORDS),
    st.builds("{}<think>{}".format, _WORDS, _WORDS),
)
_FEEDBACK = st.builds(
    lambda content, role, name, mark: Message(role=role, content=content, name=name, mark=mark),
    st.one_of(_WORDS, st.text(alphabet="ab ", min_size=30, max_size=90)),
    st.sampled_from(["tool", "user"]),
    st.sampled_from([None, "search", "look"]),
    st.sampled_from([None, None, "evidence", "state"]),
)
_ROUNDS = st.lists(
    st.builds(
        lambda text, ids, feedback: Round(action=Action(text=text, token_ids=ids), feedback=tuple(feedback)),
        _SAID,
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
        st.lists(_FEEDBACK, max_size=3),
    ),
    max_size=6,
)
HISTORIES = st.builds(lambda rounds: History(opening=OPENING, rounds=tuple(rounds)), _ROUNDS)
"""Histories of up to six rounds, with thinking of every shape, and marks."""


class Meter:
    """Counts a token per character and three per message; answers with ``summaries`` and keeps what it was
    asked."""

    def __init__(self, *summaries: str, max_context: int = 1 << 20) -> None:
        self.max_context = max_context
        self.asked: list[Sequence[Message]] = []
        self.written: list[Action] = []
        self._left = list(summaries)

    def count(self, messages: Sequence[Message]) -> int:
        return sum(len(message.content) + 3 for message in messages)

    async def act(
        self, observation: Observation, *, kind: str = "summary", writer: Writer | None = None
    ) -> Action:
        assert kind == "summary" and observation.messages is not None
        self.asked.append(observation.messages)
        text = self._left.pop(0) if writer is None else await writer()
        self.written.append(Action(text=text, token_ids=(7, 7)))
        return self.written[-1]


def shown(rule: ContextRule, history: History, actor: Any = None) -> list[Message]:
    """What the model sees."""
    return list(asyncio.run(rule(history, Meter() if actor is None else actor)))  # type: ignore[arg-type]


def everything(history: History) -> list[Message]:
    """All messages in order."""
    return shown(AppendOnly(), history)


def history(*rounds: tuple[str, Sequence[Message | str]], opening: Sequence[Message] = OPENING) -> History:
    """A history of (what was said, what came back); text stands for a tool's output."""
    made = History(opening=tuple(opening))
    for number, (said, feedback) in enumerate(rounds):
        messages = [Message(role="tool", content=m) if isinstance(m, str) else m for m in feedback]
        made = made.then(Action(text=said, token_ids=(number, number + 1)), tuple(messages))
    return made


def contents(messages: Sequence[Message]) -> list[str]:
    """What the messages say."""
    return [message.content for message in messages]
