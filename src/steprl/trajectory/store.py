"""The trajectories of a run as Parquet files, one per rollout batch: complete or absent, never half.

One row per step with its tokens; trajectory fields repeat on each of its rows, nested parts are JSON
text. Any Parquet reader opens them: ``SELECT uid, sum(reward) FROM 'runs/a/trajectories/*.parquet'
GROUP BY uid`` in DuckDB, ``pandas.read_parquet(path)``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from steprl.errors import ConfigError, StorageError, cannot_write
from steprl.trajectory.table import from_table, to_table
from steprl.trajectory.tokens import Decode
from steprl.types import TrajectoryGroup

Split = Literal["train", "eval"]

FOLDER = "trajectories"
VERSION = 1
"""Of the columns and what they mean. A change that an old reader would misread raises it."""

_VERSION_KEY = b"steprl.trajectories"
_SPLIT_KEY = b"steprl.split"


def file_path(run: str | Path, *, iteration: int, split: Split = "train") -> Path:
    """Where a run keeps the batch of an iteration. By name, the files of a run sort by iteration."""
    return Path(run) / FOLDER / f"{iteration:06d}-{split}.parquet"


def write(
    path: str | Path,
    groups: Sequence[TrajectoryGroup],
    *,
    iteration: int,
    split: Split = "train",
    decode: Decode | None = None,
) -> None:
    """Write one rollout batch. An interrupted write leaves what was at ``path`` as it was.

    With ``decode``, two more columns hold the text of prompt and action; they are for people and are
    never read back.

    Raises:
        ConfigError: ``path`` does not end in ``.parquet``, so that no reader would find it.
        StorageError: the disk is full, or the folder cannot be written.
        ValueError: a record holds something that its column cannot.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        raise ConfigError(f"trajectories are written to a .parquet file, got '{path}'")
    table = to_table(groups, iteration=iteration, split=split, decode=decode)
    table = table.replace_schema_metadata({_VERSION_KEY: str(VERSION), _SPLIT_KEY: split})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, table)
    except OSError as error:
        raise StorageError(cannot_write(path, error)) from error


def _write_whole(path: Path, table: pa.Table) -> None:
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            _write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write_table(table: pa.Table, file: object) -> None:
    # Prompts of an episode repeat one another. Plain 4-byte ids let zstd see it; a dictionary packs
    # them into odd numbers of bits, and the file is twice as large.
    text = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(table, file, compression="zstd", use_dictionary=text)


def _sync_folder(folder: Path) -> None:
    """Make a rename last: it is an entry of the folder, which is written on its own."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def files(run: str | Path) -> list[Path]:
    """The complete trajectory files of a run folder, or of a folder of Parquet files, by name.

    Raises:
        ConfigError: there is no such folder.
    """
    run = Path(run)
    if not run.is_dir():
        raise ConfigError(f"'{run}' is not a folder; give a run folder or its '{FOLDER}'")
    folder = run / FOLDER if (run / FOLDER).is_dir() else run
    return sorted(folder.glob("*.parquet"))


def read(path: str | Path, *, split: Split | None = None) -> list[TrajectoryGroup]:
    """The groups of one file, or of every file of a folder in the order of :func:`files`.

    ``split`` keeps the files of training or of evaluation only. Arrays, spans and messages equal
    those written.

    Raises:
        ConfigError: nothing is there, or a file is not one of ours or of another version.
    """
    path = Path(path)
    found = [path] if path.is_file() else files(path)
    groups: list[TrajectoryGroup] = []
    for file in found:
        written = _split_of(file)
        if split is None or split == written:
            groups += _groups(file)
    return groups


def _groups(path: Path) -> list[TrajectoryGroup]:
    try:
        return from_table(pq.read_table(path))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"'{path}' is damaged, or was changed by hand: {type(error).__name__}: {error}"
        ) from error


def _split_of(path: Path) -> str:
    """What a file is of, once its version is known to be ours."""
    try:
        metadata: dict[bytes, bytes] = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"'{path}' is not a Parquet file, or not all of one: {error}") from error
    version = metadata.get(_VERSION_KEY)
    if version is None:
        raise ConfigError(f"'{path}' is a Parquet file, but not one of trajectories written by steprl")
    if version != str(VERSION).encode():
        raise ConfigError(
            f"'{path}' has trajectory version {version.decode()}, this steprl reads version {VERSION}; "
            f"read it with the release that wrote it"
        )
    return metadata[_SPLIT_KEY].decode()
