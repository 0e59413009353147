"""Fenced blocks of code as calls of a code tool: a line ```` ```python ````, the code, a line of backticks.

Fences are read as CommonMark has them: a block is closed by at least as many backticks as opened it, so code
that holds a fence is written in a longer one. Blocks in other languages are text. An ``output`` block is the
environment's: a turn may end in its opening line, which is where a stop string cuts it, but a model that goes
on makes its results up, and from there on nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from steprl.errors import ConfigError
from steprl.renderers._describing import check_argument, listing
from steprl.renderers._reading import (
    CUT,
    END_THINK,
    Found,
    calls_outside_thinking,
    malformed,
    next_thinking,
    opening,
    well_formed,
)
from steprl.renderers._writing import checked_json, read_back
from steprl.renderers.formats import ParsedCall
from steprl.types import Finish, ToolSpec

_OPENS = opening(
    rf"(?:^|(?<={END_THINK}))(?P<indent>[ \t]*)(?P<fence>`{{3,}})(?P<info>[^`\r\n]*)(?P<line>\r?\n|\Z)?",
    re.MULTILINE,
)
_RUN = re.compile(r"^ {0,3}(`{3,})", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_+#.-]*")


class FencedCodeFormat:
    """Reads and writes blocks of code. See DescribedFormat for the contract.

    Args:
        language: what stands behind the backticks of a block that is run.
        tool, argument: the tool that runs it, and the argument that takes the code.
        output: what stands behind the backticks of a result.

    Raises:
        ConfigError: a language that is no word, or both of one name.
    """

    def __init__(
        self,
        *,
        language: str = "python",
        tool: str = "python",
        argument: str = "code",
        output: str = "output",
    ) -> None:
        for name, word in (("language", language), ("output", output)):
            if not _WORD.fullmatch(word):
                raise ConfigError(f"format fenced_code: {name} must be one word, got {word!r}")
        if language == output:
            raise ConfigError(f"format fenced_code: language and output are both '{language}'. Rename one.")
        self._language, self._output = language, output
        self._tool, self._argument = tool, argument
        self._fence = f"```{language}"
        self.tags: tuple[str, ...] = (self._fence, "```")

    def parse(self, text: str, finish: Finish) -> tuple[ParsedCall, ...]:
        """Every block of code outside of thinking and of other blocks, in order. Takes any text."""

        def read(met: re.Match[str]) -> Found:
            info = met["info"].split()
            word = info[0] if info else ""
            if word == self._output:
                call = self._made_up(text, met)
            elif word.lower() == self._language.lower():
                call = self._read(text, met, finish)
            else:
                return (), _behind(text, met)
            return ((), met.end()) if call is None else ((call,), call.end)

        return calls_outside_thinking(text, _OPENS, read)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text, then a block for every call, in a fence that is longer than any in its code.

        Raises:
            ConfigError: another tool or other arguments, code that ends in a carriage return, or a text that
                holds a block of code or an open fence.
        """
        checked_json(calls)
        parts = [text] if text else []
        for name, arguments in calls:
            code = arguments.get(self._argument) if len(arguments) == 1 else None
            if name != self._tool or not isinstance(code, str):
                raise ConfigError(
                    f"the call {name}({dict(arguments)!r:.200}) is no block of code: those call "
                    f"{self._tool}({self._argument}: text)"
                )
            fence = _fence_around(code)
            parts.append(f"{fence}{self._language}\n{code}\n{fence}")
        advice = "The text must not hold a block of code or leave a block open."
        return read_back(self, "\n".join(parts), calls, advice)

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """See DescribedFormat.

        Raises:
            ConfigError: other tools than the one, or one that needs more than the code.
        """
        for tool in tools:
            if tool.name != self._tool:
                raise ConfigError(
                    f"the format 'fenced_code' calls the tool '{self._tool}' alone, and the environment has "
                    f"'{tool.name}'. Set model.format_args.tool, or use a format for several tools."
                )
            check_argument("fenced_code", tool, self._argument)
        return (
            f"You can run code:\n{listing(tools)}\n\nTo do so, write a block\n{self._fence}\nyour code\n```\n"
            f"and stop. What it returns comes back in a block ```{self._output}. A turn without a block "
            f"{self._fence} is your answer."
        )

    def feedback(self, content: str) -> str:
        """The content as an ``output`` block."""
        fence = _fence_around(content)
        return f"{fence}{self._output}\n{content}\n{fence}"

    def _made_up(self, text: str, met: re.Match[str]) -> ParsedCall | None:
        """What a model made up; nothing when it only left off where the environment writes on."""
        end = next_thinking(text, met.end())
        if not text[met.end() : end].strip():
            return None
        reason = f"```{self._output} is written by the environment, never by you: stop after your code"
        return malformed(text, met.start("fence"), end, reason)

    def _read(self, text: str, met: re.Match[str], finish: Finish) -> ParsedCall:
        """The block that ``met`` opens. A malformed one takes the rest of the turn, unless it is closed."""
        start = met.start("fence")
        problem = ""
        if met["line"] is None or met["info"].strip() != self._language:
            problem = f"the opening line must be {self._fence} and nothing else"
        elif met["indent"]:
            problem = f"{self._fence} must stand at the beginning of its line"
        closed = None if met["line"] is None else _closing(text, met)
        if closed is None:
            end = next_thinking(text, met.end())
            problem = problem or f"the block is not closed by a line {met['fence']}"
            reason = CUT.get(finish, problem) if end == len(text) else problem
        else:
            end, reason = closed.end(), problem
        if reason:
            example = f"a line {self._fence}, your code, and a line ```"
            return malformed(text, start, end, f"{reason}. Write {example}" if reason == problem else reason)
        assert closed is not None
        return well_formed(self._tool, {self._argument: text[met.end() : closed.start()]}, start, end)


def _behind(text: str, met: re.Match[str]) -> int:
    """Where the block that ``met`` opens ends; one that is not closed runs on, and code in a line is none."""
    if met["line"] is None:
        return met.end()
    closed = _closing(text, met)
    return next_thinking(text, met.end()) if closed is None else closed.end()


def _closing(text: str, met: re.Match[str]) -> re.Match[str] | None:
    """The line that closes the block which ``met`` opens, with the line break before it."""
    least = len(met["fence"])
    # the opening line's own break may be the one before: an empty block
    pattern = rf"(?:\r?\n|(?<=\n)) {{0,3}}`{{{least},}}[ \t]*(?=\r?\n|\Z)"
    return re.compile(pattern).search(text, met.end())


def _fence_around(content: str) -> str:
    longest = max((len(run) for run in _RUN.findall(content)), default=0)
    return "`" * max(3, longest + 1)
