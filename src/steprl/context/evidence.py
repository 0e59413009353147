"""Evidence: of what was found on the way, the model sees what matters, and the newest rounds whole.

What matters is what the environment or its tools have marked, what resembles the task, or what a function of
yours says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from steprl.context._bm25 import bm25
from steprl.context._options import function, text, whole
from steprl.errors import ConfigError, EnvError, StepRLError
from steprl.types import Actor, History, Message

Select = Callable[[Message, History], bool]
"""Whether a message of the feedback is kept; like the rule, a pure function."""

_Place = tuple[int, int]
"""A round, and a message in its feedback."""

_TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The opening, what is selected of older rounds, and the last ``keep_last`` rounds whole.

    A message is selected together with the action that it answers; a round of which nothing is selected is
    not seen.

    Args:
        select: "marked": messages with ``mark="evidence"`` and results of ``tools``; "bm25": the ``top``
            messages that share most with the task, the user messages of the opening; or a function
            ``(message, history) -> bool``, as ``module:attribute``.
        keep_last: the newest rounds, which are not selected from.
        tools: names of tools whose results are evidence, for "marked".
        top: how many messages "bm25" selects at most; left out, 3.

    Raises:
        ConfigError: an option has a value that it cannot have, or no effect.
        EnvError: the user's function raised something, or answered with something else than a bool.
    """

    select: str | Select = "marked"
    keep_last: int = 1
    tools: Sequence[str] = ()
    top: int | None = None

    def __post_init__(self) -> None:
        whole("evidence", "keep_last", self.keep_last, least=1, meaning="last rounds that stay whole")
        if isinstance(self.tools, str):
            raise ConfigError(f"evidence: tools is {self.tools!r}; it must be a list of names of tools")
        for name in self.tools:
            text("evidence", "tools", name, meaning="the name of a tool")
        if self.top is not None:
            whole("evidence", "top", self.top, least=1, meaning="how many messages are selected")
        for option, of in (("tools", "marked"), ("top", "bm25")):
            if getattr(self, option) and self.select != of:
                raise ConfigError(
                    f"evidence: {option} has no effect with select = {self.select!r}. Remove it, or set "
                    f'select = "{of}".'
                )
        if self.select not in ("marked", "bm25"):
            self._function()  # a name that leads nowhere is refused here

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt. The policy is not asked for anything."""
        older = max(0, len(history.rounds) - self.keep_last)
        selected = self._selected(history, older)
        messages = list(history.opening)
        for number, past in enumerate(history.rounds):
            feedback = [
                message
                for place, message in enumerate(past.feedback)
                if number >= older or (number, place) in selected
            ]
            if feedback or number >= older:
                messages += [past.action.message(), *feedback]
        return messages

    def _selected(self, history: History, older: int) -> set[_Place]:
        found = {
            (number, place): message
            for number, past in enumerate(history.rounds[:older])
            for place, message in enumerate(past.feedback)
        }
        if self.select == "marked":
            return {
                at for at, m in found.items() if m.mark == "evidence" or (m.name and m.name in self.tools)
            }
        if self.select == "bm25":
            return self._nearest(history, found)
        return {at for at, message in found.items() if self._kept(message, at, history)}

    def _nearest(self, history: History, found: dict[_Place, Message]) -> set[_Place]:
        """The best of those that share a word with the task; of equals the newest."""
        task = "\n".join(message.content for message in history.opening if message.role == "user")
        scores = bm25(task, [message.content for message in found.values()])
        ranked = sorted(zip(scores, found, strict=True), reverse=True)
        return {at for score, at in ranked[: self.top or _TOP] if score > 0}

    def _function(self) -> Select:
        select = function("evidence", "select", self.select, instead='"marked" or "bm25"')
        if inspect.iscoroutinefunction(select):
            raise ConfigError(
                f"evidence: select is {self.select!r}, an async function; it must be a plain one"
            )
        return select

    def _kept(self, message: Message, at: _Place, history: History) -> bool:
        where = (
            f"the context rule's own function, evidence.select = {self.select!r}, for message {at[1]} of "
            f"round {at[0]} ({message.role} {message.name or ''}: {message.content[:60]!r})"
        )
        try:
            kept = self._function()(message, history)
        except StepRLError:
            raise
        except Exception as error:
            raise EnvError(f"{where}: it raised {type(error).__name__}: {error}") from error
        if not isinstance(kept, bool | np.bool_):
            raise EnvError(f"{where}: it returned {kept!r}, which is not a bool")
        return bool(kept)
