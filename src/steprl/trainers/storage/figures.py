"""``metrics.jsonl``: the figures of a run, one line per iteration and one per evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steprl.errors import CheckpointError
from steprl.trainers.storage.durable import read_text, storing


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line. A figure that is not finite becomes null, as JSON wants it."""
    line = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    with storing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All lines, none when there is no file; a last line that a kill cut short is left out.

    Raises:
        CheckpointError: the file cannot be read, or a line is not one of figures.
    """
    lines = read_text(path).split("\n") if path.exists() else []
    found = []
    # a complete line ends in a newline, so what follows the last newline was cut short
    for number, line in enumerate(lines[:-1], start=1):
        try:
            figures = dict(json.loads(line))
            if type(figures.get("iteration")) is not int:
                raise ValueError(f"its iteration is {figures.get('iteration')!r}, which is no number")
            found.append(figures)
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{path}:{number} is no line of figures: {error}. Remove the line or put it right."
            ) from error
    return found
