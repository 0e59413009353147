"""Task sets from JSON Lines files, plain or compressed: one JSON object a line, one task each.

Nothing is guessed or skipped: a line that is not a task is an error that names the file and the line.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from steprl.errors import TaskError, unknown
from steprl.tasks._files import json_object, json_value, read_lines
from steprl.tasks.hashing import task_hash
from steprl.types import Task


def load_jsonl(
    path: str | PathLike[str], *, prompt: str = "prompt", answer: str | None = "answer", id: str = "id"
) -> list[Task]:
    """Read the tasks of a ``.jsonl`` file, or of one that ends in ``.xz`` or ``.gz``.

    ``prompt``, ``answer`` and ``id`` name columns; all other columns go to ``Task.data``. Every row
    needs a prompt and an answer (``answer=None``: the rows have none). A row without an id is named by its
    content (``task_hash``). Blank lines are not rows.

    Raises:
        TaskError: the file is missing, unreadable or empty; a row is not a task; an id occurs twice.
    """
    file = Path(path)
    tasks: list[Task] = []
    line_of: dict[str, int] = {}
    for number, line in read_lines(file):
        if not line.strip():
            continue
        try:
            task = _task(json_object(json_value(line)), prompt, answer, id)
        except TaskError as error:
            raise TaskError(f"{file}:{number}: {error}") from error
        if task.id in line_of:
            raise TaskError(
                f"{file}:{number}: the task id '{task.id}' is already taken by line {line_of[task.id]}. "
                f"Give every row its own '{id}', or remove the duplicate."
            )
        line_of[task.id] = number
        tasks.append(task)
    if not tasks:
        raise TaskError(f"{file} holds no tasks: one JSON object a line is expected.")
    return tasks


def _task(row: dict[str, Any], prompt: str, answer: str | None, id: str) -> Task:
    for column in (prompt, answer):
        if column is not None and column not in row:
            raise TaskError(unknown("column", column, row, hint="Every row needs it."))
    if not isinstance(row[prompt], str):
        raise TaskError(f"'{prompt}' must be text, got {row[prompt]!r:.80}")
    task = Task(
        id="",
        prompt=row[prompt],
        answer=None if answer is None else row[answer],
        data={column: value for column, value in row.items() if column not in (prompt, answer, id)},
    )
    return replace(task, id=row_id(row[id], id) if id in row else task_hash(task))


def row_id(value: object, column: str) -> str:
    """An id as text, from the text or whole number that a column holds.

    Raises:
        TaskError: it is neither.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise TaskError(f"'{column}' must be text or a whole number, got {value!r:.80}")
    return str(value)
