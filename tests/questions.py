"""A row of each multi-hop question set as its authors lay it out.

``HOTPOT`` is a row of HotpotQA, shortened (Yang et al. 2018, https://hotpotqa.github.io, CC BY-SA 4.0; its
paragraphs are from Wikipedia). The other rows are made up.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

HOTPOT: Row = {
    "_id": "5ab611cc5542992aa134a411",
    "question": "What professions did S. Sylvan Simon and Danny Cannon have in common?",
    "answer": "director and producer",
    "type": "comparison",
    "level": "medium",
    "supporting_facts": [["S. Sylvan Simon", 0], ["Danny Cannon", 0]],
    "context": [
        [
            "Tish (film)",
            [
                "Tish is a 1942 comedy-drama film directed by S. Sylvan Simon and starring Marjorie Main and "
                "ZaSu Pitts."
            ],
        ],
        [
            "S. Sylvan Simon",
            [
                "S. Sylvan Simon (March 9, 1910 – May 17, 1951)",
                " was an American stage/film director and producer.",
            ],
        ],
        [
            "Danny Cannon",
            [
                "John Danny Cannon (born 1968 in Luton, England) is a British film and television writer, "
                "director and producer."
            ],
        ],
    ],
}
WIKI2: Row = {
    "_id": "w1",
    "type": "comparison",
    "question": "Were Ada Byte and Otto Bit born in the same town?",
    "context": [
        ["Ada Byte", ["Ada Byte was born in Kappa.", "She wrote programs."]],
        ["Otto Bit", ["Otto Bit was born in Kappa."]],
        ["Kappa", ["Kappa is a town."]],
    ],
    "supporting_facts": [["Ada Byte", 0], ["Otto Bit", 0]],
    "evidences": [["Ada Byte", "place of birth", "Kappa"], ["Otto Bit", "place of birth", "Kappa"]],
    "answer": "yes",
}
MUSIQUE: Row = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Blue", "paragraph_text": "Blue is a song by Ada Byte.", "is_supporting": True},
        {"idx": 1, "title": "Blue", "paragraph_text": "Blue is a film.", "is_supporting": False},
        {
            "idx": 2,
            "title": "Ada Byte",
            "paragraph_text": "Ada Byte married Otto Bit.",
            "is_supporting": True,
        },
    ],
    "question": "Who is the spouse of the performer of Blue?",
    "question_decomposition": [
        {"id": 1, "question": "Blue >> performer", "answer": "Ada Byte", "paragraph_support_idx": 0},
        {"id": 2, "question": "#1 >> spouse", "answer": "Otto Bit", "paragraph_support_idx": 2},
    ],
    "answer": "Otto Bit",
    "answer_aliases": ["O. Bit", "Bit"],
    "answerable": True,
}
BAMBOOGLE: Row = {
    "Question": "Who ruled Kappa when it was founded, in the year 12?",
    "Answer": "Otto the First",
}
OWN: Row = {
    "id": "own-1",
    "source": "made_up/train",
    "question": "In which town was the wife of Otto Bit born?",
    "answer": "Kappa",
    "aliases": ["Kappa Town"],
    "type": None,
    "supporting": ["Otto Bit", "Ada Byte"],
    "paragraphs": [
        {"title": "Otto Bit", "text": "Otto Bit married  Ada Byte.", "supporting": True},
        {"title": "Ada Byte", "text": "Ada Byte was born in Kappa.", "supporting": True},
        {"title": "Lambda", "text": "Lambda is a town far from Kappa.", "supporting": False},
    ],
}


def array_of(path: Path, *rows: Any) -> Path:
    """Write a JSON array."""
    path.write_text(json.dumps(list(rows)), encoding="utf-8")
    return path


def lines_of(path: Path, *rows: Any) -> Path:
    """Write JSON Lines."""
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def table_of(path: Path, *rows: Row) -> Path:
    """Write CSV with the columns of the first row."""
    written = io.StringIO()
    writer = csv.DictWriter(written, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(_plain(rows))
    path.write_text(written.getvalue(), encoding="utf-8")
    return path


def _plain(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]
