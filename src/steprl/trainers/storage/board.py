"""The figures of ``metrics.jsonl`` once more, for TensorBoard.

An events file can only grow, so whenever a run starts or goes on its events are written anew from the
metrics: what will be played again is then there once, for every reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.summary import Writer

FOLDER = "tensorboard"


def open_board(run: Path, metrics: Sequence[Mapping[str, Any]]) -> Writer:
    """A writer into a fresh events file that holds ``metrics``, each line's ``iteration`` being its step."""
    for file in (run / FOLDER).glob("events.out.tfevents.*"):
        file.unlink()
    writer = Writer(str(run / FOLDER))
    for line in metrics:
        record(writer, line)
    return writer


def record(writer: Writer, line: Mapping[str, Any]) -> None:
    """Add the figures of one line; those that are not finite (null in the file) are no points."""
    for name, value in line.items():
        if name != "iteration" and value is not None and math.isfinite(value):
            writer.add_scalar(name, value, line["iteration"])
    writer.flush()
