"""The option ``--save``: where the episodes that a command plays are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _parquet(path: Path | None) -> Path | None:
    """Refused before anything is played, not after."""
    if path is not None and path.suffix != ".parquet":
        raise typer.BadParameter(f"episodes are stored in a .parquet file, got '{path}'")
    return path


SaveFile = Annotated[
    Path | None,
    typer.Option(help="Store the episodes in this .parquet file.", callback=_parquet, metavar="FILE"),
]
