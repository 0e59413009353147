"""`steprl env check` as a person uses it: a table, an exit code, and never a traceback."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steprl.cli import main

Terminal = Callable[..., tuple[int, str, str]]
"""Runs `steprl env check` with some arguments: exit code, standard output, standard error."""

QUICK = ("--resets", "10", "--episodes", "4", "--max-steps", "10")
MINE = '''
import steprl

class Echo(steprl.ToolEnv):
    """Say the word again. [bold]No markup[/bold]."""

    def __init__(self, *, prize: float = 1.0) -> None:
        self.prize = prize

    @classmethod
    def tasks(cls, source):
        if source == "broken":
            raise KeyError(source)
        return [steprl.Task(id=f"[red]{i}", prompt="Say the word.", answer=f"w{i}") for i in range(6)]

    def reward(self, task, answer):
        return self.prize * float(bool(answer))

class Broken(Echo):
    def setup(self, task, seed):
        raise ValueError("[/nonsense] " + task.id)
'''


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    (tmp_path / "checked.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "unreadable.py").write_text("class Oops(:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steprl", "env", "check", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as exit:
            main()
        told = capsys.readouterr()
        assert isinstance(exit.value.code, int)
        return exit.value.code, told.out, told.err

    return run


def test_a_good_environment_exits_with_zero(terminal: Terminal) -> None:
    code, told, errors = terminal("courier", "--tasks", "eval", *QUICK)
    assert code == 0 and errors == ""
    assert re.search(r"Courier: 1[34] passed, [12] warned", told)  # a busy machine may hold the event loop
    for word in ("determinism", "processes", "mean return", "oracle", "ended by itself"):
        assert word in told


def test_what_failed_is_named_and_exits_with_one(terminal: Terminal) -> None:
    code, told, errors = terminal("checked:Broken", *QUICK)
    assert code == 1 and errors == ""
    assert "failed" in told and "ValueError: [/nonsense] [red]" in told and "checked.py, line" in told


def test_arguments_reach_the_environment(terminal: Terminal) -> None:
    code, told, _ = terminal("checked:Echo", "--args", '{"prize": 7.0}', *QUICK)
    assert code == 1 and "reward_range" in told
    code, told, _ = terminal("checked:Echo", "--args", '{"price": 7.0}', *QUICK)
    assert code == 1 and "unexpected keyword argument 'price'" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curier"], "ConfigError: unknown env 'curier'. Did you mean 'courier'?"),
        (["json:loads"], "not a class derived from steprl.Env; only these are checked"),
        (["courier", "--args", "{"], "ConfigError: --args is not JSON"),
        (["courier", "--args", "[]"], "ConfigError: --args must be a JSON object, got []"),
        (["courier", "--resets", "1"], "ConfigError: check_env: resets must be at least 5, got 1"),
        (["courier", "--tasks", "test"], "TaskError: unknown Courier task set 'test'"),
        (["checked:Echo", "--tasks", "broken"], "TaskError: Echo.tasks('broken') raised KeyError: 'broken'"),
        (["unreadable:Oops"], "importing 'unreadable:Oops' raised SyntaxError"),
    ],
)
def test_what_cannot_be_checked_is_one_line(terminal: Terminal, arguments: list[str], message: str) -> None:
    code, told, errors = terminal(*arguments)
    assert code == 1 and told == "" and message in errors and "Traceback" not in errors
    assert errors.count("\n") == 1


def test_help_explains_and_gives_an_example(terminal: Terminal) -> None:
    code, told, _ = terminal("--help")
    assert code == 0 and "Example: steprl env check courier" in told
