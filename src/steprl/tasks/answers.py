"""Numeric answers: finding the number that a text states, exactly and in linear time.

GSM8K marks it with ``####``; without a marker it is the last number of the text.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

from steprl.errors import TaskError

MARKER = "####"
MAX_LENGTH = 200
"""Characters a number may have; longer runs of digits are not answers."""

# Each alternative is settled by the next character, so that no text makes the search go back far.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-−]\$?|\$[-−]?)?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:/(?P<below>\d+))?",
    re.ASCII,
)


def parse_number(text: str) -> Fraction | None:
    """The number that ``text`` is, or None: ``42``, ``$42.``, ``1,234.00``, ``-3``, ``1/2``, ``42%`` (42)."""
    bare = text.strip().removesuffix(".").removesuffix("%").removesuffix(".").rstrip()
    found = _NUMBER.fullmatch(bare)
    return None if found is None else _exact(found)


def stated_number(text: str) -> Fraction | None:
    """The first number after the last ``####``; without a marker the last number of the text; or None."""
    before, marker, after = text.rpartition(MARKER)
    if marker:
        found = _NUMBER.search(after)
        return None if found is None else _exact(found)
    last = deque(_NUMBER.finditer(text), maxlen=1)
    return _exact(last[0]) if last else None


def has_answer_line(text: str) -> bool:
    """True when a line of the text is ``#### number`` and nothing else."""
    lines = (line.strip() for line in text.splitlines())
    return any(
        line.startswith(MARKER) and parse_number(line.removeprefix(MARKER)) is not None for line in lines
    )


def numbers_equal(answer_text: str, gold: str | int | Fraction) -> bool:
    """True when ``answer_text`` states the number ``gold``; False also when it states none.

    Raises:
        TaskError: ``gold`` is no number.
    """
    expected = parse_number(gold) if isinstance(gold, str) else Fraction(gold)
    if expected is None:
        raise TaskError(f"the gold answer {gold!r:.80} is not a number")
    return stated_number(answer_text) == expected


def extract_gold(text: str) -> Fraction:
    """The number after ``####`` in a GSM8K solution: ``… #### 1,234.00`` is 1234.

    Raises:
        TaskError: there is no marker, or no number right after it.
    """
    _, marker, after = text.rpartition(MARKER)
    number = parse_number(after) if marker else None
    if number is None:
        raise TaskError(f"the solution must end with '{MARKER} number', but ends with {text[-60:]!r}")
    return number


def _exact(found: re.Match[str]) -> Fraction | None:
    if len(found[0]) > MAX_LENGTH:
        return None
    below = int(found["below"] or 1)
    if below == 0:
        return None
    number = Fraction(found["digits"].replace(",", "")) / below
    return -number if (found["sign"] or "").strip("$") else number
