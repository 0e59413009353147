"""A demonstrator of GSM8K: it plays the worked solution that comes with every row.

It reads the solution, not the question, so it shows how an episode goes and not how a problem is solved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steprl.envs.policy import Move
from steprl.tasks.answers import MARKER, extract_gold
from steprl.tools.calculator import calculator
from steprl.types import Message

_CALCULATION = re.compile(r"<<([^<>=]+)=[^<>]*>>")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedSolution:
    """Makes the calculations of ``solution``, ``<<48/2=24>>``, one a message, then answers ``#### 72``.

    Raises:
        TaskError: when it acts, if the solution does not end with ``#### number``.
    """

    solution: str

    def act(self, messages: Sequence[Message]) -> Move:
        """The first calculation that was not made since the question; after the last one the answer."""
        asked = max((i for i, message in enumerate(messages) if message.role == "user"), default=0)
        made = sum(message.role == "tool" for message in messages[asked:])
        expressions = _CALCULATION.findall(self.solution)
        if made < len(expressions):
            return Move(calls=((calculator.name, {"expression": expressions[made]}),))
        return Move(text=f"{MARKER} {extract_gold(self.solution)}")
