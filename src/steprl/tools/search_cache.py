"""Search indexes on disk: built once for each corpus, then opened by every run, memory-mapped.

A folder is complete or absent: it is written aside and renamed, and its manifest says what must be in it. One
that is damaged or of another version is built again, and the log says so.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import file_digest, sha256
from itertools import count
from pathlib import Path
from typing import Any, overload

import numpy as np

from steprl.errors import StorageError, cannot_write
from steprl.tools.search import STANDARD, Bm25, Passage, SearchIndex, build_index, library

logger = logging.getLogger("steprl.tools")

VERSION = 1
"""Of the files and of what counts as a word; raise it when either changes."""

_MANIFEST, _TEXTS, _ENDS, _SCORES = "manifest.json", "passages.utf8", "ends.npy", "bm25s"


class _Unusable(Exception):
    """Why a cached index cannot be opened."""


def default_folder() -> Path:
    """Where indexes are kept unless told otherwise: ``$XDG_CACHE_HOME/steprl/search``, or in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "steprl" / "search"


def open_index(
    passages: Sequence[Passage],
    options: Bm25 = STANDARD,
    *,
    folder: Path | None = None,
) -> SearchIndex:
    """The index of these passages: the one in ``folder``, memory-mapped, or a new one that is left there.

    What it is kept under follows from the passages, their order and the options, so a changed corpus is
    another index. Any number of processes may ask at once; each gets a whole one.

    Raises:
        ConfigError: there are no passages, or no word in any of them.
        StorageError: the folder cannot be written.
    """
    folder = default_folder() if folder is None else folder
    place = folder / f"bm25-{_key(passages, options)}"
    try:
        if place.exists():
            return _opened(place)
    except _Unusable as reason:
        logger.warning("the search index %s %s: it is built again", place, reason)
    built = build_index(passages, options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{place.name}-") as aside:
            new = Path(aside) / "new"
            _write(built, new)
            # opened before it is put in place: what happens there afterwards is no concern of this process
            index = _opened(new)
            _put(new, place)
    except OSError as error:
        raise StorageError(cannot_write(folder, error)) from error
    except _Unusable as reason:
        raise StorageError(f"the search index written to {folder} {reason}: is the disk sound?") from reason
    return index


class _Stored(Sequence[Passage]):
    """Passages in a memory-mapped file: titles and texts one after the other, and where each ends."""

    def __init__(self, folder: Path) -> None:
        self._bytes = np.memmap(folder / _TEXTS, mode="r")
        self._ends_2N = np.load(folder / _ENDS, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._ends_2N) // 2

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Passage]: ...
    def __getitem__(self, number: int | slice) -> Passage | Sequence[Passage]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        at = range(len(self))[number]  # which also counts from the end, and refuses what is beyond
        return Passage(title=self._part(2 * at), text=self._part(2 * at + 1))

    def _part(self, which: int) -> str:
        start = self._ends_2N[which - 1] if which else 0
        return str(self._bytes[start : self._ends_2N[which]].tobytes(), "utf-8")


def _parts(passages: Sequence[Passage]) -> Iterator[bytes]:
    return (part.encode("utf-8") for passage in passages for part in passage)


def _key(passages: Sequence[Passage], options: Bm25) -> str:
    hashed = sha256(json.dumps(asdict(options), sort_keys=True).encode("ascii"))
    for part in _parts(passages):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()[:32]


def _write(index: SearchIndex, place: Path) -> None:
    index.scorer.save(place / _SCORES, show_progress=False)
    parts = list(_parts(index.passages))
    (place / _TEXTS).write_bytes(b"".join(parts))
    np.save(place / _ENDS, np.cumsum([len(part) for part in parts], dtype=np.int64))
    (place / _MANIFEST).write_text(json.dumps(_manifest(place), indent=1), encoding="utf-8")


def _manifest(place: Path) -> dict[str, Any]:
    """Who makes such an index, and the SHA-256 of every file of this one: what a power cut tore apart, which
    a rename does not prevent, is noticed by it."""
    files = sorted(file for file in place.rglob("*") if file.is_file() and file.name != _MANIFEST)
    digests = {}
    for file in files:
        with file.open("rb") as stream:
            digests[file.relative_to(place).as_posix()] = file_digest(stream, "sha256").hexdigest()
    return {"made_by": f"steprl search {VERSION}, bm25s {library().__version__}", "files": digests}


def _opened(place: Path) -> SearchIndex:
    try:
        said = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        found = _manifest(place)
        if not isinstance(said, dict) or said.keys() != found.keys():
            raise _Unusable("is damaged: its manifest is none")
        if said["made_by"] != found["made_by"]:
            raise _Unusable(f"is of another version ({said['made_by']}; this is {found['made_by']})")
        if said != found:
            raise _Unusable("is damaged: its files are not those that were written")
        scorer = library().BM25.load(place / _SCORES, mmap=True, show_progress=False)
        return SearchIndex(_Stored(place), scorer)
    except (OSError, ValueError) as error:
        raise _Unusable(f"is damaged: {error}") from error


def _put(new: Path, place: Path) -> None:
    """Rename a finished index into place, unless another process has put one there meanwhile."""
    for attempt in count():
        try:
            new.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        try:
            _opened(place)
            return
        except _Unusable:
            pass  # what was told of before, so it goes
        try:
            place.rename(new.with_name(f"unusable-{attempt}"))
        except FileNotFoundError:
            pass  # another process has just moved it out of the way
