"""Tags named after tools (Search-R1, arXiv:2503.09516): ``<search>query</search>`` calls ``search``.

The text between the tags, without the white space around it, is the one argument. Nothing is escaped, so a
text that holds a tag of the format is ambiguous: it is malformed, and never run. ``<answer>`` holds the final
answer, in which nothing is a call. ``<information>`` is the environment's: a turn may end in it, which is
where a stop string cuts it, but a model that goes on makes its results up, and from there on nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.errors import ConfigError
from steprl.renderers._describing import check_argument, listing
from steprl.renderers._reading import (
    END_THINK,
    THINK,
    Found,
    calls_outside_thinking,
    malformed,
    malformed_until,
    next_thinking,
    opening,
    well_formed,
)
from steprl.renderers._writing import checked_json, read_back
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish, ToolSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class TagsFormat:
    """Reads and writes a tag for each tool. See DescribedFormat for the contract.

    Args:
        tools: each tool that has a tag, with the argument that the text in it is.
        answer: the tag of the final answer.
        information: the tag in which results come back.

    Raises:
        ConfigError: no tools, a name that cannot be a tag, or two of one name.
    """

    def __init__(
        self,
        tools: Mapping[str, str] | None = None,
        *,
        answer: str = "answer",
        information: str = "information",
    ) -> None:
        self._arguments = {"search": "query"} if tools is None else dict(tools)
        self._answer = answer
        self._information = information
        names = [*self._arguments, answer, information]
        self._check(names)
        any_name = "|".join(map(re.escape, names))
        self._opens = opening(rf"<(?P<slash>/?)(?P<name>{any_name})(?P<rest>\s[^<>]*|/)?>")
        self._tag = re.compile(rf"</?(?:{any_name})(?:\s[^<>]*|/)?>")
        self.tags: tuple[str, ...] = tuple(
            tag for name in self._arguments for tag in (f"<{name}>", f"</{name}>")
        )

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every call outside of thinking and of answers, in order. Takes any text."""

        def read(met: re.Match[str]) -> Found:
            name = met["name"]
            if name == self._answer:
                return (), met.end() if met["slash"] else self._answered(text, met.end())
            if name == self._information:
                call = None if met["slash"] else self._made_up(text, met)
                return ((), met.end()) if call is None else ((call,), call.end)
            call = self._read(text, met, finish)
            return (call,), call.end

        return calls_outside_thinking(text, self._opens, read)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text, then a line for every call.

        Raises:
            ConfigError: a tool without a tag, other arguments than its one, which must be text without tags
                and without white space around it; or a text that would be read as a call.
        """
        checked_json(calls)
        parts = [text] if text else []
        for name, arguments in calls:
            argument = self._arguments.get(name)
            value = arguments.get(argument) if argument is not None and len(arguments) == 1 else None
            if not isinstance(value, str):
                known = ", ".join(f"{tool}({key}: text)" for tool, key in self._arguments.items())
                raise ConfigError(
                    f"the call {name}({dict(arguments)!r:.200}) has no tag; those that do: {known}"
                )
            parts.append(f"<{name}>{value}</{name}>")
        advice = "Neither text nor arguments may hold a tag of the format, nor an argument outer white space."
        return read_back(self, "\n".join(parts), calls, advice)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """See DescribedFormat.

        Raises:
            ConfigError: a tool without a tag, or one that needs more than its one argument.
        """
        for tool in tools:
            if tool.name not in self._arguments:
                raise ConfigError(
                    f"the format 'tags' has no tag for the tool '{tool.name}'. Set model.format_args.tools "
                    f'to every tool with its argument, such as {{ {tool.name} = "query" }}.'
                )
            check_argument("tags", tool, self._arguments[tool.name])
        how = " or ".join(f"{self._example(tool.name)}" for tool in tools)
        return (
            f"You have these tools:\n{listing(tools)}\n\nTo use one, write {how} and stop. Its result comes "
            f"back between <{self._information}> and </{self._information}>. "
            f"Write your final answer as <{self._answer}>answer</{self._answer}>."
        )

    def feedback(self, content: str) -> str:
        """``<information>…</information>``"""
        return f"<{self._information}>{content}</{self._information}>"

    def _check(self, names: Sequence[str]) -> None:
        if not self._arguments or not all(isinstance(a, str) and a for a in self._arguments.values()):
            raise ConfigError(
                f'format tags: tools maps each tool to its argument {{"search": "query"}}, '
                f"got {self._arguments!r}"
            )
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "think":
                raise ConfigError(f"format tags: {name!r} cannot be a tag. Use letters, digits, _ and -")
            if names.count(name) > 1:
                raise ConfigError(f"format tags: the tag '{name}' stands for two things. Rename one.")

    def _example(self, name: str) -> str:
        return f"<{name}>{self._arguments[name]}</{name}>"

    def _answered(self, text: str, at: int) -> int:
        """Where an answer that began before ``at`` ends; a tag that is never closed is but a word."""
        close = text.find(f"</{self._answer}>", at)
        return at if close < 0 else min(close, next_thinking(text, at))

    def _made_up(self, text: str, met: re.Match[str]) -> ParsedCall | None:
        """What a model made up; nothing when it only left off where the environment writes on."""
        end = next_thinking(text, met.end())
        if not text[met.end() : end].strip():
            return None
        reason = f"{met.group()} is written by the environment, never by you: stop after your call"
        return malformed(text, met.start(), end, reason)

    def _read(self, text: str, met: re.Match[str], finish: Finish) -> ParsedCall:
        """The call whose tag is ``met``."""
        name, start = met["name"], met.start()
        opened, closed = f"<{name}>", f"</{name}>"
        if met["slash"]:
            reason = f"{met.group()} stands without {opened} before it. Write {self._example(name)}"
            return malformed(text, start, met.end(), reason)
        tag = self._tag.search(text, met.end())
        if met["rest"] or tag is None or tag.group() != closed:
            before = f" before {tag.group()[:60]}: tags hold text alone" if tag else ""
            reason = f"{opened} is not closed by {closed}{before}"
            if met["rest"]:
                reason = f"{met.group()[:60]!r} is not {opened}"
            ends = re.compile(f"(?P<close>{closed})|{THINK}|{END_THINK}")
            reason = f"{reason}. Write {self._example(name)}"
            return malformed_until(text, start, met.end(), ends, reason, finish)
        value = text[met.end() : tag.start()].strip()
        if not value:
            reason = f"nothing stands in {opened}. Write {self._example(name)}"
            return malformed(text, start, tag.end(), reason)
        return well_formed(name, {self._arguments[name]: value}, start, tag.end())
