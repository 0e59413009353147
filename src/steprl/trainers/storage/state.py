"""Where a run stands: what a checkpoint holds beside the learner's state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATE = "trainer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """What the loop needs, besides the learner, to go on: iterations done, the last one evaluated (-1: none
    yet), tasks dealt, seconds trained, the figures of the evaluation before training, and what a curriculum
    has learned of the tasks."""

    iteration: int
    evaluated: int
    cursor: int
    train_seconds: float
    before: Mapping[str, float]
    curriculum: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> TrainerState:
        """The state that ``text`` holds, as JSON.

        Raises:
            ValueError, TypeError: it holds none.
        """
        state = cls(**json.loads(text))
        for name, least in (("iteration", 0), ("evaluated", -1), ("cursor", 0)):
            value = getattr(state, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}, which is no number from {least} on")
        if not isinstance(state.curriculum, Mapping):
            raise ValueError(f"curriculum is {state.curriculum!r}, which is no mapping")
        return state
