"""Summaries: when the prompt grows too long, the policy writes down what matters, and goes on from there.

A summary is an action: a step of the kind "summary", with its own tokens, which can be trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steprl.context._options import below_context, text, whole
from steprl.context._thinking import without_thinking
from steprl.context._writer import Write, asked, made
from steprl.types import Action, Actor, History, Message, Observation, Summary

PROMPT = (
    "Summarise the conversation so far for yourself: what was asked, what has been found out and done, and "
    "what is left to do. You will go on from the summary without the conversation. Write the summary alone, "
    "and call no tool."
)


_WRITER = "the context rule's own writer, llm_summary.writer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSummary:
    """Everything, until the prompt is longer than ``budget``: then the opening, a summary of what came after
    it, and the rounds since.

    Everything so far and then ``prompt`` is what the summary is asked with, so its prompt extends the one
    before. It is shown in a user message after ``heading``, without its thinking. The next one is asked for
    when the prompt is again longer than the budget and there are rounds that the last one does not tell of;
    it takes the last one in. A request that does not fit into the context ends the episode as truncated.

    Args:
        budget: tokens of a prompt, descriptions of tools included, from which on a summary is asked for.
        keep_last: the newest rounds, which stay whole when a summary is written. With 0 they do not.
        writer: "policy"; or "frozen_model", or an async function ``(messages) -> text`` or a class that makes
            one, as ``module:attribute``: its summaries are recorded as steps of which nothing was sampled.
        writer_args: options of a writer that is made, such as ``{"model": …}`` for "frozen_model".
        prompt: the request, shown as a user message.
        heading: what stands before the summary where it is shown.

    Raises:
        ConfigError: an option has a value that it cannot have, or the budget is more than the context holds.
        EnvError: the writer raised something, or answered with something else than text.
    """

    budget: int
    keep_last: int = 1
    writer: str | Write = "policy"
    writer_args: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = PROMPT
    heading: str = "Summary of the conversation so far:"
    _write: Write | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole("llm_summary", "budget", self.budget, least=1, meaning="the most tokens of a prompt")
        whole("llm_summary", "keep_last", self.keep_last, least=0, meaning="last rounds that stay whole")
        text("llm_summary", "prompt", self.prompt, meaning="what a summary is asked for with")
        text("llm_summary", "heading", self.heading, meaning="what stands before a summary")
        object.__setattr__(self, "_write", made(self.writer, self.writer_args))

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """The messages of the next prompt, for which a summary may be asked for first."""
        below_context("llm_summary", "budget", self.budget, actor)
        newest = history.summaries[-1] if history.summaries else None
        shown = self._shown(history, newest)
        told = self._told(newest)
        if len(history.rounds) - self.keep_last <= told or actor.count(shown) <= self.budget:
            return shown
        request = (*shown, Message(role="user", content=self.prompt))
        writer = None if self._write is None else asked(self._write, request, f"{_WRITER} = {self.writer!r}")
        answer = await actor.act(Observation(messages=request), writer=writer)
        return self._shown(history, Summary(action=answer, rounds=len(history.rounds)))

    def _told(self, summary: Summary | None) -> int:
        """How many rounds a summary stands for."""
        return 0 if summary is None else max(0, summary.rounds - self.keep_last)

    def _shown(self, history: History, summary: Summary | None) -> list[Message]:
        messages = list(history.opening)
        if summary is not None:
            messages.append(self._message(summary.action))
        for past in history.rounds[self._told(summary) :]:
            messages += [past.action.message(), *past.feedback]
        return messages

    def _message(self, summary: Action) -> Message:
        return Message(role="user", content=f"{self.heading}\n{without_thinking(summary.text)}")
