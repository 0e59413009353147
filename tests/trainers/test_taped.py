"""A recipe with a cassette: what its episodes asked outside is asked once, and never again in a replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from playing import Guess, call, guesses
from training import DICE, quiet, recipe_of, run_briskly

from steprl.errors import ConfigError
from steprl.tools import tool
from steprl.trainers.replay import replay
from steprl.types import Task

ASKED: list[str] = []


@tool
def outside(question: str) -> str:
    """Ask somebody outside."""
    ASKED.append(question)
    return f"answer {len(ASKED)}"


class Asking(Guess):
    """``Guess`` with a tool that answers otherwise each time."""

    tools = (*Guess.tools, outside)

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        return guesses(6)


TABLE = {
    **DICE,
    "engine": {"id": "playing:Dice", "args": {"replies": ["0", call("outside", question="a"), call("hint")]}},
}
OPTIONS = ("env.id=test_taped:Asking", "evaluation.tasks=0", "train.iterations=1")


@pytest.fixture(autouse=True)
def nobody_was_asked() -> None:
    ASKED.clear()


def test_episodes_share_one_answer_and_replay_asks_nobody(tiny_policy: str, tmp_path: Path) -> None:
    cassette = tmp_path / "outside.jsonl"
    folder = run_briskly(recipe_of(TABLE, tiny_policy, tmp_path, *OPTIONS, f"env.cassette={cassette}"))
    assert ASKED == ["a"]
    (line,) = cassette.read_text().splitlines()
    assert json.loads(line) == {"tool": "outside", "arguments": {"question": "a"}, "result": "answer 1"}
    report = replay(folder, model=False, display=quiet())
    assert report.environment is not None and report.environment.equal == 8
    assert ASKED == ["a"]


def test_without_a_cassette_such_a_run_cannot_be_replayed(tiny_policy: str, tmp_path: Path) -> None:
    folder = run_briskly(recipe_of(TABLE, tiny_policy, tmp_path, *OPTIONS))
    report = replay(folder, model=False, display=quiet())
    assert report.environment is not None and report.environment.first is not None
    assert report.environment.first.field == "feedback"


def test_a_cassette_that_is_not_there_is_told_before_anything_runs(tiny_policy: str, tmp_path: Path) -> None:
    options = (*OPTIONS, f"env.cassette={tmp_path / 'none.jsonl'}", "env.cassette_mode=replay")
    with pytest.raises(ConfigError, match="there is no cassette '.*none.jsonl' to replay"):
        run_briskly(recipe_of(TABLE, tiny_policy, tmp_path, *options))
    assert ASKED == []
