"""How long it takes to index the passages of a file, to open the index from the cache, and to search it.

    python benchmarks/search.py PATH/hotpotqa_mini.jsonl.xz

PATH is a file of questions with paragraphs (docs/hotpotqa.md says which are read); every paragraph of every
question is indexed. The queries are the questions, in an order drawn anew for each run. Build, open and
search take turns, ``--runs`` times, so that what else the machine does falls on all of them; the medians are
printed. Then, how often the searching of the oracle has found all supporting titles of a question.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import TypeVar

import bm25s  # type: ignore[import-untyped]
import numpy as np
import psutil

from steprl.envs.hotpotqa_demos import next_query
from steprl.tasks.multihop import load_multihop, paragraphs_of
from steprl.tools.search import Passage, SearchIndex, build_index, listing
from steprl.tools.search_cache import open_index
from steprl.types import Task

Result = TypeVar("Result")

SEARCHES = 4
"""As many as the oracle makes."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--results", type=int, default=3)
    options = parser.parse_args()

    tasks = load_multihop(options.path)
    passages = [Passage(*titled) for task in tasks for titled in paragraphs_of(task)]
    asked = [task for task in tasks if task.data["supporting"] and paragraphs_of(task)]
    own = [[Passage(*titled) for titled in paragraphs_of(task)] for task in asked]
    queries = [task.prompt for task in tasks]
    seconds: dict[str, list[float]] = {"build": [], "open": [], "search": [], "own": []}

    def timed(what: str, act: Callable[[], Result]) -> Result:
        start = time.perf_counter()
        result = act()
        seconds[what].append(time.perf_counter() - start)
        return result

    with tempfile.TemporaryDirectory() as folder:
        open_index(passages, folder=Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        for run in range(options.runs):
            Random(run).shuffle(queries)
            timed("build", lambda: build_index(passages))
            index = timed("open", lambda: open_index(passages, folder=Path(folder)))
            timed("search", lambda: [index.search(query, results=options.results) for query in queries])  # noqa: B023
            timed("own", lambda: [build_index(paragraphs) for paragraphs in own])

    build, opened, search, small = (median(seconds[what]) for what in ("build", "open", "search", "own"))
    texts = sum(len(passage.text) for passage in passages)
    print(f"{len(passages):,} passages, {texts / 1e6:.1f} million characters; on disk {size / 1e6:.1f} MB")
    print(f"build            {build:8.3f} s   {_spread(seconds['build'])}")
    print(
        f"open from cache  {opened:8.3f} s   {_spread(seconds['open'])}   {build / opened:.0f} times as fast"
    )
    rate = [len(queries) / took for took in seconds["search"]]
    print(f"search           {len(queries) / search:8.0f} /s  {_spread(rate)}   top {options.results}")
    each = [took / len(own) * 1e3 for took in seconds["own"]]
    print(f"build, 1 question{small / len(own) * 1e3:8.2f} ms  {_spread(each)}")
    print(
        f"median (least to most) of {options.runs} runs in turn; bm25s {bm25s.__version__}, numpy "
        f"{np.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs ({_processor()}), "
        f"load {psutil.getloadavg()[0]:.1f}, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )

    print(f"\nall supporting titles found after 1 to {SEARCHES} searches, of {len(asked)} questions")
    shared = build_index(list(dict.fromkeys(passages)))
    for top in dict.fromkeys((options.results, 5)):
        print(f"  one corpus, top {top}:  {_found(asked, [shared] * len(asked), top)}")
        print(f"  own corpora, top {top}: {_found(asked, [build_index(found) for found in own], top)}")


def _found(tasks: Sequence[Task], indexes: Sequence[SearchIndex], results: int) -> str:
    """Shares of questions, as the oracle searches: it knows no answer while it does."""
    complete = [0] * SEARCHES
    for task, index in zip(tasks, indexes, strict=True):
        read: list[str] = []
        titles: set[str] = set()
        for count in range(SEARCHES):
            query = next_query(task.prompt, read)
            if query is not None:
                hits = index.search(query, results=results)
                read.append(listing(query, hits))
                titles.update(hit.passage.title for hit in hits)
            complete[count] += titles.issuperset(task.data["supporting"])
    return "  ".join(f"{count / len(tasks):.0%}" for count in complete)


def _spread(values: list[float]) -> str:
    return f"({min(values):,.3g} to {max(values):,.3g})"


def _processor() -> str:
    """The processor's name where the system tells it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
