"""What is written is what is read, by us and by others; and a file is complete or absent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.trajectory import file_path, files, read, write
from steprl.types import (
    EpisodeError,
    MalformedCall,
    Message,
    Sampling,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
)

IDS = st.integers(0, 2**31 - 1)
TEXT = st.text(max_size=12)
ANY_TEXT = st.one_of(TEXT, st.just("half a character: \ud800"))
NUMBERS = st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3)
LOGPROBS = st.floats(-100, 0, width=32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
MESSAGES = st.one_of(
    st.builds(
        Message,
        role=st.sampled_from(["user", "tool", "system"]),
        content=ANY_TEXT,
        name=st.none() | TEXT,
        tool_call_id=st.none() | TEXT,
        mark=st.sampled_from([None, "evidence", "state"]),
    ),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=ANY_TEXT,
        token_ids=st.none() | st.lists(IDS, max_size=3).map(tuple),
    ),
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 4),
    top_p=st.floats(0.1, 1),
    top_k=st.integers(0, 100),
    max_tokens=st.integers(1, 10_000),
    stop_ids=st.lists(IDS, max_size=2).map(tuple),
    stop=st.lists(st.text(min_size=1, max_size=4), max_size=2).map(tuple),
)


@st.composite
def calls(draw, n: int):
    start = draw(st.integers(0, n))
    span = (start, draw(st.integers(start, n)))
    if draw(st.booleans()):
        return MalformedCall(raw=draw(ANY_TEXT), reason=draw(ANY_TEXT), span=span)
    arguments = draw(st.dictionaries(TEXT, JSON, max_size=3))
    return ToolCall(name=draw(TEXT), arguments=arguments, id=draw(TEXT), span=span)


@st.composite
def steps(draw, index: int) -> Step:
    n = draw(st.integers(0, 6))
    mask = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    logprobs = None
    if draw(st.booleans()):
        logprobs = [draw(LOGPROBS) if sampled else float("nan") for sampled in mask]
    return Step(
        prompt_ids=draw(st.lists(IDS, min_size=1, max_size=8)),
        action_ids=draw(st.lists(IDS, min_size=n, max_size=n)),
        sampled_mask=mask,
        logprobs=logprobs,
        policy_versions=draw(st.lists(st.integers(-1, 9), min_size=n, max_size=n)),
        sampling=draw(SAMPLINGS),
        finish=draw(st.sampled_from(["stop", "length", "abort"])),
        kind=draw(st.sampled_from(["act", "summary"])),
        agent=draw(TEXT),
        parent=draw(st.none() | st.integers(0, index - 1)) if index else None,
        reward=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        rewards=draw(NUMBERS),
        feedback=tuple(draw(st.lists(MESSAGES, max_size=2))),
        anchor=draw(st.none() | TEXT),
        calls=tuple(draw(st.lists(calls(n), max_size=2))),
        timings=draw(NUMBERS),
    )


@st.composite
def groups(draw) -> list[TrajectoryGroup]:
    made = []
    for g in range(draw(st.integers(0, 3))):
        trajectories = []
        for i in range(draw(st.integers(0, 3))):
            broke = draw(st.booleans())
            error = EpisodeError(kind=draw(TEXT), message=draw(TEXT), traceback=draw(TEXT)) if broke else None
            reason = st.sampled_from([reason for reason in StopReason if reason is not StopReason.ERROR])
            trajectory = Trajectory(
                uid=f"{g}-{i}",
                group_uid=f"group {g // 2}",
                task_id=f"task {g}",
                task_hash=draw(TEXT),
                seed=draw(st.integers(0, 2**64 - 1)),
                steps=tuple(draw(steps(index)) for index in range(draw(st.integers(0, 3)))),
                stop_reason=StopReason.ERROR if broke else draw(reason),
                final_prompt_ids=draw(st.none() | st.lists(IDS, max_size=4)),
                metrics=draw(NUMBERS),
                error=error,
            )
            trajectories.append(trajectory)
        made.append(
            TrajectoryGroup(
                group_uid=f"group {g // 2}", task_id=f"task {g}", trajectories=tuple(trajectories)
            )
        )
    return made


def assert_same(left: object, right: object) -> None:
    """Equal all the way down: same types, same bits in arrays (NaN equals NaN)."""
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        filler = np.zeros(1, left.dtype)
        assert (
            np.where(left == left, left, filler).tobytes()
            == np.where(right == right, right, filler).tobytes()
        )
        assert ((left == left) == (right == right)).all()
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, (TrajectoryGroup, Trajectory, Step)):
        for field in fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    else:
        assert left == right
        assert repr(left) == repr(right)  # tells -0.0 from 0.0 and keeps the order of names


def step(**changed: object) -> Step:
    given = {
        "prompt_ids": [1, 2, 3],
        "action_ids": [7, 8, 9],
        "sampled_mask": [True, True, False],
        "logprobs": [-0.5, -1.25, float("nan")],
        "policy_versions": [4, 5, 5],
        "sampling": Sampling(temperature=0.7),
        "rewards": {"outcome": 1.0},
        "reward": 1.0,
    }
    return Step(**{**given, **changed})


def trajectory(uid: str = "a", *, members: tuple[Step, ...] | None = None, **changed: object) -> Trajectory:
    given = {
        "uid": uid,
        "group_uid": "g",
        "task_id": "t",
        "task_hash": "hash",
        "seed": 3,
        "steps": (step(), step(parent=0)) if members is None else members,
        "stop_reason": StopReason.TERMINATED,
    }
    return Trajectory(**{**given, **changed})


def group(*members: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(group_uid="g", task_id="t", trajectories=members)


@given(groups())
@settings(max_examples=60, deadline=None)
def test_what_is_read_equals_what_was_written(written: list[TrajectoryGroup]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "batch.parquet"
        write(path, written, iteration=7)
        assert_same(read(path), written)


def test_no_groups_are_a_valid_file_with_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    write(path, [], iteration=0)
    assert read(path) == []
    assert pq.read_table(path).num_rows == 0
    assert duckdb.sql(f"select count(prompt_ids) from '{path}'").fetchall() == [(0,)]


def test_an_episode_that_broke_at_reset_survives(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    error = EpisodeError(kind="EnvError", message="no such server", traceback="line 1\nline 2")
    written = [group(trajectory(members=(), stop_reason=StopReason.ERROR, error=error))]
    write(path, written, iteration=1)
    assert_same(read(path), written)
    rows = pandas.read_parquet(path)
    assert rows[["n_steps", "error_kind", "error_message"]].values.tolist() == [
        [0, "EnvError", "no such server"]
    ]
    assert rows["step"].isna().all()


def test_numbers_that_json_does_not_have_come_back(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    call = ToolCall(name="f", arguments={"x": float("nan"), "y": [float("-inf")]}, id="1")
    write(
        path,
        [group(trajectory(members=(step(calls=(call,)),), metrics={"a": float("nan"), "b": float("inf")}))],
        iteration=1,
    )
    back = read(path)[0].trajectories[0]
    assert repr(dict(back.metrics)) == "{'a': nan, 'b': inf}"
    assert repr(back.steps[0].calls[0].arguments) == "{'x': nan, 'y': [-inf]}"
    for cell in pq.read_table(path, columns=["metrics", "calls"]).to_pylist()[0].values():
        json.loads(cell, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_duckdb_reads_tokens_and_looks_into_json(tmp_path: Path) -> None:
    for iteration in (1, 2):
        write(file_path(tmp_path, iteration=iteration), [group(trajectory())], iteration=iteration)
    found = duckdb.sql(
        f"""select iteration, uid, sum(reward), sum(len(list_filter(sampled_mask, lambda m: m))),
                   sum(cast(rewards->>'$.outcome' as double)), any_value(sampling.temperature)
            from '{tmp_path}/trajectories/*.parquet' group by all order by iteration"""
    ).fetchall()
    assert found == [(1, "a", 2.0, 4, 2.0, 0.7), (2, "a", 2.0, 4, 2.0, 0.7)]
    path = file_path(tmp_path, iteration=1)
    assert duckdb.sql(f"select logprobs, action_ids from '{path}' limit 1").fetchall() == [
        ([-0.5, -1.25, None], [7, 8, 9])
    ]


def test_pandas_reads_plain_columns_and_text_for_people(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    unscored = step(parent=0, reward=None, logprobs=None, feedback=(Message(role="tool", content="né"),))
    write(
        path,
        [group(trajectory(members=(step(), unscored)))],
        iteration=3,
        split="eval",
        decode=lambda ids: "-".join(map(str, ids)),
    )
    rows = pandas.read_parquet(path)
    assert rows["step"].tolist() == [0, 1]
    assert rows["iteration"].tolist() == [3, 3]
    assert rows["split"].tolist() == ["eval", "eval"]
    assert rows["prompt_ids"][0].tolist() == [1, 2, 3]
    assert rows["prompt_ids"][0].dtype == np.int32
    assert rows["logprobs"][1] is None
    assert rows["reward"].isna().tolist() == [False, True]
    assert json.loads(rows["feedback"][1]) == [{"role": "tool", "content": "né"}]
    assert "né" in rows["feedback"][1]
    assert rows["prompt_text"].tolist() == ["1-2-3"] * 2
    assert rows["action_text"].tolist() == ["7-8-9"] * 2


def test_without_a_decoder_there_are_no_text_columns(tmp_path: Path) -> None:
    write(tmp_path / "batch.parquet", [group(trajectory())], iteration=1)
    assert not {"prompt_text", "action_text"} & set(pq.read_schema(tmp_path / "batch.parquet").names)


def test_repeated_prompts_of_an_episode_cost_little(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, members = rng.integers(0, 50_000, 500), []
    for index in range(8):
        action = rng.integers(0, 50_000, 50)
        members.append(
            step(
                prompt_ids=ids,
                action_ids=action,
                sampled_mask=np.ones(50, bool),
                logprobs=None,
                policy_versions=np.zeros(50, int),
                parent=index - 1 if index else None,
            )
        )
        ids = np.concatenate([ids, action])
    write(tmp_path / "batch.parquet", [group(trajectory(members=tuple(members)))], iteration=1)
    row_group = pq.ParquetFile(tmp_path / "batch.parquet").metadata.row_group(0)
    sizes = {
        row_group.column(i).path_in_schema.split(".")[0]: row_group.column(i).total_compressed_size
        for i in range(row_group.num_columns)
    }
    repeated = 4 * sum(len(member.prompt_ids) for member in members)
    assert sizes["prompt_ids"] < 0.3 * repeated


def test_folder_is_read_in_order_of_iteration_and_by_split(tmp_path: Path) -> None:
    for iteration in (10, 9):
        for split in ("train", "eval"):
            write(
                file_path(tmp_path, iteration=iteration, split=split),
                [group(trajectory(f"{split} {iteration}"))],
                iteration=iteration,
                split=split,
            )

    def uids(folder: Path, **kept: str) -> list[str]:
        return [g.trajectories[0].uid for g in read(folder, **kept)]

    assert uids(tmp_path) == ["eval 9", "train 9", "eval 10", "train 10"]
    assert uids(tmp_path / "trajectories") == uids(tmp_path)
    assert uids(tmp_path, split="train") == ["train 9", "train 10"]
    assert uids(tmp_path, split="eval") == ["eval 9", "eval 10"]


CUT_SHORT = """
import resource, signal, sys
import numpy as np
from steprl.trajectory import write
from steprl.types import Sampling, Step, StopReason, Trajectory, TrajectoryGroup

ids = np.random.default_rng(0).integers(0, 2**31 - 1, 200_000)
step = Step(prompt_ids=ids, action_ids=[], sampled_mask=[], logprobs=None, policy_versions=[],
            sampling=Sampling())
one = Trajectory(uid="new", group_uid="g", task_id="t", task_hash="", seed=0, steps=(step,),
                 stop_reason=StopReason.TERMINATED)
signal.signal(signal.SIGXFSZ, getattr(signal, sys.argv[2]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
write(sys.argv[1], [TrajectoryGroup(group_uid="g", task_id="t", trajectories=(one,))], iteration=2)
"""


def cut_short(path: Path, handler: str) -> subprocess.CompletedProcess[str]:
    """Write to ``path`` in a process whose files may not grow past 100 kB."""
    return subprocess.run(
        [sys.executable, "-c", CUT_SHORT, str(path), handler], capture_output=True, text=True, check=False
    )


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    write(path, [group(trajectory("old"))], iteration=1)
    ended = cut_short(path, "SIG_IGN")
    assert ended.returncode == 1
    assert "File too large" in ended.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["batch.parquet"]
    assert read(path)[0].trajectories[0].uid == "old"


def test_a_process_killed_while_writing_leaves_no_file_that_readers_see(tmp_path: Path) -> None:
    old = file_path(tmp_path, iteration=1)
    write(old, [group(trajectory("old"))], iteration=1)
    ended = cut_short(file_path(tmp_path, iteration=2), "SIG_DFL")
    assert ended.returncode == -signal.SIGXFSZ
    assert len(list(old.parent.iterdir())) == 2  # the old file and what is left of the new one
    assert files(tmp_path) == [old]
    assert [g.trajectories[0].uid for g in read(tmp_path)] == ["old"]
    assert duckdb.sql(f"select distinct uid from '{old.parent}/*.parquet'").fetchall() == [("old",)]


def test_writing_again_replaces_the_file_under_a_reader_that_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    write(path, [group(trajectory("old"))], iteration=1)
    old = path.read_bytes()
    with path.open("rb") as reader:
        write(path, [group(trajectory("new"))], iteration=1)
        assert reader.read() == old
    assert [g.trajectories[0].uid for g in read(path)] == ["new"]


def test_files_that_are_not_ours_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    write(path, [group(trajectory())], iteration=1)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"steprl.trajectories": "99"}), path)
    with pytest.raises(
        ConfigError, match=r"batch.parquet' has trajectory version 99, this steprl reads version 1"
    ):
        read(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ConfigError, match="not one of trajectories"):
        read(path)
    path.write_bytes(b"PAR1 and then the disk was full")
    with pytest.raises(ConfigError, match="is not a Parquet file, or not all of one"):
        read(path)
    with pytest.raises(ConfigError, match="is not a folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"written to a \.parquet file"):
        write(tmp_path / "batch.json", [], iteration=1)


def test_a_value_that_does_not_fit_names_its_column_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    call = ToolCall(name="f", arguments={"x": object()}, id="1")
    for bad, column in [
        (trajectory(seed=-1), "seed"),
        (trajectory(members=(step(anchor="\ud800"),)), "anchor"),
        (trajectory(members=(step(calls=(call,)),)), "calls"),
    ]:
        with pytest.raises(ValueError, match=f"column '{column}'"):
            write(path, [group(bad)], iteration=1)
    with pytest.raises(ValueError, match="a group has one task"):
        write(path, [group(trajectory(task_id="other"))], iteration=1)
    assert list(tmp_path.iterdir()) == []


def test_an_odd_byte_in_an_error_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    error = EpisodeError(kind="OSError", message="file \udcff", traceback="")
    write(path, [group(trajectory(stop_reason=StopReason.ERROR, error=error))], iteration=1)
    assert read(path)[0].trajectories[0].error.message == r"file \udcff"


def test_a_file_with_rows_taken_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch.parquet"
    write(path, [group(trajectory())], iteration=1)
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(ConfigError, match=r"trajectory a has 2 steps, but the rows of steps \[1\]"):
        read(path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, [group(trajectory())], iteration=1)
    whole = pq.read_table(path)
    pq.write_table(whole.drop_columns(["prompt_ids"]), path)
    with pytest.raises(ConfigError, match="a.parquet' is damaged.*prompt_ids"):
        read(path)
    write(path, [group(trajectory())], iteration=1)
    content = bytearray(path.read_bytes())
    for place in range(4, 400):
        content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="a.parquet' is"):
        read(path)
