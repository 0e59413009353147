"""Every recipe that ships can be read and names what exists; the one on real questions runs end to end on
six questions and a tiny model."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from training import run, weights

from steprl.cli import main
from steprl.config import build, read_toml
from steprl.errors import TaskError
from steprl.registry import resolve
from steprl.renderers import load_tokenizer
from steprl.rewards import RewardComposer
from steprl.tasks import load_jsonl
from steprl.trainers.api import load_recipe
from steprl.trainers.comparison.variants import read_variants
from steprl.trainers.needs import check_needs
from steprl.trainers.parts import Given, env_of
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import read

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
VARIANTS = sorted((Path(__file__).parent.parent / "recipes" / "variants").glob("*.toml"))
GSM8K = next(path for path in RECIPES if path.stem == "gsm8k_smollm2")
QUESTIONS = {
    "Ines bakes 3 trays of 12 rolls and sells 30 rolls. How many are left?": "3*12=<<3*12=36>>36\n#### 6",
    "A bus with 40 seats is three quarters full. How many seats are free?": "40/4=<<40/4=10>>10\n#### 10",
    "Omar saves $15 a week. How much does he have after 8 weeks?": "15*8=<<15*8=120>>120\n#### 120",
    "Six boxes weigh 1,200 grams each. What do they weigh?": "6*1200=<<6*1200=7200>>7,200\n#### 7,200",
    "Lea is 9, her brother twice as old. How old are they together?": "9+18=<<9+18=27>>27\n#### 27",
    "A rope of 50 m loses 4 pieces of 7 m. How long is it now?": "50-28=<<50-28=22>>22\n#### 22",
}


def rows(folder: Path, name: str, chosen: slice) -> str:
    """A file in the format of the official ones, with some of the questions."""
    path = folder / name
    entries = [{"question": question, "answer": answer} for question, answer in QUESTIONS.items()]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries[chosen]))
    return str(path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_read_and_names_components_that_exist(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    env_of(recipe, Given())(**recipe.env.args)
    resolve("context", recipe.context.id)(**recipe.context.args)
    resolve("estimator", recipe.algorithm.estimator)(**recipe.algorithm.args)
    resolve("format", recipe.model.format)
    resolve("engine", recipe.engine.id)
    RewardComposer(recipe.rollout.rewards)


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: path.stem)
def test_variants_are_read_and_fit_the_recipe_that_their_command_names(path: Path) -> None:
    command = re.search(
        r"steprl compare \w+ (recipes/\w+\.toml) .*--\w+ recipes/variants/(\w+\.toml)", path.read_text()
    )
    assert command is not None
    assert command[2] == path.name
    for variant in read_variants(path):
        recipe = build(Recipe, variant.apply(read_toml(path.parents[2] / command[1])))
        estimator = resolve("estimator", recipe.algorithm.estimator)(**recipe.algorithm.args)
        check_needs(recipe, estimator, env_of(recipe, Given()))
        resolve("context", recipe.context.id)(**recipe.context.args)


def test_gsm8k_without_its_data_says_where_it_is_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["steprl", "train", str(GSM8K), "model.path=/no/model", f"runs={tmp_path / 'runs'}"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    told = capsys.readouterr().err
    assert caught.value.code == 1
    assert told.startswith("TaskError: GSM8K needs the path of its task file. The official files are ")
    assert "openai/grade-school-math" in told and "env.train=PATH env.eval=PATH" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_gsm8k_without_its_test_file_is_told_too(tmp_path: Path) -> None:
    recipe = load_recipe(
        GSM8K, [f"env.train={rows(tmp_path, 'train.jsonl', slice(6))}", "model.path=/no/model"]
    )
    with pytest.raises(TaskError, match="GSM8K needs the path of its task file"):
        run(recipe)


def test_gsm8k_trains_on_rows_of_the_official_format(tiny_policy: str, tmp_path: Path) -> None:
    train, test = rows(tmp_path, "train.jsonl", slice(4)), rows(tmp_path, "test.jsonl", slice(4, None))
    small = ["threads=1", "engine.max_context=2048", "train.iterations=1", "evaluation.tasks=2"]
    small += ["rollout.groups=3", "rollout.group_size=2", "rollout.max_steps=2", "rollout.max_tokens=8"]
    # so that noise earns something, and the weights have a reason to move
    small += ["rollout.rewards.playing:letters=0.1", "learner.lr=1e-2"]
    places = [f"model.path={tiny_policy}", f"runs={tmp_path}", f"env.train={train}", f"env.eval={test}"]
    recipe = load_recipe(GSM8K, [*small, *places])
    summary = run(recipe)
    folder = tmp_path / recipe.name

    assert (summary["iterations"], summary["eval_tasks"]) == (1, 2)
    assert (folder / "curves.png").is_file()
    (line,) = [line for line in RunFolder(folder).metrics() if "learner/loss" in line]
    assert line["batch/counted"] == 6 and line["learner/optimiser_steps"] == 1
    assert line["learner/max_ratio_deviation"] < 1e-3 and line["learner/engine_gap"] < 1e-3

    before = load_file(Path(tiny_policy) / "model.safetensors")
    assert any(not np.array_equal(before[name], after) for name, after in weights(folder).items())

    groups = read(folder, split="train")
    questions = {task.id: task.prompt for task in load_jsonl(train, prompt="question")}
    assert len({group.task_id for group in groups}) == 3
    decode = load_tokenizer(tiny_policy).decode
    for group in groups:
        for trajectory in group.trajectories:
            opening = decode(trajectory.steps[0].prompt_ids)
            assert opening.count("Use the calculator.") == 1 + recipe.env.args["examples"]
            assert opening.endswith(
                f"{questions[group.task_id]} Use the calculator.<|im_end|>\n<|im_start|>assistant\n"
            )
            seen = {name for step in trajectory.steps for name in step.rewards}
            assert seen >= {"format", "malformed_calls", "playing:letters"}
