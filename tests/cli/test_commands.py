"""The command line as a person uses it: help with examples, plain errors, output that scripts can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal
from training import DICE, recipe_of, run

from steprl.trainers.given import Given
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import read
from steprl.types import Task


@pytest.fixture(scope="module")
def finished(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of two iterations."""
    runs = tmp_path_factory.mktemp("finished")
    run(recipe_of(DICE, tiny_policy, runs, "train.iterations=2"))
    return runs / "run"


# --- help ---------------------------------------------------------------------------------------------

COMMANDS = [
    "",
    "train",
    "eval",
    "eval diff",
    "rollout",
    "plan",
    "show",
    "env",
    "env list",
    "env check",
    "policy",
    "policy build",
    "compare",
    "compare algorithms",
    "compare context",
    "compare runs",
    "doctor",
    "explain",
    "replay",
    "tool",
    "tool list",
    "tool call",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_and_gives_an_example(steprl: Terminal, command: str) -> None:
    code, told, _ = steprl(*command.split(), "--help")
    assert code == 0
    assert f"Usage: steprl {command}".strip() in told
    assert (f"Example: steprl {command}" if command else "Start with: steprl train recipes/") in told


@pytest.mark.parametrize("command", ["", "env", "policy", "compare", "tool"])
def test_a_command_that_needs_another_shows_what_there_is(steprl: Terminal, command: str) -> None:
    code, told, errors = steprl(*command.split())
    assert code == 2 and "Commands" in told + errors


# --- errors -------------------------------------------------------------------------------------------


def test_an_error_is_one_line_in_plain_words(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    line = steprl.refused("train", recipe, "learner.learning_rate=1")
    assert line.startswith("ConfigError: unknown option 'learner.learning_rate'.")
    assert steprl.refused("train", tmp_path / "absent.toml").startswith("ConfigError: there is no recipe")
    assert "Did you mean 'courier'?" in steprl.refused("rollout", recipe, "env.id=curier")
    assert "not an override" in steprl.refused("eval", recipe, "greedy")
    assert "there is no tokenizer folder" in steprl.refused("train", recipe, "model.path=/no/where")


def test_an_error_is_red_on_a_terminal() -> None:
    """In a process of its own, as ``main`` decides about colour from the environment."""
    command = [sys.executable, "-c", "from steprl.cli import main; main()", "tool", "call", "calculater"]
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith(
        "\x1b[31mConfigError: unknown tool 'calculater'. Did you mean 'calculator'?"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--fast"], "No such option: --fast"),
        (["trian"], "No such command 'trian'"),
        (["train"], "give a recipe, for example recipes/quickstart.toml, or --resume RUN"),
        (["train", "r.toml", "--resume", "runs/a"], "--resume takes the recipe from the run folder"),
        (["eval"], "Missing argument 'RECIPE|RUN|CHECKPOINT'"),
        (["eval", "r.toml", "--save", "episodes.csv"], "episodes are stored in a .parquet file, got"),
        (
            ["rollout", "r.toml", "--save", "episodes"],
            "episodes are stored in a .parquet file, got 'episodes'",
        ),
    ],
)
def test_wrong_usage_exits_with_two(steprl: Terminal, arguments: list[str], message: str) -> None:
    code, _, errors = steprl(*arguments)
    assert code == 2 and message in errors


# --- train --------------------------------------------------------------------------------------------


def test_train_prints_the_recipe_the_progress_and_the_summary(
    steprl: Terminal, recipe: Path, tmp_path: Path
) -> None:
    code, told, _ = steprl("train", recipe, "name=first", "learner.lr=0.5")
    assert code == 0
    assert 'name = "first"' in told and "lr = 0.5" in told
    assert "iteration    1  reward" in told and "success_after" in told
    assert RunFolder.open(tmp_path / "runs" / "first")[1].learner.lr == 0.5
    assert "exists. Continue it with 'steprl train --resume" in steprl.refused("train", recipe, "name=first")
    code, told, _ = steprl("train", "--resume", tmp_path / "runs" / "first")
    assert code == 0 and "nothing left to do" in told and "success_after" in told


def test_resuming_what_is_no_run_is_refused_plainly(steprl: Terminal, tmp_path: Path) -> None:
    assert "is not a run folder" in steprl.refused("train", "--resume", tmp_path)


def test_components_are_found_in_the_current_folder(tiny_policy: str, tmp_path: Path) -> None:
    """The console script itself, started where the module lies, as the error message advises."""
    (tmp_path / "my_tools.py").write_text(
        "import steprl\n\n@steprl.tool\ndef double(x: int) -> int:\n    'Twice x.'\n    return 2 * x\n"
    )
    script = Path(sys.executable).with_name("steprl")
    command = [str(script), "tool", "call", "my_tools:double", '{"x": 21}']
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "42\n")


# --- eval, rollout ------------------------------------------------------------------------------------


def test_eval_prints_json_and_stores_the_episodes(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    episodes = tmp_path / "episodes.parquet"
    options = ("engine.args.replies=['0']", "evaluation.tasks=3", "--greedy", "--save", episodes)
    code, told, errors = steprl("eval", recipe, *options)
    assert code == 0
    figures = json.loads(told)
    assert (figures["tasks"], figures["success"], figures["errors"]) == (3, pytest.approx(1 / 3), 0)
    assert "pass@1" in errors and "\r" not in errors  # a bar only where there is a terminal
    stored = read(episodes, split="eval")
    assert [group.task_id for group in stored] == ["task-90", "task-91", "task-92"]
    assert stored[0].trajectories[0].steps[0].sampling.temperature == 0.0
    assert not (tmp_path / "runs").exists()


def test_rollout_shows_an_episode_and_the_figures(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    episodes = tmp_path / "episodes.parquet"
    code, told, _ = steprl("rollout", recipe, "rollout.groups=1", "rollout.group_size=2", "--save", episodes)
    assert code == 0
    assert "episode rollout-0.0 of group rollout-0" in told and "── step 0, act of policy" in told
    assert "1 groups of 2" in told and "reward/mean" in told
    assert [len(group.trajectories) for group in read(episodes)] == [2]
    assert not (tmp_path / "runs").exists()


# --- show ---------------------------------------------------------------------------------------------


def test_show_prints_the_last_episode_or_the_one_asked_for(steprl: Terminal, finished: Path) -> None:
    code, told, _ = steprl("show", finished)
    assert code == 0 and told.startswith("episode train-2-1.3 of group train-2-1")
    assert "{+sampled by the model+}" in told and "Which digit? No." in told
    code, told, _ = steprl("show", finished, "--episode", "train-1-0.2")
    assert code == 0 and told.startswith("episode train-1-0.2")
    code, told, _ = steprl("show", finished, "--iteration", 1)
    assert code == 0 and told.startswith("episode train-1-1.3")


def test_show_of_what_is_not_there_says_so(steprl: Terminal, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert steprl.refused("show", absent) == f"ConfigError: there is no run folder or file '{absent}'"


def test_show_lists_episodes(steprl: Terminal, finished: Path) -> None:
    code, told, _ = steprl("show", finished, "--list")
    assert code == 0
    expected = [f"train-{n}-{group}.{member}" for n in (1, 2) for group in (0, 1) for member in range(4)]
    assert all(f" {uid} " in told for uid in [*expected, "eval-0-before-sampled-0.0"])
    code, told, _ = steprl("show", finished, "--list", "--iteration", 1)
    assert " train-1-0.0 " in told and "train-2" not in told


def test_show_answers_what_is_not_there_with_what_is(
    steprl: Terminal, finished: Path, tmp_path: Path
) -> None:
    line = steprl.refused("show", finished, "--episode", "train-2-1.33")
    assert "unknown episode 'train-2-1.33'. Did you mean 'train-2-1.3'?" in line
    assert line.endswith(f"See: steprl show {finished} --list")
    assert line.count("train-") < 10  # the nearest, not all of them
    assert "holds no trajectories of iteration 0" not in steprl("show", finished, "--iteration", 0)[2]
    assert "holds no trajectories of iteration 9" in steprl.refused("show", finished, "--iteration", 9)
    assert "there is no run folder or file" in steprl.refused("show", tmp_path / "nowhere")


def test_show_reads_a_file_when_it_is_told_the_model(
    steprl: Terminal, finished: Path, tiny_policy: str
) -> None:
    file = finished / "trajectories" / "000001-train.parquet"
    assert "give --model PATH" in steprl.refused("show", file)
    code, told, _ = steprl("show", file, "--model", tiny_policy)
    assert code == 0 and told.startswith("episode train-1-1.3")


# --- env, tool ----------------------------------------------------------------------------------------


def test_environments_and_tools_are_listed_with_what_they_are(steprl: Terminal) -> None:
    code, told, _ = steprl("env", "list")
    assert code == 0
    assert "courier" in told and "lookup, calculator" in told and "steprl.envs.courier:Courier" in told
    assert "gsm8k" in told
    code, told, _ = steprl("tool", "list")
    assert code == 0 and "calculator" in told and "expression" in told


def test_a_tool_is_called_as_an_agent_would(steprl: Terminal) -> None:
    assert steprl("tool", "call", "calculator", '{"expression": "2*(3+4)"}') == (0, "14\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calculator", '{"expression": "1/0"}'], "ToolError: division by zero in '1/0'"),
        (["calculator"], "ToolError: calculator: argument 'expression' is missing"),
        (["calculator", "2+2"], "ConfigError: the arguments are not JSON: "),
        (["calculator", "[1]"], "ConfigError: the arguments must be a JSON object, got [1]"),
        (["calculater"], "ConfigError: unknown tool 'calculater'. Did you mean 'calculator'?"),
        (["math:sqrt"], "ConfigError: 'math:sqrt' is <built-in function sqrt>, not a tool."),
    ],
)
def test_a_call_that_cannot_work_is_told(steprl: Terminal, arguments: list[str], message: str) -> None:
    assert message in steprl.refused("tool", "call", *arguments)


def test_what_looks_like_markup_is_shown_as_it_is(steprl: Terminal, tiny_policy: str, tmp_path: Path) -> None:
    given = Given(train_tasks=[Task(id="[/INST]", answer="1"), Task(id="[red]", answer="1")])
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=1", "evaluation.tasks=0")
    run(recipe, given=given)
    code, shown, _ = steprl("show", tmp_path / "run", "--list")
    assert code == 0 and "[/INST]" in shown and "[red]" in shown
    assert "Continue it from Python" in steprl.refused("train", "--resume", tmp_path / "run")


def test_a_plan_is_printed_and_leaves_no_folder(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    code, told, _ = steprl("plan", recipe, "train.iterations=7", "--groups", 1)
    assert code == 0 and not (tmp_path / "runs").exists()
    assert "plan of run: 7 iterations" in told and "Measured on 1 of 2 groups (4 episodes," in told
    assert "plays 1 to rollout.groups = 2 groups, and 3 were asked" in steprl.refused(
        "plan", recipe, "--groups", 3
    )
