"""What cannot work is refused before anything runs, with what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playing import Dice, guesses
from training import COURIER, DICE, recipe_of, run

from steprl.config import to_toml
from steprl.credit import Grpo
from steprl.errors import ConfigError, TaskError
from steprl.trainers.given import Given
from steprl.trainers.parts import build_parts, build_player, model_path, tasks_of


def not_an_env() -> None:
    """Something that is no environment."""


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rollout.group_size=1", "group_size = 1, but Grpo compares the trajectories of a group"),
        ("rollout.temperature=0", "rollout.temperature 0 (greedy) gives nothing to learn from; use 1.0"),
        ("rollout.top_p=0.9", "rollout.top_p = 0.9 and rollout.top_k = 0: the learner does not apply"),
        ("rollout.top_k=5", "rollout.top_p = 1.0 and rollout.top_k = 5: the learner does not apply"),
        ("env.id=curier", "unknown env 'curier'. Did you mean 'courier'?"),
        ("context.id=apend_only", "unknown context 'apend_only'. Did you mean 'append_only'?"),
        ("engine.id=torhc", "unknown engine 'torhc'. Did you mean 'torch'?"),
        ("algorithm.estimator=gpro", "unknown estimator 'gpro'. Did you mean 'grpo'?"),
        ("model.format=hermse", "unknown format 'hermse'. Did you mean 'hermes'?"),
        ("model.format_args.tools=3", "format 'hermes' does not take these options: "),
        ("env.id=test_parts:not_an_env", "neither a class derived from steprl.Env nor a workflow"),
        ("env.args.depth=3", "env 'playing:Guess' does not take these options: "),
        ("context.args.window=3", "context 'append_only' does not take these options: "),
        ("algorithm.args.clip=3", "estimator 'grpo' does not take these options: "),
        ("engine.args.temperature=3", "engine 'playing:Dice' does not take these options: "),
        ("rollout.rewards.outcome=nan", "the weight of reward component 'outcome' must be a finite number"),
        ("model.chat_template=/no/where.jinja", "model.chat_template: there is no file '/no/where.jinja'"),
        ("model.path=/no/where", "there is no tokenizer folder '/no/where'"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_no_folder(
    tiny_policy: str, tmp_path: Path, assignment: str, message: str
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path / "runs", assignment)
    with pytest.raises(ConfigError) as caught:
        run(recipe)
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("given", [Given(), Given(train_tasks=())])
def test_an_empty_task_set_is_refused_and_leaves_no_folder(
    tiny_policy: str, tmp_path: Path, given: Given
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path / "runs", "env.train=none")
    with pytest.raises(TaskError, match="the training task set 'none' is empty"):
        run(recipe, given=given)
    assert not (tmp_path / "runs").exists()


def test_a_split_that_the_environment_does_not_know_is_refused(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="unknown Courier task set 'trian'. Did you mean 'train'?"):
        build_parts(recipe_of(COURIER, tiny_policy, tmp_path, "env.train=trian"))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("engine.args.dtyp=1", "engine 'torch' does not take these options"),
        ("engine.slots=0", "engine.slots and engine.prefill_tokens must be at least 1"),
        ("engine.max_context=4096", "between 2 and the model's own limit 2048, got 4096"),
    ],
)
def test_engine_options_are_checked(tiny_policy: str, tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_player(recipe_of(COURIER, tiny_policy, tmp_path, assignment))


def test_the_options_of_a_recipe_reach_its_format(tiny_policy: str, tmp_path: Path) -> None:
    tags = {"format": "steprl.renderers.tags:TagsFormat", "format_args": {"tools": {"find": "name"}}}
    player = build_player(recipe_of({**DICE, "model": tags}, tiny_policy, tmp_path))
    assert player.renderer.write("", [("find", {"name": "Ada"})]) == "<find>Ada</find>"


def test_the_scripted_engine_needs_a_script(tiny_policy: str, tmp_path: Path) -> None:
    without = {**DICE, "engine": {"id": "scripted"}}
    with pytest.raises(ConfigError, match='engine "scripted" needs engine.args.script'):
        build_player(recipe_of(without, tiny_policy, tmp_path))
    scripted: dict[str, Any] = {"id": "scripted", "args": {"script": ["0"], "latency": 0.5}}
    assert build_player(recipe_of({**DICE, "engine": scripted}, tiny_policy, tmp_path)).engine
    scripted["args"]["latncy"] = 1
    with pytest.raises(ConfigError, match="engine 'scripted' does not take these options: .*latncy"):
        build_player(recipe_of({**DICE, "engine": scripted}, tiny_policy, tmp_path))


def test_evaluation_takes_the_first_tasks_and_may_have_none(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "evaluation.tasks=3")
    assert [task.id for task in tasks_of(recipe, "eval", Given())] == ["task-90", "task-91", "task-92"]
    assert len(tasks_of(recipe, "train", Given())) == 6
    none = replace(recipe, evaluation=replace(recipe.evaluation, tasks=0))
    assert tasks_of(none, "eval", Given()) == ()
    unnamed = replace(recipe, env=replace(recipe.env, eval=None))
    assert tasks_of(unnamed, "eval", Given()) == ()
    assert tasks_of(recipe, "eval", Given(eval_tasks=guesses(9))) == guesses(9)[:3]


def test_parts_are_those_that_the_recipe_names(tiny_policy: str, tmp_path: Path) -> None:
    parts = build_parts(recipe_of(DICE, tiny_policy, tmp_path))
    assert isinstance(parts.player.engine, Dice)
    assert isinstance(parts.estimator, Grpo)
    assert (len(parts.train_tasks), len(parts.eval_tasks)) == (6, 4)


def test_the_quickstart_policy_is_part_of_the_package() -> None:
    assert Path(model_path("quickstart")).parts[-3:] == ("steprl", "policies", "quickstart")
    assert model_path("some/other") == "some/other"


# --- training and evaluation keep apart -----------------------------------------------------------------


def test_a_task_for_both_training_and_evaluation_is_refused(tiny_policy: str, tmp_path: Path) -> None:
    """The content counts, not the id: the same problem under another name is no new problem."""
    renamed = replace(guesses(2)[1], id="other")
    given = Given(eval_tasks=[*guesses(2, first=90), renamed])
    with pytest.raises(ConfigError) as caught:
        run(recipe_of(DICE, tiny_policy, tmp_path / "runs"), given=given)
    assert str(caught.value).startswith(
        "1 of the 3 evaluation tasks (eval tasks handed over from Python) are training tasks as well "
        "(env.train = 'train'): the same prompt, answer and data. For example 'other', which is 'task-1' in "
        "training."
    )
    assert str(caught.value).endswith("name another set, or set evaluation.tasks = 0.")
    assert not (tmp_path / "runs").exists()


def test_only_the_evaluation_tasks_that_are_played_are_compared(tiny_policy: str, tmp_path: Path) -> None:
    given = Given(eval_tasks=[*guesses(2, first=90), *guesses(2)])
    options = ("evaluation.tasks=2", "env.train=train")
    assert len(build_parts(recipe_of(DICE, tiny_policy, tmp_path, *options), given).eval_tasks) == 2
    assert build_parts(recipe_of(DICE, tiny_policy, tmp_path, "env.eval=train", "evaluation.tasks=0"))
    with pytest.raises(ConfigError, match=r"4 of the 4 evaluation tasks \(env.eval = 'train'\)"):
        build_parts(recipe_of(DICE, tiny_policy, tmp_path, "env.eval=train"))


# --- failures and determinism reach the pool ------------------------------------------------------------


def test_deterministic_means_one_thread_and_only_algorithms_that_repeat(
    tiny_policy: str, tmp_path: Path
) -> None:
    """In a process of its own: both are choices of the whole process."""
    recipe = recipe_of(COURIER, tiny_policy, tmp_path, "deterministic=true")
    (tmp_path / "r.toml").write_text(to_toml(replace(recipe, threads=None)))
    lines = (
        "import torch",
        "from steprl.trainers.api import load_recipe",
        "from steprl.trainers.parts import build_player",
        f"build_player(load_recipe({str(tmp_path / 'r.toml')!r}))",
        "print(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())",
    )
    tests = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": tests}
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.stdout == "1 True\n", ended.stderr
