"""From characters to tokens: which tokens of an action wrote a stretch of its text.

Prefixes are decoded instead of summing the texts of single tokens, because a character can be split
over several tokens, and because some decoders treat the first token apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from steprl.types import Span


class TokenSpans:
    """Token spans of one action: ``text`` is ``decode(ids)``, ids i[A]."""

    def __init__(self, decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str) -> None:
        self._decode = decode
        self._ids = ids
        self._text = text
        self._settled: dict[int, int] = {}

    def span(self, start: int, end: int) -> Span:
        """The smallest token span that writes ``text[start:end]``, whole characters included."""
        prefixes = range(len(self._ids) + 1)
        first = bisect_left(prefixes, start, key=self._settles)
        if self._settles(first) > start:  # the token before also wrote the characters before
            first -= 1
        return first, bisect_left(prefixes, end, key=self._settles)

    def _settles(self, count: int) -> int:
        """How many characters of the text the first ``count`` tokens settle; never fewer with more tokens.

        Half a character decodes to replacement characters that the text does not have, so the part that
        agrees with the text is counted, not the length of the prefix.
        """
        if count not in self._settled:
            prefix = self._decode(self._ids[:count])
            length = len(prefix)
            while not self._text.startswith(prefix[:length]):
                length -= 1
            self._settled[count] = length
        return self._settled[count]
