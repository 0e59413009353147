"""docs/replay.md: its Python runs as it stands, beside a run of the name it uses, and what it shows is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from training import COURIER, recipe_of, run

PAGE = (Path(__file__).parents[1] / "docs" / "replay.md").read_text(encoding="utf-8")
REPLAY, CASSETTE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_run_it_speaks_of_is_replayed(
    tiny_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("name=quickstart", "train.iterations=1", "evaluation.greedy=false")
    run(recipe_of(COURIER, tiny_policy, tmp_path / "runs", *options))
    capsys.readouterr()
    exec(REPLAY, {})
    assert "10 equal; largest gap " in capsys.readouterr().out


def test_the_cassette_is_the_file_that_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(CASSETTE, {"__name__": "page"})
    assert capsys.readouterr().out == "asking for parcels\n"
    (line,) = (tmp_path / "search.jsonl").read_text(encoding="utf-8").splitlines()
    assert f"\n    {line}\n" in PAGE
