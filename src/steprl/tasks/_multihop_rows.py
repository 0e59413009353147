"""From a row of a multi-hop question set to a task: one function for each layout, told apart by the columns.

Nothing is repaired: what is not of the type that the layout has there is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steprl.errors import TaskError, unknown
from steprl.tasks.hashing import task_hash
from steprl.tasks.jsonl import row_id
from steprl.types import Task

Row = Mapping[str, Any]


def task_of(row: Row, entities: Mapping[str, Sequence[str]] | None = None) -> Task:
    """The task that a row is. ``entities`` are the aliases of answers that rows name by id.

    Raises:
        TaskError: the row is in no known layout, is incomplete, or has no answer.
    """
    if "context" in row or "_id" in row:
        return _hotpot(row, entities or {})
    if "answerable" in row or "question_decomposition" in row:
        return _musique(row)
    if "Question" in row:
        return _bamboogle(row)
    return _own(row)


def passage_of(row: Row) -> tuple[str, str]:
    """Title and text of a row {title, text}.

    Raises:
        TaskError: one is missing or no text.
    """
    return _text(row, "title"), " ".join(_text(row, "text").split())


def entity_of(row: Row) -> tuple[str, list[str]]:
    """Id and other names of a row {Q_id, aliases, demonyms}.

    Raises:
        TaskError: one is missing or of another type.
    """
    names = dict.fromkeys([*_texts(row, "aliases"), *_texts(row, "demonyms")])
    return _text(row, "Q_id"), list(names)


def _hotpot(row: Row, entities: Mapping[str, Sequence[str]]) -> Task:
    """HotpotQA: ``context`` is [[title, [sentence]]], ``supporting_facts`` [[title, sentence number]].
    2WikiMultihopQA: the same, and ``evidences`` and ``answer_id`` (null where the answer is no entity)."""
    facts = _list(row, "supporting_facts") if "supporting_facts" in row else []
    titles = list(dict.fromkeys(_pair(fact, "supporting_facts")[0] for fact in facts))
    paragraphs = []
    for title, sentences in (_pair(entry, "context") for entry in _list(row, "context")):
        if not isinstance(sentences, list):
            raise TaskError(
                f"'context' must hold [title, [sentence, …]], got [{title!r:.40}, {sentences!r:.40}]"
            )
        text = " ".join(_checked(sentence, "context") for sentence in sentences)
        paragraphs.append(_paragraph(title, text, title in titles))
    source = "2wikimultihopqa" if "evidences" in row else "hotpotqa"
    aliases = [] if row.get("answer_id") is None else entities.get(_text(row, "answer_id"), [])
    return _made(row, source, aliases, titles, paragraphs, id="_id")


def _musique(row: Row) -> Task:
    """MuSiQue: paragraphs are marked one by one, and a title may stand over several."""
    if row.get("answerable") is False:
        raise TaskError(
            "the row is not answerable from its paragraphs, so it has no right answer. Use the files of "
            "MuSiQue-Answerable (musique_ans_…)."
        )
    paragraphs = [
        _paragraph(_text(entry, "title"), _text(entry, "paragraph_text"), _flag(entry, "is_supporting"))
        for entry in _objects(row, "paragraphs")
    ]
    return _made(row, "musique", _texts(row, "answer_aliases"), None, paragraphs)


def _bamboogle(row: Row) -> Task:
    """Bamboogle: no paragraphs, no id."""
    return _made(row, "bamboogle", [], None, [], question="Question", answer="Answer")


def _own(row: Row) -> Task:
    """Our layout; everything but question and answer may be left out."""
    paragraphs = [
        _paragraph(_text(entry, "title"), _text(entry, "text"), _flag(entry, "supporting"))
        for entry in (_objects(row, "paragraphs") if "paragraphs" in row else ())
    ]
    supporting = _texts(row, "supporting") if "supporting" in row else None
    aliases = _texts(row, "aliases") if "aliases" in row else []
    source = _text(row, "source") if "source" in row else ""
    return _made(row, source, aliases, supporting, paragraphs)


def _made(
    row: Row,
    source: str,
    aliases: Sequence[str],
    supporting: Sequence[str] | None,
    paragraphs: Sequence[Row],
    *,
    id: str = "id",
    question: str = "question",
    answer: str = "answer",
) -> Task:
    asked = _text(row, question).strip()
    if not asked:
        raise TaskError(f"'{question}' is empty")
    gold = "" if row.get(answer) is None else _text(row, answer).strip()
    if not gold:
        raise TaskError(
            f"there is no '{answer}'. A file without answers, a test file perhaps, cannot be played: there "
            f"is nothing to compare with."
        )
    if row.get("type") is not None:
        _text(row, "type")
    marked = [paragraph["title"] for paragraph in paragraphs if paragraph["supporting"]]
    task = Task(
        id="",
        prompt=asked,
        answer=gold,
        data={
            "source": source,
            "type": row.get("type"),
            "aliases": list(aliases),
            "supporting": list(dict.fromkeys(marked)) if supporting is None else list(supporting),
            "paragraphs": list(paragraphs),
        },
    )
    return replace(task, id=row_id(row[id], id) if id in row else task_hash(task))


def _paragraph(title: str, text: str, supporting: bool) -> Row:
    return {"title": title, "text": " ".join(text.split()), "supporting": supporting}


# --- columns ------------------------------------------------------------------------------------------


def _value(row: Row, column: str) -> Any:
    if column not in row:
        raise TaskError(unknown("column", column, row, hint="Every row needs it."))
    return row[column]


def _text(row: Row, column: str) -> str:
    return _checked(_value(row, column), column)


def _checked(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise TaskError(f"'{column}' must be text, got {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TaskError(f"'{column}' holds half a surrogate pair, which is no text: {error}") from error
    return value


def _flag(row: Row, column: str) -> bool:
    value = _value(row, column)
    if not isinstance(value, bool):
        raise TaskError(f"'{column}' must be true or false, got {value!r:.80}")
    return value


def _list(row: Row, column: str) -> list[Any]:
    value = _value(row, column)
    if not isinstance(value, list):
        raise TaskError(f"'{column}' must be a list, got {value!r:.80}")
    return value


def _texts(row: Row, column: str) -> list[str]:
    """Texts, each once."""
    return list(dict.fromkeys(_checked(value, column) for value in _list(row, column)))


def _objects(row: Row, column: str) -> list[Row]:
    for entry in _list(row, column):
        if not isinstance(entry, dict):
            raise TaskError(f"'{column}' must hold JSON objects, got {entry!r:.80}")
    return list(row[column])


def _pair(value: Any, column: str) -> tuple[str, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise TaskError(f"'{column}' must hold pairs that begin with a title, got {value!r:.80}")
    return _checked(value[0], column), value[1]
