"""Search over titled passages by BM25, and the tool that an agent searches with.

Scores are Okapi BM25 as Lucene computes it, from the library bm25s (Lù 2024, arXiv:2407.03618), which is
imported when the first index is made. An index never changes, so any number of episodes may search at once.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steprl.errors import ConfigError, ToolError
from steprl.tools.base import MAX_OUTPUT, Tool, tool

STOP_WORDS = frozenset(
    (
        "a an and are as at be but by for if in into is it no not of on or such that the their then there "
        "these they this to was will with"
    ).split()
)
"""Lucene's English stop words. They are in the index, so that who asks for nothing else finds them."""

_WORD = re.compile(r"[^\W_]+")


class Passage(NamedTuple):
    """A text with a title. Both are searched."""

    title: str
    text: str


class Hit(NamedTuple):
    """A passage found: its number in the index, counted from 0, and its BM25 score, above 0."""

    number: int
    passage: Passage
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25:
    """How passages are weighed: ``k1`` says how soon a repeated word counts no more, ``b`` how much a long
    passage is held against it (0: not at all, 1: fully).

    Raises:
        ConfigError: a value out of range.
    """

    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.k1 < float("inf") or not 0 <= self.b <= 1:
            raise ConfigError(f"BM25: k1 must be at least 0 and b from 0 to 1, got k1={self.k1}, b={self.b}")


STANDARD = Bm25()


class SearchIndex:
    """Passages and what is needed to find them. Made by `build_index`, or by `open_index` with a cache.

    ``scorer`` is a ``bm25s.BM25`` whose vocabulary is made of ``words`` of titles and texts.
    """

    def __init__(self, passages: Sequence[Passage], scorer: Any) -> None:
        self.passages = passages
        self.scorer = scorer

    def search(self, query: str, *, results: int) -> tuple[Hit, ...]:
        """The best passages, at most ``results``, best first; none that shares no word with the query.

        Passages with the same score come in the order of the index. Neither order nor repetition of the words
        of a query matters, and stop words count only where there is nothing else.

        Raises:
            ConfigError: ``results`` is less than 1.
            ToolError: the query holds no word.
        """
        check_results(results)
        asked = set(words(query))
        if not asked:
            raise ToolError(
                f"the query {_shown(query)} holds no word. Write what to look for, such as a name."
            )
        # in a fixed order, because a sum of floats depends on it
        ids = sorted(self.scorer.get_tokens_ids(list(asked - STOP_WORDS or asked)))
        if not ids:
            return ()
        scores_N = self.scorer.get_scores_from_ids(ids)
        found = np.flatnonzero(scores_N)
        if len(found) > results:
            least = np.partition(scores_N[found], -results)[-results]
            found = found[scores_N[found] >= least]
        best = found[np.argsort(-scores_N[found], kind="stable")][:results]
        return tuple(
            Hit(number=int(n), passage=self.passages[int(n)], score=float(scores_N[n])) for n in best
        )


def words(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, in lower case and without accents."""
    if not text.isascii():
        apart = unicodedata.normalize("NFKD", text)
        text = "".join(character for character in apart if not unicodedata.combining(character))
    return _WORD.findall(text.casefold())


def build_index(passages: Sequence[Passage], options: Bm25 = STANDARD) -> SearchIndex:
    """An index in memory.

    Raises:
        ConfigError: there are no passages, or no word in any of them.
    """
    vocabulary: dict[str, int] = {}
    ids = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in words(f"{passage.title}\n{passage.text}")]
        for passage in passages
    ]
    if not vocabulary:
        raise ConfigError(f"a search index needs passages with words in them, got {len(passages)} without.")
    scorer = library().BM25(k1=options.k1, b=options.b, method="lucene", backend="numpy")
    scorer.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    return SearchIndex(tuple(passages), scorer)


def listing(query: str, hits: Sequence[Hit], *, limit: int = MAX_OUTPUT) -> str:
    """What an agent reads of its hits: number, title and text of each, in ``limit`` characters at most.

    Every passage gets the same share of them; a longer one is cut and ends in "…".
    """
    if not hits:
        return f"No results for {_shown(query)}. Try other words, fewer of them, or a name."
    share = limit // len(hits) - 2
    blocks = [f"{rank}. {hit.passage.title}\n{hit.passage.text}" for rank, hit in enumerate(hits, start=1)]
    return "\n\n".join(block if len(block) <= share else block[: share - 1] + "…" for block in blocks)


def search_tool(index: SearchIndex, *, results: int = 3, name: str = "search") -> Tool:
    """A tool that searches an index, for environments in which all episodes search the same.

    Raises:
        ConfigError: ``results`` is less than 1, or the name cannot be that of a tool.
    """
    check_results(results)

    @tool(name=name, evidence=True)
    def search(query: str) -> str:
        """Search the encyclopedia. Returns the passages that fit best.

        Args:
            query: a few words, such as a name
        """
        return listing(query, index.search(query, results=results))

    return search


def check_results(results: int) -> None:
    """Refuse a number of results that is none.

    Raises:
        ConfigError: it is less than 1.
    """
    if results < 1:
        raise ConfigError(f"search: results must be at least 1, got {results}")


def library() -> Any:
    """The module bm25s.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import bm25s  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"searching needs {error.name}, which is not installed: pip install bm25s"
        ) from error
    # it asks for all its messages, whatever the program around it wants to hear
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def _shown(query: str) -> str:
    return repr(query if len(query) <= 100 else query[:100] + "…")
