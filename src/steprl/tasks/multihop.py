"""Questions over several paragraphs: HotpotQA, 2WikiMultihopQA, MuSiQue and Bamboogle in the layouts that
their authors publish, and one JSON Lines layout for any other; all become the same tasks.

``Task.data`` holds ``source``, ``type`` (or None), ``aliases`` (further right answers), ``supporting`` (the
titles of the paragraphs that hold the reasons) and ``paragraphs``, each {title, text, supporting}.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from steprl.errors import TaskError
from steprl.tasks._files import json_object, json_value, read_lines
from steprl.tasks._multihop_rows import entity_of, passage_of, task_of
from steprl.types import Task

Row = Mapping[str, Any]
Titled = tuple[str, str]
"""The title of a passage and its text."""

ENTITIES = "id_aliases.json"
"""The file of 2WikiMultihopQA, beside those of its questions, with the other names of what answers name."""


def load_multihop(path: str | PathLike[str]) -> list[Task]:
    """The questions of a file (JSON, JSON Lines or CSV; plain, ``.xz`` or ``.gz``) as tasks.

    White space in paragraphs is collapsed, so that the same paragraph is the same text in every layout. A row
    without an id is named by its content (``task_hash``). The aliases of a row with an ``answer_id``, as
    2WikiMultihopQA has them, are read from ``id_aliases.json`` in the same folder, if there is one.

    Raises:
        TaskError: the file is missing, unreadable or empty; a row is in none of the layouts, incomplete, or
            has no answer; an id occurs twice. The message names the file and the row.
    """
    file = Path(path)
    tasks: list[Task] = []
    taken: dict[str, str] = {}
    entities = _entities(file.with_name(ENTITIES))
    for place, row in _rows(file):
        with _blamed(place):
            task = task_of(row, entities)
            if task.id in taken:
                raise TaskError(
                    f"the task id '{task.id}' is already taken by {taken[task.id]}. "
                    f"Give every row its own id, or remove the duplicate."
                )
        taken[task.id] = place
        tasks.append(task)
    if not tasks:
        raise TaskError(f"{file} holds no questions. Which layouts are read: docs/hotpotqa.md")
    return tasks


def load_passages(path: str | PathLike[str]) -> list[Titled]:
    """The passages of a file, each once, in order: JSON Lines of {title, text}, or the paragraphs that the
    questions of a file come with.

    Raises:
        TaskError: the file is neither, or its questions come without paragraphs.
    """
    file = Path(path)
    found: dict[Titled, None] = {}
    for place, row in _rows(file):
        with _blamed(place):
            found.update(dict.fromkeys([passage_of(row)] if "text" in row else paragraphs_of(task_of(row))))
    if not found:
        raise TaskError(f"{file} holds no passages: there is nothing to search in.")
    return list(found)


def paragraphs_of(task: Task) -> list[Titled]:
    """Title and text of the paragraphs that come with a question."""
    return [(paragraph["title"], paragraph["text"]) for paragraph in task.data.get("paragraphs", ())]


def answers_of(task: Task) -> tuple[str, ...]:
    """Every right answer to a question: the gold one, then its aliases."""
    return (str(task.answer), *task.data.get("aliases", ()))


def _entities(file: Path) -> dict[str, list[str]]:
    """What entities are also called, by their id; nothing if there is no such file."""
    found = {}
    for place, row in _rows(file) if file.is_file() else ():
        with _blamed(place):
            id, names = entity_of(row)
            found[id] = names
    return found


def _rows(file: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a file, and how a message names each."""
    lines, place = read_lines(file), ""
    if ".csv" in file.suffixes:
        yield from _csv_rows(file, lines)
        return
    filled = ((number, line) for number, line in lines if line.strip())
    for number, line in filled:
        if not place and line.lstrip().startswith(b"["):
            with _blamed(str(file)):
                rows = json_value(b"".join([line, *(following for _, following in lines)]))
            yield from _array_rows(file, rows)
            return
        place = f"{file}:{number}"
        with _blamed(place):
            row = json_object(json_value(line))
        yield place, row


def _array_rows(file: Path, rows: Iterable[Any]) -> Iterator[tuple[str, Row]]:
    for number, value in enumerate(rows, start=1):
        place = f"{file}: row {number}"
        with _blamed(place):
            row = json_object(value)
        yield place, row


def _csv_rows(file: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[str, Row]]:
    number = 0

    def decoded() -> Iterator[str]:
        nonlocal number
        for at, line in lines:
            number = at
            with _blamed(f"{file}:{number}"):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise TaskError(f"not UTF-8: {error}") from error
            yield text

    try:
        for row in csv.DictReader(decoded(), strict=True):
            yield f"{file}:{number}", row
    except csv.Error as error:
        raise TaskError(f"{file}:{number}: not CSV: {error}") from error


@contextmanager
def _blamed(place: str) -> Iterator[None]:
    """Say of a bad row where it stands."""
    try:
        yield
    except TaskError as error:
        raise TaskError(f"{place}: {error}") from error
