"""HotpotQA: questions whose answers lie in several paragraphs that have to be found (Yang et al.,
arXiv:1809.09600); 2WikiMultihopQA, MuSiQue and Bamboogle are played the same way.

The data is not part of the package: ``tasks`` reads the official files from a path.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from steprl.envs.hotpotqa_demos import Searcher
from steprl.envs.tool_env import ToolEnv
from steprl.errors import ConfigError, TaskError
from steprl.tasks.multihop import answers_of, load_multihop, load_passages, paragraphs_of
from steprl.tasks.short_answers import exact_match, f1_score, is_well_tagged, tagged_answer
from steprl.tools import tool
from steprl.tools.search import Passage, SearchIndex, build_index, check_results, listing
from steprl.tools.search_cache import default_folder, open_index
from steprl.tools.threads import in_thread
from steprl.types import Action, Message, Task, Transition

MOST_RESULTS = 20
"""Passages of one search: they share the characters that a tool's output may have."""

_WHERE = (
    "HotpotQA's official files, such as hotpot_dev_distractor_v1.json, are linked from hotpotqa.github.io. "
    "Download them and give their paths, to a recipe as env.train=PATH env.eval=PATH; .xz and .gz are read "
    "as they are, and so are the files of 2WikiMultihopQA, MuSiQue and Bamboogle."
)


class HotpotQA(ToolEnv):
    """Search, then answer in a few words between ``<answer>`` and ``</answer>``, in a turn without a search.

    Reward components: ``outcome`` 1.0 for an exact match with a right answer, ``f1`` the F1 of its words,
    ``format`` 1.0 when the last turn holds exactly one answer between the tags; without tags all of its text
    is the answer. Each counts with weight 1 unless the run gives other weights.

    Args:
        corpus: the file whose passages all episodes search: one of questions, or JSON Lines of {title, text}.
            Empty: each episode searches the paragraphs that come with its question.
        results: passages that a search returns, 1 to 20.
        mark_evidence: mark results with a supporting title for the context rule ``evidence``. That uses the
            gold labels: what the rule keeps then says more than an agent could know.
        cache: the folder in which the index of ``corpus`` is kept; empty: ``~/.cache/steprl/search``.

    Raises:
        ConfigError: no such corpus, or a number of results out of range.
    """

    reward_range = (0.0, 3.0)
    system_prompt = (
        "Answer the question with what you find in the encyclopedia; it takes several searches. End with the "
        "answer in a few words (or yes, or no) as <answer>answer</answer>."
    )

    def __init__(
        self, *, corpus: str = "", results: int = 3, mark_evidence: bool = False, cache: str = ""
    ) -> None:
        check_results(results)
        if results > MOST_RESULTS:
            raise ConfigError(f"hotpotqa: results must be at most {MOST_RESULTS}, got {results}")
        if corpus and not Path(corpus).is_file():
            raise ConfigError(
                f"hotpotqa: there is no corpus '{corpus}'. Name a file of questions or passages."
            )
        self._corpus = corpus
        self._results = results
        self._mark_evidence = mark_evidence
        self._cache = Path(cache).expanduser() if cache else default_folder()

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        """The questions of a file; see `load_multihop` for what is read and what becomes of it.

        Raises:
            TaskError: there is no such file (says where it is found), or a row is not a question.
        """
        if not source:
            raise TaskError(f"HotpotQA needs the path of its task file. {_WHERE}")
        if not Path(source).is_file():
            raise TaskError(f"there is no HotpotQA file {source}. {_WHERE}")
        return load_multihop(source)

    @classmethod
    def oracle(cls, task: Task) -> Searcher:
        """Searches by what it reads, then gives the task's own answer: see `Searcher`."""
        return Searcher(answer=str(task.answer))

    async def setup(self, task: Task, seed: int) -> None:
        """Open the index; nothing is random here.

        Raises:
            ConfigError: the question comes without paragraphs, and there is no corpus.
        """
        self._supporting = frozenset(task.data.get("supporting", ()))
        self._read: dict[int, str] = {}
        self._evidence: set[str] = set()
        self._index = await in_thread(lambda: self._opened(task))

    @tool
    def search(self, query: str) -> str:
        """Search the encyclopedia. Returns the passages that fit best.

        Args:
            query: a few words, such as a name
        """
        hits = self._index.search(query, results=self._results)
        self._read.update((hit.number, hit.passage.title) for hit in hits)
        told = listing(query, hits)
        if any(hit.passage.title in self._supporting for hit in hits):
            self._evidence.add(told)
        return told

    tools = (search,)

    async def step(self, action: Action) -> Transition:
        """See ``ToolEnv.step``; evidence is marked if that was asked for."""
        transition = await super().step(action)
        if not self._mark_evidence:
            return transition
        marked = (
            replace(message, mark="evidence") if message.content in self._evidence else message
            for message in transition.feedback
        )
        return replace(transition, feedback=tuple(marked))

    def reward(self, task: Task, answer: str) -> dict[str, float]:
        """``outcome`` and ``f1`` over all right answers, and ``format``."""
        stated = tagged_answer(answer)
        said, golds = answer if stated is None else stated, answers_of(task)
        return {
            "outcome": exact_match(said, golds),
            "f1": f1_score(said, golds),
            "format": float(is_well_tagged(answer)),
        }

    def anchor(self, feedback: Sequence[Message]) -> str:
        """The passages read so far, whatever the searches that led to them."""
        return "read: " + " | ".join(f"{number} {title}" for number, title in sorted(self._read.items()))

    def _opened(self, task: Task) -> SearchIndex:
        if self._corpus:
            return shared_index(Path(self._corpus), self._cache)
        passages = [Passage(*titled) for titled in dict.fromkeys(paragraphs_of(task))]
        if not passages:
            raise ConfigError(
                f"the question '{task.id}' comes without paragraphs. Give a corpus to search in: a file of "
                f"questions with paragraphs or of passages, env.args.corpus=PATH"
            )
        return build_index(passages)


_shared: dict[tuple[Path, Path, int, int], SearchIndex] = {}
_sharing = threading.Lock()


def shared_index(corpus: Path, cache: Path) -> SearchIndex:
    """The index of a file's passages: read or built by the first episode that asks, the same for all others.

    Raises:
        TaskError: the file is none of passages.
        StorageError: the cache cannot be written.
    """
    with _sharing:
        state = corpus.stat()
        key = (corpus.resolve(), cache.resolve(), state.st_mtime_ns, state.st_size)
        if key not in _shared:
            passages = [Passage(*titled) for titled in load_passages(corpus)]
            _shared[key] = open_index(passages, folder=cache)
        return _shared[key]
