"""Groups as an Arrow table with one row per step, and back without loss.

A trajectory without steps (an environment that broke at reset) is one row whose step is null, and a
group without trajectories one row whose uid is null. Shapes: P prompt tokens, A action tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from steprl.trajectory import cells
from steprl.trajectory.tokens import Decode
from steprl.types import EpisodeError, Sampling, Step, StopReason, Trajectory, TrajectoryGroup

_TEXT = pa.string()
_IDS = pa.list_(pa.int32())
_SAMPLING = pa.struct(
    [
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int64()),
        ("max_tokens", pa.int64()),
        ("stop_ids", pa.list_(pa.int64())),
        ("stop", pa.list_(_TEXT)),
    ]
)

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class _Column(Generic[Source]):
    """One column: its name, its type, what it holds of a record, and how a cell becomes that again."""

    name: str
    type: pa.DataType
    take: Callable[[Source], Any]
    restore: Callable[[Any], Any] | None = None


class _Line(NamedTuple):
    """What one row says."""

    group_index: int
    group: TrajectoryGroup
    trajectory: Trajectory | None
    step_index: int | None
    step: Step | None


def _diagnostic(text: str) -> str:
    """Text of an error as valid UTF-8: a report with an odd byte must not cost the whole batch."""
    return text.encode("utf-8", "backslashreplace").decode()


def _sampling(step: Step) -> dict[str, Any]:
    return {name: getattr(step.sampling, name) for name in _SAMPLING.names}


def _read_sampling(cell: dict[str, Any]) -> Sampling:
    return Sampling(**{**cell, "stop_ids": tuple(cell["stop_ids"]), "stop": tuple(cell["stop"])})


_TRAJECTORY: tuple[_Column[Trajectory], ...] = (
    _Column("uid", _TEXT, lambda t: t.uid),
    _Column("task_hash", _TEXT, lambda t: t.task_hash),
    _Column("seed", pa.uint64(), lambda t: t.seed),
    _Column("n_steps", pa.int32(), lambda t: len(t.steps)),
    _Column("stop_reason", _TEXT, lambda t: t.stop_reason.value, StopReason),
    _Column("error_kind", _TEXT, lambda t: t.error and t.error.kind),
    _Column("error_message", _TEXT, lambda t: t.error and _diagnostic(t.error.message)),
    _Column("error_traceback", _TEXT, lambda t: t.error and _diagnostic(t.error.traceback)),
    _Column("metrics", _TEXT, lambda t: cells.write_numbers(t.metrics), cells.read_numbers),
    _Column("final_prompt_ids", _IDS, lambda t: t.final_prompt_ids),
)

_STEP: tuple[_Column[Step], ...] = (
    _Column("prompt_ids", _IDS, lambda s: s.prompt_ids),
    _Column("action_ids", _IDS, lambda s: s.action_ids),
    _Column("sampled_mask", pa.list_(pa.bool_()), lambda s: s.sampled_mask),
    _Column("logprobs", pa.list_(pa.float32()), lambda s: s.logprobs),
    _Column("policy_versions", _IDS, lambda s: s.policy_versions),
    _Column("sampling", _SAMPLING, _sampling, _read_sampling),
    _Column("finish", _TEXT, lambda s: s.finish),
    _Column("kind", _TEXT, lambda s: s.kind),
    _Column("agent", _TEXT, lambda s: s.agent),
    _Column("parent", pa.int32(), lambda s: s.parent),
    _Column("reward", pa.float64(), lambda s: s.reward),
    _Column("rewards", _TEXT, lambda s: cells.write_numbers(s.rewards), cells.read_numbers),
    _Column("feedback", _TEXT, lambda s: cells.write_messages(s.feedback), cells.read_messages),
    _Column("anchor", _TEXT, lambda s: s.anchor),
    _Column("calls", _TEXT, lambda s: cells.write_calls(s.calls), cells.read_calls),
    _Column("timings", _TEXT, lambda s: cells.write_numbers(s.timings), cells.read_numbers),
)


def to_table(
    groups: Sequence[TrajectoryGroup], *, iteration: int, split: str, decode: Decode | None = None
) -> pa.Table:
    """One row per step. With ``decode``, also ``prompt_text`` and ``action_text`` for people to read.

    Raises:
        ValueError: a value does not fit its column; the message names the column and the value's fault.
    """
    lines = list(_lines(groups))
    line_columns: list[_Column[_Line]] = [
        _Column("iteration", pa.int64(), lambda _: iteration),
        _Column("split", _TEXT, lambda _: split),
        _Column("group_index", pa.int32(), lambda line: line.group_index),
        _Column("group_uid", _TEXT, lambda line: line.group.group_uid),
        _Column("task_id", _TEXT, lambda line: line.group.task_id),
        _Column("step", pa.int32(), lambda line: line.step_index),
    ]
    step_columns = list(_STEP)
    if decode is not None:
        step_columns += [
            _Column("prompt_text", _TEXT, lambda s: _diagnostic(decode(s.prompt_ids.tolist()))),
            _Column("action_text", _TEXT, lambda s: _diagnostic(decode(s.action_ids.tolist()))),
        ]
    arrays = {column.name: _array(column, lines) for column in line_columns}
    trajectories = [line.trajectory for line in lines]
    arrays |= {column.name: _array(column, trajectories) for column in _TRAJECTORY}
    steps = [line.step for line in lines]
    arrays |= {column.name: _array(column, steps) for column in step_columns}
    return pa.table(arrays)


def _lines(groups: Sequence[TrajectoryGroup]) -> Iterator[_Line]:
    for group_index, group in enumerate(groups):
        if not group.trajectories:
            yield _Line(group_index, group, None, None, None)
        for trajectory in group.trajectories:
            if trajectory.task_id != group.task_id:
                raise ValueError(
                    f"trajectory {trajectory.uid} is of task '{trajectory.task_id}', but its group "
                    f"{group.group_uid} is of task '{group.task_id}': a group has one task"
                )
            if not trajectory.steps:
                yield _Line(group_index, group, trajectory, None, None)
            for step_index, step in enumerate(trajectory.steps):
                yield _Line(group_index, group, trajectory, step_index, step)


def _array(column: _Column[Source], records: Sequence[Source | None]) -> pa.Array:
    try:
        values = [None if record is None else column.take(record) for record in records]
        if pa.types.is_list(column.type):
            return _ragged(values, column.type)
        return pa.array(values, column.type)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError) as error:
        raise ValueError(f"column '{column.name}' cannot hold a value of this batch: {error}") from error


def _ragged(values: Sequence[np.ndarray[Any, Any] | None], kind: pa.ListType) -> pa.Array:
    """A list column of 1-d arrays of different lengths; None is a null list, NaN a null element."""
    lengths = [0 if value is None else len(value) for value in values]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())
    missing = pa.array(np.array([value is None for value in values], dtype=np.bool_))
    present = [value for value in values if value is not None]
    flat = np.concatenate(present) if present else np.empty(0, kind.value_type.to_pandas_dtype())
    mask = np.isnan(flat) if pa.types.is_floating(kind.value_type) else None
    return pa.ListArray.from_arrays(offsets, pa.array(flat, kind.value_type, mask=mask), mask=missing)


def from_table(table: pa.Table) -> list[TrajectoryGroup]:
    """The groups of a table that :func:`to_table` made, in order.

    Raises:
        ValueError: rows of a trajectory are missing.
    """
    columns: dict[str, list[Any]] = {
        name: table.column(name).to_pylist() for name in ("group_index", "group_uid", "task_id", "step")
    }
    restored: tuple[_Column[Any], ...] = (*_TRAJECTORY, *_STEP)
    for column in restored:
        columns[column.name] = _cells(table.column(column.name), column.restore)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [_group(list(members)) for _, members in groupby(rows, key=lambda row: row["group_index"])]


def _cells(column: pa.ChunkedArray, restore: Callable[[Any], Any] | None) -> list[Any]:
    if not pa.types.is_list(column.type):
        values = column.to_pylist()
        return values if restore is None else [None if v is None else restore(v) for v in values]
    array = column.combine_chunks()
    flat = array.values.to_numpy(zero_copy_only=False)  # a null element of a float column becomes NaN
    offsets = array.offsets.to_numpy()
    missing = array.is_null().to_numpy(zero_copy_only=False)
    bounds = zip(offsets[:-1], offsets[1:], missing, strict=True)
    return [None if null else flat[start:end] for start, end, null in bounds]


def _group(rows: list[dict[str, Any]]) -> TrajectoryGroup:
    recorded = [row for row in rows if row["uid"] is not None]
    trajectories = [_trajectory(list(steps)) for _, steps in groupby(recorded, key=lambda row: row["uid"])]
    return TrajectoryGroup(
        group_uid=rows[0]["group_uid"], task_id=rows[0]["task_id"], trajectories=tuple(trajectories)
    )


def _trajectory(rows: list[dict[str, Any]]) -> Trajectory:
    first = rows[0]
    steps = [row for row in rows if row["step"] is not None]
    if [row["step"] for row in steps] != list(range(first["n_steps"])):
        raise ValueError(
            f"trajectory {first['uid']} has {first['n_steps']} steps, "
            f"but the rows of steps {[row['step'] for row in steps]}"
        )
    error = None
    if first["error_kind"] is not None:
        error = EpisodeError(
            kind=first["error_kind"], message=first["error_message"], traceback=first["error_traceback"]
        )
    return Trajectory(
        uid=first["uid"],
        group_uid=first["group_uid"],
        task_id=first["task_id"],
        task_hash=first["task_hash"],
        seed=first["seed"],
        steps=tuple(Step(**{column.name: row[column.name] for column in _STEP}) for row in steps),
        stop_reason=first["stop_reason"],
        final_prompt_ids=first["final_prompt_ids"],
        metrics=first["metrics"],
        error=error,
    )
