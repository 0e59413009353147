"""Okapi BM25 over a handful of texts: which of them have most to do with a query.

    score(d) = Σ_w idf(w) · f·(k1 + 1) / (f + k1·(1 − b + b·|d| / mean |d|)),   f = count of w in d

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", section 3.4; the idf is
``ln(1 + (N − n + 1/2) / (n + 1/2))``, which stays positive when every text holds the word.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

K1, B = 1.5, 0.75


def bm25(query: str, texts: Sequence[str]) -> list[float]:
    """The score of each text; 0 where it shares no word with the query.

    Words are runs of letters and digits, in lower case.
    """
    counts = [Counter(_words(text)) for text in texts]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    scores = [0.0] * len(texts)
    for word in dict.fromkeys(_words(query)):
        having = sum(word in count for count in counts)
        idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for place, count in enumerate(counts):
            often = count[word]
            scores[place] += idf * often * (K1 + 1) / (often + K1 * (1 - B + B * lengths[place] / mean))
    return scores


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
