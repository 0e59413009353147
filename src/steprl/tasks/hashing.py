"""The content hash of a task: the same problem has the same hash, whatever its id, file or key order.

It says of every recorded trajectory which problem it solved, and names tasks that came without an id.
"""

from __future__ import annotations

import json
from hashlib import sha256

from steprl.errors import TaskError
from steprl.types import Task


def task_hash(task: Task) -> str:
    """First 16 hex digits of the SHA-256 of prompt, answer and data as canonical JSON.

    Raises:
        TaskError: answer or data hold something that JSON cannot.
    """
    content = {"prompt": task.prompt, "answer": task.answer, "data": dict(task.data)}
    try:
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"task '{task.id}' cannot be hashed: {error}. "
            f"Keep answer and data to what JSON holds: text, finite numbers, lists, objects with text keys."
        ) from error
    return sha256(canonical.encode("ascii")).hexdigest()[:16]
