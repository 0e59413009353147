"""Every message that docs/troubleshooting.md quotes is one that the code can say."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
OTHERS = ("Invalid value (at line",)
"""Texts of the standard library, which the code hands on with nothing of its own but a file's name."""

QUOTED = re.findall(r"^    (\w+Error: .+)$", PAGE, flags=re.MULTILINE)
LONG_ENOUGH = 10
"""Letters that a text in the code must have, apart from what is filled in, to count as a message."""


@cache
def templates() -> tuple[re.Pattern[str], ...]:
    """Every text of the code that may be a message, as a pattern: what is filled in may be anything."""
    found = set()
    for path in (ROOT / "src" / "steprl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if not all(text is None or isinstance(text, str) for text in texts):
                continue
            if sum(len(text) for text in texts if isinstance(text, str)) >= LONG_ENOUGH:
                found.add("".join(".*" if text is None else re.escape(str(text)) for text in texts))
    return tuple(map(re.compile, found))


@pytest.mark.parametrize("message", QUOTED)
def test_the_code_can_say_it(message: str) -> None:
    kind, _, text = message.partition(": ")
    own = any(pattern.search(text) for pattern in templates())
    assert own or any(other in text for other in OTHERS), f"no {kind} says this any more"


def test_there_are_messages_and_a_made_up_one_is_noticed() -> None:
    assert len(QUOTED) > 20
    assert not any(pattern.search("the flux capacitor is out of charge") for pattern in templates())
