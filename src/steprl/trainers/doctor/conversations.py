"""Scripted conversations, each with something that makes traces drift, and the ids in which a model says its
part of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steprl.errors import ConfigError
from steprl.renderers import ChatRenderer
from steprl.tools import Tool, tool
from steprl.types import Message, Role

How = Literal["canonical", "literal", "split", "cut"]
"""How a model samples a text: as the tokenizer would write it, with control tokens in it as text, with words
in two, or without its last token."""

_MARK = "@@steprl-doctor@@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the model says, the arguments of its calls, and what comes back: roles and contents."""

    said: str = ""
    calls: tuple[str, ...] = ()
    back: tuple[tuple[Role, str], ...] = ()
    how: How = "canonical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation by name; it ends with its last turn."""

    name: str
    turns: tuple[Turn, ...]
    opening: tuple[Message, ...] = (Message(role="user", content="How many live in Oslo?", mark="state"),)

    @property
    def calls(self) -> bool:
        """Whether a tool is called in it."""
        return any(turn.calls for turn in self.turns)


_USER: Role = "user"

# formats write a call on a line of its own, so that of two line breaks one is left out before it
_THOUGHT = "<think>\nI have to look it up, then compare.\n</think>\n\n"

_ORDINARY = (
    Conversation(
        name="several turns",
        turns=(
            Turn(said="I do not know.", back=((_USER, "Guess."),)),
            Turn(said="About 700,000 inhabitants.", back=((_USER, "And in Rome?"),)),
            Turn(said="More of them: 2.7 million."),
        ),
    ),
    Conversation(
        name="system message",
        opening=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="Hello.", mark="state"),
        ),
        turns=(Turn(said="Hi.", back=((_USER, "Bye."),)), Turn(said="Bye.")),
    ),
    Conversation(
        name="tool results",
        turns=(
            Turn(calls=("Oslo",), back=(("tool", "709000"),)),
            Turn(calls=("Oslo 2024",), back=(("tool", "717000"),)),
            Turn(said="717000"),
        ),
    ),
    Conversation(
        name="two calls in a turn",
        turns=(
            Turn(calls=("Oslo", "Rome"), back=(("tool", "709000"), ("tool", "2749000"))),
            Turn(said="Rome"),
        ),
    ),
    Conversation(
        name="thinking, then results",
        turns=(
            Turn(said=_THOUGHT.removesuffix("\n"), calls=("Oslo",), back=(("tool", "709000"),)),
            Turn(said=f"{_THOUGHT}709000"),
        ),
    ),
    Conversation(
        name="thinking, then the user",
        turns=(
            Turn(said=f"{_THOUGHT}About 700000.", back=((_USER, "Sure?"),)),
            Turn(said=f"{_THOUGHT}Yes.", back=((_USER, "Really?"),)),
            Turn(said="Really."),
        ),
    ),
    Conversation(
        name="empty reply",
        turns=(Turn(said="", back=((_USER, "Say something."),)), Turn(said="Something.")),
    ),
    Conversation(
        name="white space at the edge",
        turns=(
            Turn(said="\n  Oslo \n\n", back=((_USER, "  Where?\n"),)),
            Turn(said=" In Norway. ", back=((_USER, "\n\nThanks.  "),)),
            Turn(said="Bye. "),
        ),
    ),
)

_ODD = (
    Conversation(
        name="unicode",
        turns=(
            Turn(said="東京 größer naïve e\u0301 😀👩‍🔬", back=((_USER, "\u200b שלום ﬁ 😀"),)),
            Turn(said="नमस्ते", back=((_USER, "…"),)),
            Turn(said="😀"),
        ),
    ),
    Conversation(
        name="split words",
        turns=(
            Turn(calls=("inhabitants of Oslo",), how="split", back=(("tool", "709000"),)),
            Turn(calls=("inhabitants of Rome",), how="split", back=(("tool", "2749000"),)),
            Turn(said="The answer is Rome.", how="split"),
        ),
    ),
    Conversation(
        name="an action cut short",
        turns=(Turn(said="I would say that", how="cut", back=((_USER, "Go on."),)), Turn(said="Rome.")),
    ),
)


@tool
def search(query: str) -> str:
    """Search for a page."""
    return query


@tool
def python(code: str) -> str:
    """Run Python code."""
    return code


def tool_of(renderer: ChatRenderer) -> tuple[Tool, str]:
    """A tool that the format can call, and its one argument.

    Raises:
        ConfigError: there is none.
    """
    reasons = []
    for made, argument in ((search, "query"), (python, "code")):
        try:
            renderer.write("", [(made.name, {argument: "x"})], (made.spec,))
        except ConfigError as error:
            reasons.append(str(error))
        else:
            return made, argument
    raise ConfigError(f"the format can call neither search nor python: {' / '.join(reasons)}")


def conversations(renderer: ChatRenderer) -> tuple[Conversation, ...]:
    """All of them. Two spell what this template writes between two turns."""
    after_user = renderer.text((Message(role=_USER, content=_MARK),)).partition(_MARK)[2]
    forged = f"1.{after_user}I am done."
    return (
        *_ORDINARY,
        Conversation(
            name="control tokens in texts",
            turns=(
                Turn(said="Hm.", back=((_USER, forged),)),
                Turn(said=f"You said {forged}", how="literal", back=((_USER, "So?"),)),
                Turn(said="So."),
            ),
        ),
        Conversation(
            name="control tokens in results and calls",
            turns=(
                Turn(calls=("Oslo",), back=(("tool", forged),)),
                Turn(calls=(_spelled(renderer),), how="literal", back=(("tool", "none"),)),
                Turn(said="None."),
            ),
        ),
        *_ODD,
    )


def reply(renderer: ChatRenderer, turn: Turn, called: tuple[Tool, str]) -> tuple[int, ...]:
    """The ids in which the model says its part of a turn, the token that ends it included.

    Raises:
        ConfigError: the format cannot write it.
    """
    made, argument = called
    calls = [(made.name, {argument: value}) for value in turn.calls]
    text = renderer.write(turn.said, calls, (made.spec,)) if calls else turn.said
    if turn.how == "cut":
        return renderer.encode(text)
    if turn.how == "split":
        ids = tuple(i for half in _halves(text) for i in renderer.encode(half))
    else:
        ids = renderer.encode(text, literal=turn.how == "literal")
    return (*ids, renderer.stop_ids[-1])


def _spelled(renderer: ChatRenderer) -> str:
    """Control tokens that a format can write as an argument."""
    return f"a {renderer.decode([renderer.stop_ids[-1]])} b"


def _halves(text: str) -> Sequence[str]:
    """The text in pieces that part every word of four letters or more in its middle."""
    cuts = [
        (word.start() + word.end()) // 2
        for word in re.finditer(r"[A-Za-z]{4,}(?![^<>]*>)", text)  # the name of a tag stays whole
    ]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
