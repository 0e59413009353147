"""How a model writes tool calls: the contract of a format. One format is one file beside this one.

Formats read text and know nothing of tokens; the renderer turns their character spans into token spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from steprl.types import Finish, MalformedCall, ToolCall, ToolSpec


class ParsedCall(NamedTuple):
    """A call and where it stands: ``text[start:end]``, tags included. Its token span is not set yet."""

    call: ToolCall | MalformedCall
    start: int
    end: int


class ToolCallFormat(Protocol):
    """Reads and writes the tool calls of an action. Stateless.

    ``tags`` are the words that every call has, such as the one it opens with: a tokenizer made for the format
    gives each a token.
    """

    tags: tuple[str, ...]

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every call outside of thinking, in order; ids are ``call_0``, ``call_1``, … No text makes it raise.

        ``finish`` tells a call that was cut (``length``, ``abort``) from one that is merely wrong.
        What is not exactly well-formed is a MalformedCall whose reason tells the agent how to write it.
        """
        ...

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """An action as a model would write it: text, then calls as (name, arguments). ``parse`` reads exactly
        these calls in it.

        Raises:
            ConfigError: it cannot be written so.
        """
        ...


@runtime_checkable
class TypedFormat(ToolCallFormat, Protocol):
    """A format that writes arguments as bare text, so that only a schema tells a number from text."""

    def typed(self, tools: Sequence[ToolSpec]) -> ToolCallFormat:
        """This format, reading the arguments of these tools by their schemas."""
        ...


@runtime_checkable
class DescribedFormat(ToolCallFormat, Protocol):
    """A format that no chat template knows: in the prompt, tools and their results are plain text.

    The renderer writes ``describe(tools)`` into the system message and the results of tools as user
    messages; the template is given neither tools nor messages of the role ``tool``.
    """

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """What the model is told: the tools, how to call one, and how its result comes back.

        Raises:
            ConfigError: the format cannot call one of them.
        """
        ...

    def feedback(self, content: str) -> str:
        """A tool's result as the model reads it."""
        ...
