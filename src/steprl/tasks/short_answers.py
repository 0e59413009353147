"""Short answers in words: exact match and F1 as the HotpotQA authors compute them, over one or more golds.

After ``hotpot_evaluate_v1.py`` of Yang et al. 2018 (arXiv:1809.09600), which took them from SQuAD.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

OPENED, CLOSED = "<answer>", "</answer>"
CLOSED_QUESTIONS = frozenset({"yes", "no", "noanswer"})
"""Answers that a longer answer has no part of: the F1 of "yes it is" with "yes" is 0."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, then without a, an, the; one space between words."""
    return _plain(_ARTICLES.sub(" ", _bare(text)))


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1.0 when the normalised answer is that of one of ``golds``, else 0.0.

    A gold that normalises to nothing ("A") is compared with its articles kept.
    """
    return max((float(_same(answer, gold)) for gold in golds), default=0.0)


def f1_score(answer: str, golds: Sequence[str]) -> float:
    """The F1 of the words of the normalised answer with those of a gold; the greatest over ``golds``.

    A yes, no or noanswer on either side counts only if the other side is the same.
    """
    return max((_f1(answer, gold) for gold in golds), default=0.0)


def tagged_answer(text: str) -> str | None:
    """What stands in the last ``<answer>…</answer>`` of a text; None: there is none."""
    before, closed, _ = text.rpartition(CLOSED)
    _, opened, inside = before.rpartition(OPENED)
    return inside.strip() if opened and closed else None


def is_well_tagged(text: str) -> bool:
    """True when a text holds exactly one ``<answer>…</answer>``, and something in it."""
    return text.count(OPENED) == text.count(CLOSED) == 1 and bool(tagged_answer(text))


def _bare(text: str) -> str:
    return text.lower().translate(_PUNCTUATION)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _same(answer: str, gold: str) -> bool:
    expected = normalised(gold)
    if not expected:
        return _plain(_bare(answer)) == _plain(_bare(gold))
    return normalised(answer) == expected


def _f1(answer: str, gold: str) -> float:
    said, expected = normalised(answer), normalised(gold)
    if said != expected and (said in CLOSED_QUESTIONS or expected in CLOSED_QUESTIONS):
        return 0.0
    said_words, expected_words = said.split(), expected.split()
    shared = (Counter(said_words) & Counter(expected_words)).total()
    # the harmonic mean of shared / said and shared / expected
    return 2 * shared / (len(said_words) + len(expected_words)) if shared else 0.0
