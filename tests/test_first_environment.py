"""docs/first-environment.md, from its first command to its last, with sizes that take seconds."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from terminal import Terminal

import steprl
from steprl.envs.policy import ScriptedPolicy
from steprl.types import Action, Message, ToolCall

PAGE = (Path(__file__).parents[1] / "docs" / "first-environment.md").read_text(encoding="utf-8")
PROGRAM = "\n\n\n".join(re.findall(r"```python\n(.*?)\n```", PAGE, flags=re.DOTALL)) + "\n"
(RECIPE,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
SHELL = "".join(re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)).replace("\\\n", " ")
COMMANDS = [shlex.split(line)[1:] for line in SHELL.splitlines()]

SMALL: Mapping[str, Mapping[str, str]] = {
    "env": {"--resets": "20", "--episodes": "3"},
    "policy": {"--count": "20", "--steps": "2", "evaluation_tasks": "1"},
    "plan": {"rollout.groups": "2", "rollout.group_size": "2", "evaluation.tasks": "1"},
    "train": {
        "rollout.groups": "2",
        "rollout.group_size": "2",
        "evaluation.tasks": "1",
        "train.iterations": "2",
    },
    "show": {},
}
"""Options that make a command of the page take seconds, by its first word."""

LAST = {"eval-60-after-sampled-0.0": "eval-2-after-sampled-0.0"}
"""The same vault after the last iteration of the page's run, and of the small one."""


def smaller(command: Sequence[str]) -> list[str]:
    """The command with its sizes replaced, or added where it leaves them to the recipe."""
    small = [LAST.get(word, word) for word in command]
    for option, value in SMALL[command[0]].items():
        if option.startswith("--"):
            if option in small:
                del small[small.index(option) : small.index(option) + 2]
            small += [option, value]
        else:
            small = [*(word for word in small if not word.startswith(f"{option}=")), f"{option}={value}"]
    return small


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's folder, with the page's two files in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vault.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "vault.toml").write_text(RECIPE, encoding="utf-8")
    sys.modules.pop("vault", None)
    yield tmp_path
    sys.modules.pop("vault", None)


def test_the_page_from_its_first_command_to_its_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(monkeypatch, capfd)
    told = []
    for command in COMMANDS:
        code, out, errors = terminal(*smaller(command))
        assert code == 0, f"{command}\n{errors}"
        told.append(out)
    assert [command[0] for command in COMMANDS] == ["env", "policy", "plan", "train", "show", "show"]
    assert "14 passed, 1 warned" in told[0] and "14 passed, 1 warned" in PAGE
    report = json.loads((folder / "policies" / "vault" / "policy.json").read_text(encoding="utf-8"))
    assert report["demonstrations"]["mean_reward"] == 1.0
    lines = (folder / "runs" / "vault" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert max(json.loads(line)["iteration"] for line in lines) == 2
    assert all("Vault 0: which digit opens it?" in shown for shown in told[-2:])


@pytest.fixture
def vault() -> ModuleType:
    module = ModuleType("vault")
    exec(PROGRAM, vars(module))
    return module


def questions(vault: ModuleType, policy: ScriptedPolicy, task: steprl.Task) -> int:
    """How often a policy asks before it answers; the answer must be right."""

    async def play() -> int:
        env: steprl.Env = vault.Vault()
        messages: list[Message] = list(await env.reset(task, seed=0))
        for asked in range(11):
            move = policy.act(messages)
            calls = tuple(ToolCall(name=name, arguments=given, id="0") for name, given in move.calls)
            transition = await env.step(Action(text=move.text, token_ids=(), tool_calls=calls, finish="stop"))
            if transition.terminated:
                assert transition.rewards == {"outcome": 1.0}
                return asked
            messages += transition.feedback
        raise AssertionError("no answer after every digit was asked for")

    return asyncio.run(play())


def test_the_guesser_needs_luck_and_halving_does_not(vault: ModuleType) -> None:
    tasks: Sequence[Any] = vault.Vault.tasks("eval") + vault.Vault.tasks("train")
    assert len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == len(tasks)
    in_time = [questions(vault, vault.Guesser(), task) <= 4 for task in tasks]
    assert sum(in_time) / len(tasks) == pytest.approx(0.5, abs=0.04)
    assert max(questions(vault, vault.Halving(), task) for task in tasks[:100]) == 4
