import gzip
import json
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questions import BAMBOOGLE, HOTPOT, MUSIQUE, OWN, WIKI2, array_of, lines_of, table_of

from steprl.errors import TaskError
from steprl.tasks import task_hash
from steprl.tasks.multihop import answers_of, load_multihop, load_passages, paragraphs_of

SHARED = Path(os.environ.get("STEPRL_SHARED", Path(__file__).parents[3] / "shared"))
MINI = SHARED / "data/hotpotqa/hotpotqa_mini.jsonl.xz"


def without(row, *columns):
    return {column: value for column, value in row.items() if column not in columns}


def refused(path):
    with pytest.raises(TaskError) as caught:
        load_multihop(path)
    return str(caught.value).removeprefix(str(path))


# --- layouts ------------------------------------------------------------------------------------------


def test_hotpotqa(tmp_path):
    (task,) = load_multihop(array_of(tmp_path / "dev.json", HOTPOT))
    assert (task.id, task.prompt, task.answer) == (
        "5ab611cc5542992aa134a411",
        "What professions did S. Sylvan Simon and Danny Cannon have in common?",
        "director and producer",
    )
    assert without(task.data, "paragraphs") == {
        "source": "hotpotqa",
        "type": "comparison",
        "aliases": [],
        "supporting": ["S. Sylvan Simon", "Danny Cannon"],
    }
    assert [paragraph["supporting"] for paragraph in task.data["paragraphs"]] == [False, True, True]
    assert task.data["paragraphs"][1] == {
        "title": "S. Sylvan Simon",
        "text": "S. Sylvan Simon (March 9, 1910 – May 17, 1951) was an American stage/film director and "
        "producer.",
        "supporting": True,
    }


def test_2wikimultihopqa(tmp_path):
    (task,) = load_multihop(array_of(tmp_path / "dev.json", WIKI2))
    assert (task.id, task.answer, task.data["source"]) == ("w1", "yes", "2wikimultihopqa")
    assert paragraphs_of(task)[0] == ("Ada Byte", "Ada Byte was born in Kappa. She wrote programs.")
    assert task.data["supporting"] == ["Ada Byte", "Otto Bit"]


def test_2wikimultihopqa_takes_aliases_from_the_file_beside(tmp_path):
    rows = [{**WIKI2, "_id": f"w{n}", "answer_id": id} for n, id in enumerate(["Q1", "Q2", None])]
    path = array_of(tmp_path / "dev.json", *rows)
    assert [task.data["aliases"] for task in load_multihop(path)] == [[], [], []]
    lines_of(tmp_path / "id_aliases.json", {"Q_id": "Q1", "aliases": ["aye", "yea"], "demonyms": ["yea"]})
    assert [task.data["aliases"] for task in load_multihop(path)] == [["aye", "yea"], [], []]
    lines_of(tmp_path / "id_aliases.json", {"Q_id": "Q1", "aliases": "aye", "demonyms": []})
    with pytest.raises(TaskError, match=r"id_aliases.json:1: 'aliases' must be a list, got 'aye'"):
        load_multihop(path)


def test_musique_marks_paragraphs_one_by_one(tmp_path):
    (task,) = load_multihop(lines_of(tmp_path / "musique_ans_v1.0_dev.jsonl", MUSIQUE))
    assert (task.id, task.data["source"], task.data["type"]) == ("2hop__1_2", "musique", None)
    assert answers_of(task) == ("Otto Bit", "O. Bit", "Bit")
    assert [paragraph["supporting"] for paragraph in task.data["paragraphs"]] == [True, False, True]
    assert task.data["supporting"] == ["Blue", "Ada Byte"]


@pytest.mark.parametrize(
    ("write", "name"), [(table_of, "b.csv"), (lines_of, "b.jsonl"), (array_of, "b.json")]
)
def test_bamboogle_has_neither_paragraphs_nor_ids(tmp_path, write, name):
    (task,) = load_multihop(write(tmp_path / name, BAMBOOGLE))
    assert (task.prompt, task.answer) == (BAMBOOGLE["Question"], BAMBOOGLE["Answer"])
    assert (task.data["source"], task.data["paragraphs"]) == ("bamboogle", [])
    assert task.id == task_hash(task)


def test_a_table_with_a_byte_order_mark_and_a_question_on_two_lines(tmp_path):
    path = tmp_path / "b.csv"
    path.write_bytes('\ufeffQuestion,Answer\r\n"Who,\nof all?",Ada\r\n'.encode())
    (task,) = load_multihop(path)
    assert (task.prompt, task.answer) == ("Who,\nof all?", "Ada")


def test_our_own_layout(tmp_path):
    (task,) = load_multihop(lines_of(tmp_path / "own.jsonl", OWN))
    assert (task.id, task.answer, task.data["source"]) == ("own-1", "Kappa", "made_up/train")
    assert answers_of(task) == ("Kappa", "Kappa Town")
    assert paragraphs_of(task)[0] == ("Otto Bit", "Otto Bit married Ada Byte.")
    (bare,) = load_multihop(lines_of(tmp_path / "bare.jsonl", {"question": "Who?", "answer": "Ada"}))
    assert bare.data == {"source": "", "type": None, "aliases": [], "supporting": [], "paragraphs": []}


def test_what_supports_follows_from_the_paragraphs_where_it_is_not_given(tmp_path):
    (task,) = load_multihop(lines_of(tmp_path / "own.jsonl", without(OWN, "supporting")))
    assert task.data["supporting"] == ["Otto Bit", "Ada Byte"]


@pytest.mark.parametrize(("pack", "ending"), [(lzma.compress, "xz"), (gzip.compress, "gz")])
def test_compressed_files_are_read_as_they_are(tmp_path, pack, ending):
    plain = array_of(tmp_path / "dev.json", HOTPOT, WIKI2)
    table = table_of(tmp_path / "b.csv", BAMBOOGLE)
    for path in (plain, table):
        packed = path.with_name(f"{path.name}.{ending}")
        packed.write_bytes(pack(path.read_bytes()))
        assert load_multihop(packed) == load_multihop(path)


def test_rows_of_several_layouts_may_share_a_file(tmp_path):
    tasks = load_multihop(lines_of(tmp_path / "all.jsonl", HOTPOT, WIKI2, MUSIQUE, BAMBOOGLE, OWN))
    sources = [task.data["source"] for task in tasks]
    assert sources == ["hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "made_up/train"]


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
FILLED = TEXTS.filter(str.strip)


@settings(max_examples=50)
@given(
    question=FILLED,
    answer=FILLED,
    aliases=st.lists(TEXTS, max_size=2, unique=True),
    paragraphs=st.lists(st.tuples(TEXTS, TEXTS, st.booleans()), max_size=3),
)
def test_any_row_of_our_layout_comes_through(tmp_path_factory, question, answer, aliases, paragraphs):
    row = {
        "question": question,
        "answer": answer,
        "aliases": aliases,
        "paragraphs": [{"title": t, "text": p, "supporting": s} for t, p, s in paragraphs],
    }
    (task,) = load_multihop(lines_of(tmp_path_factory.mktemp("rows") / "r.jsonl", row))
    assert (task.prompt, answers_of(task)) == (question.strip(), (answer.strip(), *aliases))
    assert [(p["title"], p["text"], p["supporting"]) for p in task.data["paragraphs"]] == [
        (title, " ".join(text.split()), supporting) for title, text, supporting in paragraphs
    ]


# --- what is wrong with a file ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (without(HOTPOT, "answer"), "there is no 'answer'. A file without answers, a test file perhaps"),
        ({**HOTPOT, "answer": " "}, "there is no 'answer'"),
        ({**HOTPOT, "answer": 7}, "'answer' must be text, got 7"),
        (without(HOTPOT, "question"), "unknown column 'question'"),
        ({**HOTPOT, "question": " "}, "'question' is empty"),
        (without(HOTPOT, "context"), "unknown column 'context'"),
        ({**HOTPOT, "context": {"title": []}}, "'context' must be a list"),
        ({**HOTPOT, "context": [["Only a title"]]}, "'context' must hold pairs that begin with a title"),
        ({**HOTPOT, "context": [["T", "text"]]}, "'context' must hold [title, [sentence, …]]"),
        ({**HOTPOT, "context": [["T", [1]]]}, "'context' must be text, got 1"),
        ({**HOTPOT, "supporting_facts": [[0, "T"]]}, "'supporting_facts' must be text, got 0"),
        ({**HOTPOT, "_id": None}, "'_id' must be text or a whole number, got None"),
        ({**HOTPOT, "type": 1}, "'type' must be text, got 1"),
        ({**MUSIQUE, "answerable": False}, "not answerable from its paragraphs"),
        (without(MUSIQUE, "answer_aliases"), "unknown column 'answer_aliases'"),
        ({**MUSIQUE, "paragraphs": ["text"]}, "'paragraphs' must hold JSON objects, got 'text'"),
        ({**MUSIQUE, "paragraphs": [{"title": "T"}]}, "unknown column 'paragraph_text'"),
        ({"Question": "Who?"}, "there is no 'Answer'"),
        ({**OWN, "aliases": "Kappa"}, "'aliases' must be a list, got 'Kappa'"),
        (
            {**OWN, "paragraphs": [{"title": "T", "text": "x", "supporting": 1}]},
            "must be true or false, got 1",
        ),
        ({**OWN, "paragraphs": [{"title": "T", "text": "\ud800", "supporting": True}]}, "half a surrogate"),
        ({"prompt": "Who?", "answer": "Ada"}, "unknown column 'question'"),
        (["a list"], "a row must be a JSON object, got list"),
    ],
)
def test_a_bad_row_is_named_with_its_file(tmp_path, row, message):
    good = {"question": "Who?", "answer": "Ada"}
    told = refused(array_of(tmp_path / "rows.json", good, row))
    assert told.startswith(": row 2: ") and message in told
    told = refused(lines_of(tmp_path / "rows.jsonl", good, row))
    assert told.startswith(":2: ") and message in told


def test_what_is_not_json_or_not_text_is_named_with_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(OWN)}\n\n{{'question': 'Who?'}}\n")
    assert refused(path).startswith(":3: not JSON: ")
    path.write_text('\n[{"question": "Who?"},\n')
    assert refused(path).startswith(": not JSON: ")
    path.write_bytes(b'{"question": "\xff"}')
    assert refused(path).startswith(":1: not UTF-8: ")
    table = tmp_path / "rows.csv"
    table.write_bytes(b"Question,Answer\nWho?,\xff\n")
    assert refused(table).startswith(":2: not UTF-8: ")
    table.write_bytes(b'Question,Answer\nWho?,Ada\nWho?,"A"da"\n')
    assert refused(table).startswith(":3: not CSV: ")
    table.write_bytes(b"Question,Answer\nWho?\n")
    assert refused(table).startswith(":2: there is no 'Answer'")


def test_files_that_are_absent_empty_or_broken(tmp_path):
    assert "there is no task file" in refused(tmp_path / "absent.json")
    for text in ("", "\n\n", "[]"):
        (tmp_path / "empty.json").write_text(text)
        assert "holds no questions" in refused(tmp_path / "empty.json")
    (tmp_path / "broken.json.xz").write_bytes(b"not xz")
    assert "cannot be read after line 0" in refused(tmp_path / "broken.json.xz")


def test_an_id_that_occurs_twice_is_named_with_both_places(tmp_path):
    path = array_of(tmp_path / "rows.json", HOTPOT, WIKI2, HOTPOT)
    assert refused(path) == (
        f": row 3: the task id '{HOTPOT['_id']}' is already taken by {path}: row 1. "
        f"Give every row its own id, or remove the duplicate."
    )


# --- passages -----------------------------------------------------------------------------------------


def test_passages_are_those_of_all_questions_each_once(tmp_path):
    passages = load_passages(
        lines_of(tmp_path / "all.jsonl", OWN, BAMBOOGLE, {**OWN, "id": "own-2"}, MUSIQUE)
    )
    assert [title for title, _ in passages] == ["Otto Bit", "Ada Byte", "Lambda", "Blue", "Blue", "Ada Byte"]
    rows = [{"title": "A", "text": "one  two"}, {"title": "A", "text": "one two", "id": 7}]
    assert load_passages(lines_of(tmp_path / "wiki.jsonl", *rows)) == [("A", "one two")]


def test_a_file_without_passages_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"b.jsonl holds no passages: there is nothing to search in"):
        load_passages(lines_of(tmp_path / "b.jsonl", BAMBOOGLE))
    with pytest.raises(TaskError, match=r"w.jsonl:2: unknown column 'title'"):
        load_passages(lines_of(tmp_path / "w.jsonl", {"title": "A", "text": "a"}, {"text": "b"}))


@pytest.mark.skipif(not MINI.is_file(), reason="needs the HotpotQA file (STEPRL_SHARED)")
def test_the_real_file():
    tasks = load_multihop(MINI)
    assert len(tasks) == len({task.id for task in tasks}) == 600
    assert sum(len(paragraphs_of(task)) for task in tasks) == 5925
    assert len(load_passages(MINI)) == 5833
    for task in tasks:
        marked = {paragraph["title"] for paragraph in task.data["paragraphs"] if paragraph["supporting"]}
        assert marked == set(task.data["supporting"]) and len(marked) == 2
