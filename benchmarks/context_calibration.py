"""How much of Guestbook a context rule lets anybody solve: success of a reader who acts perfectly on what its
prompts show and guesses what they do not.

    python benchmarks/context_calibration.py --tasks 400

No model is involved. Prompts are measured with a tokenizer made as ``steprl policy build`` makes it, and one
that does not fit into the context (2,944 tokens for whole books, the recipe's for short ones) ends the
episode. Prints one line per rule: success, share of episodes that the context ended, prompt tokens per
episode (summaries included), and these as a share of append-only's: as it was played, cut off by the context,
and as it would take to read the books to their end. The best window is the best on these very tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from steprl.context import AppendOnly, Evidence, LlmSummary, SlidingWindow, TokenBudget
from steprl.envs.guestbook import LENGTHS, SHORT, Guestbook, guestbook_tasks, is_right
from steprl.envs.guestbook_demos import Reader
from steprl.learner.tokenizer import train_tokenizer
from steprl.renderers import ChatRenderer, HermesFormat
from steprl.trainers.api import load_recipe
from steprl.trainers.imitation.tokenizing import CHAT_TEMPLATE
from steprl.types import (
    Action,
    ContextRule,
    History,
    Message,
    Observation,
    Task,
    ToolCall,
    Writer,
)

RECIPE = load_recipe(Path(__file__).parents[1] / "recipes" / "context.toml")
UNLIMITED = 1 << 20
SCALES: Mapping[str, tuple[Sequence[int], int]] = {
    "whole": (LENGTHS, 2944),
    "short": (SHORT, RECIPE.engine.max_context or UNLIMITED),
}
"""Pages of the books, and tokens of the context that they are read in."""
VOCABULARY = 768
READER = Reader(seed=0)
FORMAT = HermesFormat()
TURN = Action(
    text=FORMAT.write("", [("turn", {})]),
    token_ids=(),
    tool_calls=(ToolCall(name="turn", arguments={}, id="call_0"),),
)
Book = tuple[Task, History]
"""A task, and all that was said up to its answer."""


class Prompts:
    """Lengths of prompts in tokens, message by message: each adds the same wherever it stands."""

    def __init__(self, renderer: ChatRenderer) -> None:
        tools = [Guestbook.turn.spec]
        system, page = (Message(role=role, content="Page") for role in ("system", "tool"))
        opening, word = len(renderer.render([system], tools)), len(renderer.encode("Page"))
        around = len(renderer.render([system, page], tools)) - opening - word

        @cache
        def added(content: str) -> int:
            return len(renderer.encode(content)) + around

        self._opening, self._added = opening - word - around, added

    def length(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that these messages make, the first of them being the system's."""
        return self._opening + sum(self._added(message.content) for message in messages)


class Reading:
    """The actor that a context rule sees in one episode: it measures prompts, and the reader sums up."""

    def __init__(self, prompts: Prompts, max_context: int) -> None:
        self.max_context = max_context
        self._prompts = prompts
        self._summaries: list[tuple[int, Action]] = []

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt."""
        return self._prompts.length(messages)

    async def act(
        self,
        observation: Observation,
        *,
        kind: Literal["act", "summary"] = "summary",
        writer: Writer | None = None,
    ) -> Action:
        """The reader's summary."""
        assert kind == "summary" and writer is None and observation.messages is not None
        summary = Action(text=READER.summarise(observation.messages), token_ids=())
        self._summaries.append((self.count(observation.messages), summary))
        return summary

    def taken(self) -> list[tuple[int, Action]]:
        """The summaries since this was last asked, each with the tokens of its prompt."""
        found, self._summaries = self._summaries, []
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How an episode went: whether it was solved, whether the context ended it, tokens of all its prompts."""

    success: bool
    truncated: bool
    prompt_tokens: int


async def _read(task: Task) -> Book:
    env = Guestbook()
    history = History(opening=tuple(await env.reset(task, seed=0)))
    for _ in range(task.data["pages"] + 1):
        history = history.then(TURN, (await env.step(TURN)).feedback)
    await env.close()
    return task, history


def read(tasks: Sequence[Task]) -> list[Book]:
    """Read every book once: pages are turned alike, whatever a rule shows of them."""

    async def everything() -> list[Book]:
        return [await _read(task) for task in tasks]

    return asyncio.run(everything())


def make_renderer(books: Sequence[Book]) -> ChatRenderer:
    """Messages ↔ tokens with a tokenizer trained on these books, as that of a policy is on demonstrations."""
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")

    def renderer(texts: Sequence[str]) -> ChatRenderer:
        return ChatRenderer(train_tokenizer(texts, VOCABULARY, template=template, tags=FORMAT.tags), FORMAT)

    draft, texts = renderer(()), []
    for task, history in books:
        messages = list(history.opening)
        for past in history.rounds:
            messages += [Message(role="assistant", content=past.action.text), *past.feedback]
        messages.append(Message(role="assistant", content=task.answer))
        texts.append(draft.decode(draft.render(messages, [Guestbook.turn.spec])))
    return renderer(texts)


async def play(rule: ContextRule, book: Book, actor: Reading) -> Played:
    """One episode under a rule, prompt by prompt. An action always finds room beside its prompt, which is
    generous to rules that fill the context."""
    task, whole = book
    tokens, summaries = 0, whole.summaries
    for rounds in range(len(whole.rounds) + 1):
        history = replace(whole, rounds=whole.rounds[:rounds], summaries=summaries)
        shown = await rule(history, actor)
        written = actor.taken()
        for length in (*(length for length, _ in written), actor.count(shown)):
            if length >= actor.max_context:
                return Played(success=False, truncated=True, prompt_tokens=tokens)
            tokens += length
        for _, summary in written:
            summaries = history.summarised(summary).summaries
    return Played(success=is_right(task, READER.act(shown).text), truncated=False, prompt_tokens=tokens)


def measure(rule: ContextRule, books: Sequence[Book], prompts: Prompts, max_context: int) -> dict[str, float]:
    """Means over the books of what the reader achieves under a rule, and of what it costs."""

    async def everything() -> list[Played]:
        return [await play(rule, book, Reading(prompts, max_context)) for book in books]

    played = asyncio.run(everything())
    names = [field.name for field in fields(Played)]
    return {name: sum(getattr(episode, name) for episode in played) / len(played) for name in names}


def rules(books: Sequence[Book], max_context: int) -> Mapping[str, ContextRule]:
    """Every rule by the name it has in the table: all windows up to the longest book are among them, and a
    token budget that leaves room for an answer."""
    budget = max_context - RECIPE.rollout.max_tokens
    longest = max(len(history.rounds) for _, history in books)
    return {
        "append_only": AppendOnly(),
        **{f"sliding_window({rounds})": SlidingWindow(rounds=rounds) for rounds in range(1, longest + 1)},
        f"token_budget({budget})": TokenBudget(tokens=budget),
        "evidence": Evidence(),
        "llm_summary": LlmSummary(**RECIPE.context.args),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the tasks")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--books", choices=SCALES, default="whole", help="how long they are")
    args = parser.parse_args()
    lengths, max_context = SCALES[args.books]
    books = read(guestbook_tasks("eval", count=args.tasks, seed=args.seed, lengths=lengths))
    prompts = Prompts(make_renderer(read(guestbook_tasks("train", count=50))))
    whole = measure(AppendOnly(), books, prompts, UNLIMITED)["prompt_tokens"]
    found: dict[str, dict[str, float]] = {}
    print(f"{'rule':20}  success  truncated  prompt tokens  of append-only  of the whole book")
    for name, rule in rules(books, max_context).items():
        figures = found[name] = measure(rule, books, prompts, max_context)
        tokens = figures["prompt_tokens"]
        shares = (tokens / found["append_only"]["prompt_tokens"], tokens / whole)
        print(
            f"{name:20}  {figures['success']:7.3f}  {figures['truncated']:9.3f}  {tokens:13.0f}  "
            f"{shares[0]:14.1%}  {shares[1]:17.1%}"
        )
    best = max((name for name in found if name.startswith("sliding")), key=lambda n: found[n]["success"])
    print(f"best window: {best}, {found[best]['success']:.3f}")
    print(f"{args.tasks} tasks, context of {max_context} tokens; the whole book: {whole:.0f} prompt tokens")
    print(f"{platform.machine()}, steprl {version('steprl')}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
