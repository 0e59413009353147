"""docs/doctor.md: its Python runs, and its example is what the doctor prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.trainers.doctor.conversations import conversations
from steprl.trainers.doctor.drift import Drift
from steprl.trainers.parts import model_path

PAGE = (Path(__file__).parents[1] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_its_python_runs_and_gives_the_rows_of_a_window() -> None:
    page: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, page)
    by_name = {one.name: (one.steps, one.rows) for one in page["found"].conversations}
    assert all(rows <= steps for steps, rows in by_name.values())
    assert any(1 < rows for _, rows in by_name.values())  # a window cannot share one row throughout


def test_it_shows_every_conversation_and_names_every_drift() -> None:
    scripts = conversations(ChatRenderer(load_tokenizer(model_path("quickstart"))))
    assert [re.search(rf"^│ {script.name} +│", PAGE, flags=re.MULTILINE) is None for script in scripts] == [
        False
    ] * 13
    for drift in get_args(Drift):
        assert drift == "none" or f"| {drift} |" in PAGE
