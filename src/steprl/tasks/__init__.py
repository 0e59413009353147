"""Tasks: reading them from files, naming them by content, and checking answers to them.

A task is data only (``steprl.types.Task``); what to do with it is an environment's business.
"""

from steprl.tasks.hashing import task_hash
from steprl.tasks.jsonl import load_jsonl

__all__ = ["load_jsonl", "task_hash"]
