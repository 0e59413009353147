"""Reading the files that tasks come from: lines, plain or compressed, and the JSON object that a line is.

What cannot be read is an error; where it stands is for the caller to add, who knows what a row is.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from steprl.errors import TaskError


def read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines as bytes, numbered from 1, so that bad UTF-8 can be blamed on its line.

    Raises:
        TaskError: the file is missing or unreadable.
    """
    number = 0
    try:
        with _open(file) as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line
    except FileNotFoundError:
        raise TaskError(
            f"there is no task file {file}. Check the path: it is read from {Path.cwd()}"
        ) from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TaskError(f"{file} cannot be read after line {number}: {error}") from error


def json_value(encoded: bytes) -> Any:
    """The JSON value that UTF-8 bytes hold.

    Raises:
        TaskError: they are not UTF-8, not JSON, or hold a number that JSON does not allow.
    """
    try:
        return json.loads(encoded.decode("utf-8").rstrip("\r\n"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise TaskError(f"not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {error}") from error


def json_object(value: Any) -> dict[str, Any]:
    """A row, which must be a JSON object.

    Raises:
        TaskError: it is something else.
    """
    if not isinstance(value, dict):
        raise TaskError(f"a row must be a JSON object, got {type(value).__name__}")
    return value


def _open(file: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if file.suffix == ".xz":
        return lzma.open(file)
    if file.suffix == ".gz":
        return gzip.open(file)
    return file.open("rb")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number that JSON allows")
