"""Text without the thinking in it."""

from __future__ import annotations

import re


def without_thinking(text: str, opening: str = "<think>", closing: str = "</think>") -> str:
    """``text`` without what stands between the tags; the very same where there are none.

    A thought that was cut short ends with the text. A closing tag without its opening one closes a thought
    that the prompt opened.
    """
    if opening not in text and closing not in text:
        return text
    thought = re.compile(f"{re.escape(opening)}.*?(?:{re.escape(closing)}|\\Z)", re.DOTALL)
    return thought.sub("", text).rpartition(closing)[2].strip()
