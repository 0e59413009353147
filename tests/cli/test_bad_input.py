"""What a person can get wrong, through the command line: one line that names the value, what is allowed and
what to do; exit code 1, and no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playing import Guess
from terminal import Terminal
from tiny import tiny_tokenizer
from tiny_model import tiny_llama
from training import DICE, recipe_of, run_briskly

from steprl.config import to_toml
from steprl.types import Task


class FromFile(Guess):
    """``Guess`` with its tasks in a file."""

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        return super(Guess, cls).tasks(source)


FROM_FILE = f"env.id={__name__}:FromFile"


@pytest.fixture
def recipe(tiny_policy: str, tmp_path: Path) -> Path:
    """A recipe file of one iteration, whose runs go beside it."""
    options = ("train.iterations=1", "evaluation.tasks=0")
    file = tmp_path / "recipe.toml"
    file.write_text(to_toml(recipe_of(DICE, tiny_policy, tmp_path / "runs", *options)))
    return file


def write_tasks(path: Path, *lines: Any) -> Path:
    """A task file; text goes in as it is, anything else as JSON."""
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


GOOD = {"id": "a", "prompt": "Which digit?", "answer": 1}


# --- the recipe -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "rollout.group_sise=4",
            "ConfigError: unknown option 'rollout.group_sise'. Did you mean 'rollout.group_size'? Known: ",
        ),
        (
            "rolout.groups=4",
            "ConfigError: unknown option 'rolout'. Did you mean 'rollout'? Known: algorithm, ",
        ),
        ("rollout=4", "ConfigError: 'rollout' is a table of options, got 4. Set rollout.<option>."),
        ("seed.value=4", "ConfigError: 'seed.value': 'seed' is a value, not a table of options"),
        ("4", "ConfigError: '4' is not an override. Write key=value, for example learner.lr=1e-4."),
        (
            "rollout.groups=many",
            "ConfigError: the recipe does not fit: rollout.groups: Input should be a valid integer, "
            "got 'many'",
        ),
        (
            "learner.lr='1e-4'",
            "ConfigError: the recipe does not fit: learner.lr: Input should be a valid number, got '1e-4'",
        ),
        (
            "learner.dtype=fp16",
            "ConfigError: the recipe does not fit: learner.dtype: Input should be 'float32', 'bfloat16' or "
            "'float64', got 'fp16'",
        ),
        (
            "learner.lr=-1",
            "ConfigError: learner option lr = -1.0 is out of range: it must be a number above 0.",
        ),
        ("rollout.groups=0", "ConfigError: rollout.groups must be at least 1, got 0"),
        ("train.iterations=0", "ConfigError: train.iterations must be at least 1, got 0"),
        ("name=a/b", "ConfigError: name must be a plain folder name: 1 to 128 of A-Z, a-z, 0-9, "),
        (
            "algorithm.aggregation.rule=token_men",
            "ConfigError: unknown aggregation rule 'token_men'. Did you mean 'token_mean'?",
        ),
        ("rollout.temperature=0", "ConfigError: rollout.temperature 0 (greedy) gives nothing to learn from"),
        ("rollout.top_p=0.9", "ConfigError: rollout.top_p = 0.9 and rollout.top_k = 0: the learner does not"),
    ],
)
def test_an_option_that_does_not_fit(steprl: Terminal, recipe: Path, option: str, message: str) -> None:
    assert steprl.refused("train", recipe, option).startswith(message)


def test_a_recipe_that_is_not_there_or_no_toml(steprl: Terminal, tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    assert steprl.refused("train", absent) == (
        f"ConfigError: there is no recipe '{absent}'. Recipes are TOML files; see the folder recipes/."
    )
    broken = tmp_path / "broken.toml"
    broken.write_text("[env]\nid = courier\n")
    assert steprl.refused("train", broken) == f"ConfigError: {broken}: Invalid value (at line 2, column 6)"
    broken.write_bytes(b"name = '\xff'\n")
    assert steprl.refused("train", broken).startswith(f"ConfigError: {broken}: 'utf-8' codec can't decode")


def test_a_recipe_without_an_environment(steprl: Terminal, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("seed = 1\n")
    told = steprl.refused("train", tmp_path / "recipe.toml")
    assert told == "ConfigError: the recipe does not fit: env: Field required"


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("env.id=curier", "unknown env 'curier'. Did you mean 'courier'? Known: "),
        ("algorithm.estimator=gpro", "unknown estimator 'gpro'. Did you mean 'grpo'? Known: "),
        ("context.id=append", "unknown context 'append'. Did you mean 'append_only'? Known: "),
        ("engine.id=trch", "unknown engine 'trch'. Did you mean 'torch'? Known: "),
        ("model.format=hermess", "unknown format 'hermess'. Did you mean 'hermes'? Known: "),
        (
            "rollout.rewards={'playing:lettters'=1}",
            "reward 'playing:lettters': unknown attribute of playing ",
        ),
        (
            "env.id=playing:Gues",
            "env 'playing:Gues': unknown attribute of playing 'Gues'. Did you mean 'Guess'?",
        ),
        (
            "env.id=nowhere:Guess",
            "env 'nowhere:Guess': there is no module 'nowhere'. Run from the folder that holds it, or "
            "install the package it belongs to.",
        ),
        (
            "env.id=playing:",
            "env 'playing:': write module:attribute, for example my_package.my_module:MyClass",
        ),
        ("env.id=playing:call", "env 'playing:call' is <function call at "),
        ("env.args={size=3}", "env 'playing:Guess' does not take these options: "),
        ("algorithm.args={gama=1}", "estimator 'grpo' does not take these options: "),
    ],
)
def test_a_name_that_is_not_known(steprl: Terminal, recipe: Path, option: str, message: str) -> None:
    assert steprl.refused("train", recipe, option).startswith(f"ConfigError: {message}")


def test_a_tool_that_is_not_known(steprl: Terminal) -> None:
    told = steprl.refused("tool", "call", "calculatr")
    assert told.startswith("ConfigError: unknown tool 'calculatr'. Did you mean 'calculator'? Known: ")


# --- sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo"])
def test_a_group_of_one(steprl: Terminal, recipe: Path, estimator: str) -> None:
    told = steprl.refused("train", recipe, f"algorithm.estimator={estimator}", "rollout.group_size=1")
    assert told.startswith("ConfigError: group_size = 1, but ")
    assert "needs at least 2. Set group_size to 2 or more (8 is usual)" in told


def test_more_minibatches_than_trajectories(steprl: Terminal, recipe: Path) -> None:
    assert steprl.refused("train", recipe, "algorithm.minibatches=9") == (
        "ConfigError: algorithm.minibatches = 9, but an iteration has 8 trajectories (rollout.groups = 2 "
        "tasks, rollout.group_size = 4 trajectories each), and a mini-batch is at least one of them. "
        "Set algorithm.minibatches to 8 or less."
    )


def test_an_uneven_split_is_none_of_these(steprl: Terminal, recipe: Path) -> None:
    """8 trajectories in 3 mini-batches are 2, 3 and 3: each weighs its own tokens, so nothing is bent."""
    code, _, errors = steprl("train", recipe, "algorithm.minibatches=3")
    assert code == 0, errors


def test_a_first_prompt_that_is_longer_than_the_context(steprl: Terminal, recipe: Path) -> None:
    code, _, errors = steprl("train", recipe, "engine.max_context=40")
    assert code == 1 and "Traceback" not in errors
    assert "the first prompt of task 'task-" in errors
    assert "tokens, tool descriptions included; the context holds 40. Raise engine.max_context or" in errors


# --- tasks ----------------------------------------------------------------------------------------------


def test_no_tasks(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    assert steprl.refused("train", recipe, "env.train=none") == (
        "TaskError: the training task set 'none' is empty; nothing to roll out"
    )
    empty = write_tasks(tmp_path / "empty.jsonl")
    assert steprl.refused("train", recipe, FROM_FILE, f"env.train={empty}") == (
        f"TaskError: {empty} holds no tasks: one JSON object a line is expected."
    )
    absent = tmp_path / "absent.jsonl"
    assert steprl.refused("train", recipe, FROM_FILE, f"env.train={absent}").startswith(
        f"TaskError: FromFile has no task set '{absent}'. Name a JSONL file (env.train=PATH in a recipe, "
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "Which', "not JSON: Unterminated string"),
        ("[1]", "a row must be a JSON object, got list"),
        (
            '{"promt": "Which?", "answer": 1}',
            "unknown column 'prompt'. Did you mean 'promt'? Known: answer, promt.",
        ),
        ('{"prompt": 3, "answer": 1}', "'prompt' must be text, got 3"),
        ('{"id": "a", "prompt": "Which?", "answer": 1}', "the task id 'a' is already taken by line 1. "),
    ],
)
def test_a_line_that_is_no_task(
    steprl: Terminal, recipe: Path, tmp_path: Path, line: str, message: str
) -> None:
    file = write_tasks(tmp_path / "tasks.jsonl", GOOD, "", line)
    told = steprl.refused("train", recipe, FROM_FILE, f"env.train={file}")
    assert told.startswith(f"TaskError: {file}:3: {message}")


# --- models ---------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    assert steprl.refused("train", recipe, "model.path=./absent") == (
        "ConfigError: there is no tokenizer folder './absent'. Name an existing folder, or a hub id "
        "'owner/model'."
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    told = steprl.refused("train", recipe, f"model.path={empty}")
    assert told.startswith(
        f"ConfigError: the folder '{empty}' holds no tokenizer that transformers can read. "
    )
    tiny_tokenizer().save_pretrained(empty)
    told = steprl.refused("train", recipe, f"model.path={empty}")
    assert told.startswith(
        f"ConfigError: model '{empty}' cannot be loaded. It must be a folder with config.json"
    )


# --- run folders ----------------------------------------------------------------------------------------


def test_a_run_folder_that_is_there_or_cannot_be(steprl: Terminal, recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    assert steprl.refused("train", recipe) == (
        f"ConfigError: the run folder '{folder}' exists. Continue it with 'steprl train --resume {folder}', "
        f"replace it with --overwrite, or choose another name=…"
    )
    (folder / "thesis.tex").write_text("years of work")
    assert steprl.refused("train", recipe, "--overwrite") == (
        f"ConfigError: '{folder}' is not a run folder (no config.toml in it); it stays as it is"
    )
    file = tmp_path / "file"
    file.write_text("")
    told = steprl.refused("train", recipe, f"runs={file}")
    assert told.startswith(f"ConfigError: the run folder '{file}/run' cannot be written: Not a directory.")
    assert told.endswith(" Or choose another place with runs=…")


def test_resuming_what_is_no_run(steprl: Terminal, tmp_path: Path) -> None:
    assert steprl.refused("train", "--resume", tmp_path) == (
        f"ConfigError: '{tmp_path}' is not a run folder: it has no config.toml"
    )


# --- checkpoints ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations, stopped before its last evaluation."""
    options = ("train.iterations=2", "evaluation.tasks=0")
    return run_briskly(recipe_of(DICE, tiny_policy, tmp_path_factory.mktemp("stopped"), *options))


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it that may be broken."""
    return shutil.copytree(stopped, tmp_path / "run")


def test_a_checkpoint_of_another_model(steprl: Terminal, run: Path, tiny_policy: str, tmp_path: Path) -> None:
    tiny_llama(len(tiny_tokenizer()), num_hidden_layers=1).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace(tiny_policy, str(tmp_path / "other")))
    told = steprl.refused("train", "--resume", run)
    assert told.startswith(
        f"CheckpointError: checkpoint '{run}/checkpoints/step-2' belongs to another model: "
    )
    assert told.endswith("Resume with the model that the run was started with.")


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        ("model.safetensors", "cut", r"model.safetensors has 1000 bytes, \d+ were written"),
        ("model.safetensors", "gone", "model.safetensors is missing"),
        ("model.safetensors", "changed", "the content of model.safetensors is not what was written"),
        ("optimiser.pt", "cut", r"optimiser.pt has 1000 bytes, \d+ were written"),
        ("optimiser.pt", "gone", "optimiser.pt is missing"),
        ("trainer.json", "cut", "trainer.json cannot be read: "),
        ("trainer.json", "gone", "trainer.json is missing"),
        ("files.json", "cut", "files.json cannot be read: "),
        ("files.json", "gone", "files.json is missing"),
    ],
)
def test_a_checkpoint_that_is_damaged(
    steprl: Terminal, run: Path, name: str, harm: str, message: str
) -> None:
    import re

    saved = run / "checkpoints" / "step-2"
    content = (saved / name).read_bytes()
    if harm == "cut":
        (saved / name).write_bytes(content[: min(1000, len(content) // 2)])
    elif harm == "changed":
        (saved / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        (saved / name).unlink()
    metrics = (run / "metrics.jsonl").read_bytes()
    told = steprl.refused("train", "--resume", run)
    assert re.match(f"CheckpointError: the checkpoint '{saved}' is damaged: {message}", told), told
    assert told.endswith("Put back a copy of it, or start the run again with --overwrite.")
    assert (run / "metrics.jsonl").read_bytes() == metrics and len(
        list((run / "trajectories").iterdir())
    ) == 2


def test_a_run_whose_recipe_is_broken(steprl: Terminal, run: Path) -> None:
    (run / "config.toml").write_text("name = \n")
    told = steprl.refused("train", "--resume", run)
    assert told.startswith(f"ConfigError: {run}/config.toml: Invalid value (at line 1")
    (run / "config.toml").unlink()
    assert "is not a run folder: it has no config.toml" in steprl.refused("train", "--resume", run)
