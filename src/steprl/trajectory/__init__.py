"""What became of the rollouts: kept as Parquet files, counted as metrics, shown as text.

Nothing here changes a record; what is read back equals what was written, token for token.
"""

from steprl.trajectory.statistics import batch_statistics, same_action, success, unique_tokens
from steprl.trajectory.store import Split, file_path, files, read, write
from steprl.trajectory.tokens import Decode, common_prefix
from steprl.trajectory.view import show_episode, summary_lines

__all__ = [
    "Decode",
    "Split",
    "batch_statistics",
    "common_prefix",
    "file_path",
    "files",
    "read",
    "same_action",
    "show_episode",
    "success",
    "summary_lines",
    "unique_tokens",
    "write",
]
