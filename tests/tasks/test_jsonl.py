import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.errors import TaskError
from steprl.tasks import load_jsonl, task_hash
from steprl.types import Task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(tmp_path, *lines):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def test_other_columns_become_data(tmp_path):
    path = written(tmp_path, '{"id": 7, "prompt": "p", "answer": 1, "level": 3, "tags": ["a"]}')
    assert load_jsonl(path) == [Task(id="7", prompt="p", answer=1, data={"level": 3, "tags": ["a"]})]


def test_columns_can_be_named(tmp_path):
    path = written(tmp_path, '{"key": "k", "question": "p", "gold": "g", "answer": "other"}')
    (task,) = load_jsonl(path, prompt="question", answer="gold", id="key")
    assert task == Task(id="k", prompt="p", answer="g", data={"answer": "other"})


def test_rows_without_answers_have_to_be_declared(tmp_path):
    path = written(tmp_path, '{"prompt": "p"}')
    assert load_jsonl(path, answer=None)[0].answer is None
    with pytest.raises(TaskError, match="unknown column 'answer'"):
        load_jsonl(path)


@pytest.mark.parametrize(("suffix", "opener"), [(".xz", lzma.open), (".gz", gzip.open)])
def test_compressed_files_read_like_plain_ones(tmp_path, suffix, opener):
    path = tmp_path / f"tasks.jsonl{suffix}"
    with opener(path, "wt", encoding="utf-8") as stream:
        stream.write('{"prompt": "Größe?", "answer": "ß"}\n')
    (task,) = load_jsonl(path)
    assert (task.prompt, task.answer) == ("Größe?", "ß")


def test_a_row_without_id_is_named_by_its_content(tmp_path):
    path = written(tmp_path, '{"prompt": "a", "answer": 1}', "", '{"prompt": "b", "answer": 1}', "")
    first, second = load_jsonl(path)
    assert first.id == task_hash(first) != second.id


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ('{"prompt": "p", "answer": NaN}', "NaN is not a number"),
        (b'{"prompt": "\xff", "answer": 1}', "not UTF-8"),
        ("[1]", "must be a JSON object, got list"),
        ('{"promt": "p", "answer": 1}', "unknown column 'prompt'. Did you mean 'promt'?"),
        ('{"prompt": 3, "answer": 1}', "'prompt' must be text, got 3"),
        ('{"prompt": "p", "answer": 1, "id": true}', "'id' must be text or a whole number, got True"),
        ('{"prompt": "p", "answer": 1, "id": ""}', "'id' must be text"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path, line, reason):
    path = written(tmp_path, '{"prompt": "fine", "answer": 1}', "", line)
    with pytest.raises(TaskError) as caught:
        load_jsonl(path)
    assert str(caught.value).startswith(f"{path}:3: ") and reason in str(caught.value)


def test_a_duplicate_id_names_both_lines(tmp_path):
    row = '{"prompt": "p", "answer": 1, "id": "x"}'
    path = written(tmp_path, row, '{"prompt": "q", "answer": 1}', row)
    with pytest.raises(TaskError, match=r":3: the task id 'x' is already taken by line 1"):
        load_jsonl(path)


def test_missing_empty_and_broken_files(tmp_path):
    with pytest.raises(TaskError, match=r"no task file .*absent\.jsonl"):
        load_jsonl(tmp_path / "absent.jsonl")
    with pytest.raises(TaskError, match="holds no tasks"):
        load_jsonl(written(tmp_path, "", " "))
    with pytest.raises(TaskError, match="cannot be read"):
        load_jsonl(tmp_path)
    cut = tmp_path / "cut.jsonl.xz"
    cut.write_bytes(lzma.compress(b'{"prompt": "p", "answer": 1}\n' * 1000)[:-8])
    with pytest.raises(TaskError, match="cannot be read|already taken"):
        load_jsonl(cut)
    fake = tmp_path / "fake.jsonl.gz"
    fake.write_text("{}")
    with pytest.raises(TaskError, match="cannot be read after line 0"):
        load_jsonl(fake)


@given(prompt=st.text(), answer=JSON, data=st.dictionaries(st.text(), JSON, max_size=4))
def test_the_hash_does_not_depend_on_id_or_key_order(prompt, answer, data):
    task = Task(id="a", prompt=prompt, answer=answer, data=data)
    turned = Task(id="b", prompt=prompt, answer=answer, data=dict(reversed(data.items())))
    assert task_hash(task) == task_hash(turned)
    through_json = json.loads(json.dumps(data))
    assert task_hash(task) == task_hash(Task(id="a", prompt=prompt, answer=answer, data=through_json))


def test_the_hash_is_fixed_and_sees_every_part():
    task = Task(id="a", prompt="p", answer=1, data={"k": 2})
    assert task_hash(task) == "ae97fb129320a6a4"
    others = [
        Task(id="a", prompt="q", answer=1, data={"k": 2}),
        Task(id="a", prompt="p", answer="1", data={"k": 2}),
        Task(id="a", prompt="p", answer=1, data={"k": 3}),
    ]
    assert len({task_hash(other) for other in [task, *others]}) == 4


@pytest.mark.parametrize("answer", [float("nan"), object(), {1: 2, "a": 3}])
def test_what_json_cannot_hold_cannot_be_hashed(answer):
    with pytest.raises(TaskError, match="task 'a' cannot be hashed"):
        task_hash(Task(id="a", answer=answer))
