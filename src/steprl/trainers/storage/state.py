"""Where a run stands: what a checkpoint holds beside the learner's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STATE = "trainer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """What the loop needs, besides the learner, to go on: iterations done, the last one evaluated (-1: none
    yet), tasks dealt, seconds trained, and the figures of the evaluation before training."""

    iteration: int
    evaluated: int
    cursor: int
    train_seconds: float
    before: Mapping[str, float]
