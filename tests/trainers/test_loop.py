"""The loop end to end: what a run leaves behind, and that it trains what it sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playing import Dice, Guess, guesses
from safetensors.numpy import load_file
from training import COURIER, DICE, quiet, recipe_of, run, run_briskly, said, same_weights, weights

from steprl.config import build, read_toml
from steprl.errors import ConfigError, EngineError
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import files, read
from steprl.types import StopReason, Task, WeightSource

Run = tuple[Path, dict[str, Any], str]
"""Folder, summary, and what was said."""

SUMMARY = {
    "success_before",
    "success_after",
    "greedy_before",
    "greedy_after",
    "reward_before",
    "reward_after",
    "eval_tasks",
    "iterations",
    "train_seconds",
    "seed",
    "algorithm",
    "context",
    "model",
}


@pytest.fixture(scope="module")
def courier(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three iterations of Courier with the tiny model in the torch engine: folder, summary, what was said."""
    runs, display = tmp_path_factory.mktemp("courier"), quiet()
    summary = run(recipe_of(COURIER, tiny_policy, runs), display=display)
    return runs / "courier", summary, said(display)


# --- what a run leaves behind -------------------------------------------------------------------------


def test_the_folder_has_what_the_documentation_says(courier: Run) -> None:
    folder, _, _ = courier
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.toml",
        "curves.png",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
        "trajectories",
    ]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-3"]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert not list(folder.rglob("*.partial"))  # nothing half-written


def test_the_recipe_it_ran_is_there_in_full_and_runs_again(
    courier: Run, tiny_policy: str, tmp_path: Path
) -> None:
    folder, _, told = courier
    recipe = build(Recipe, read_toml(folder / "config.toml"))
    assert recipe == recipe_of(COURIER, tiny_policy, folder.parent)
    assert (folder / "config.toml").read_text() in told
    with pytest.raises(ConfigError, match="exists. Continue it with 'steprl train --resume"):
        run(recipe)


def test_metrics_have_a_line_per_iteration_and_one_per_evaluation(
    courier: Run,
) -> None:
    lines = [json.loads(line) for line in (courier[0] / "metrics.jsonl").read_text().splitlines()]
    kinds = [(line["iteration"], "eval" if "eval/reward" in line else "train") for line in lines]
    assert kinds == [(0, "eval"), (1, "train"), (2, "train"), (2, "eval"), (3, "train"), (3, "eval")]
    for line in lines:
        assert all(isinstance(value, (int, float)) for value in line.values())
        evaluated = "eval/reward" in line
        assert all(name.startswith("eval/") == evaluated for name in line if name != "iteration")


def test_metrics_cover_reward_learner_and_speed(courier: Run) -> None:
    line = RunFolder(courier[0]).metrics()[1]
    for name in (
        "reward/mean",
        "reward/component/playing:letters",
        "episode/steps",
        "stop/max_steps",
        "groups/zero_variance_share",
        "learner/loss",
        "learner/grad_norm",
        "learner/entropy",
        "time/rollout",
        "time/update",
        "speed/tokens_per_second",
    ):
        assert np.isfinite(line[name]), name
    assert line["batch/counted"] == 4 and line["learner/updates"] == 1


def test_the_first_update_starts_from_the_very_policy_that_sampled(
    courier: Run,
) -> None:
    """Ratios are 1 before the first step, and the engine's own log-probabilities are the learner's."""
    for line in RunFolder(courier[0]).metrics():
        if "learner/updates" in line:
            assert line["learner/max_ratio_deviation"] < 1e-3
            assert line["learner/engine_gap"] < 1e-3
            assert line["learner/grad_norm"] > 0 and line["learner/skipped_steps"] == 0


def test_tensorboard_shows_the_same_figures(courier: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(courier[0] / "tensorboard"))
    events.Reload()
    shown = {event.step: float(event.tensor_proto.float_val[0]) for event in events.Tensors("reward/mean")}
    lines = RunFolder(courier[0]).metrics()
    told = {line["iteration"]: line["reward/mean"] for line in lines if "reward/mean" in line}
    assert shown == pytest.approx(told)


def test_every_batch_is_stored_with_its_tokens_and_versions(
    courier: Run,
) -> None:
    names = [path.name.removesuffix(".parquet") for path in files(courier[0])]
    training = ["000001-train", "000002-train", "000003-train"]
    assert names == sorted([*training, "000000-eval", "000002-eval", "000003-eval"])
    for version, name in enumerate(training):
        groups = read(courier[0] / "trajectories" / f"{name}.parquet")
        assert [group.group_uid for group in groups] == [f"train-{version + 1}-{n}" for n in range(2)]
        for group in groups:
            assert len(group.trajectories) == 2
            for t in group.trajectories:
                assert t.stop_reason in (StopReason.MAX_STEPS, StopReason.TERMINATED)
                assert all(set(step.policy_versions.tolist()) == {version} for step in t.steps)


def test_the_checkpoint_is_a_model_folder(courier: Run, tiny_policy: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = str(courier[0] / "checkpoints" / "step-3")
    before = AutoModelForCausalLM.from_pretrained(tiny_policy).state_dict()
    after = AutoModelForCausalLM.from_pretrained(checkpoint).state_dict()
    assert before.keys() == after.keys()
    assert not (before["lm_head.weight"] == after["lm_head.weight"]).all()  # it has learned something
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_policy).chat_template


def test_the_summary_is_what_a_script_reads(courier: Run) -> None:
    folder, summary, _ = courier
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert set(summary) == SUMMARY
    assert (summary["eval_tasks"], summary["iterations"], summary["seed"]) == (3, 3, 0)
    assert (summary["algorithm"], summary["context"]) == ("grpo", "append_only")
    lines = RunFolder(folder).metrics()
    assert summary["reward_before"] == lines[0]["eval/reward"]
    assert summary["reward_after"] == lines[-1]["eval/reward"]


def test_a_person_sees_figures_and_now_and_then_an_episode(courier: Run) -> None:
    told = courier[2]
    assert "iteration    3  reward " in told
    assert "episode train-2-0.0" in told and "episode train-1-0.0" not in told  # show_every = 2
    assert "evaluation before training, 3 tasks" in told and "evaluation after training" in told


# --- what does not change training --------------------------------------------------------------------


def test_evaluation_does_not_change_training(tiny_policy: str, tmp_path: Path) -> None:
    for every, tasks in ((0, 0), (1, 4)):
        options = (f"name=every-{every}", f"evaluation.every={every}", f"evaluation.tasks={tasks}")
        run_briskly(recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=3", *options))
    assert same_weights(tmp_path / "every-0", tmp_path / "every-1")


def test_the_seed_decides_everything(tiny_policy: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = (f"name={name}", f"seed={seed}", "engine.args.delay=0.003", "train.iterations=2")
        run_briskly(recipe_of(DICE, tiny_policy, tmp_path, "evaluation.tasks=0", *options))
    assert same_weights(tmp_path / "a", tmp_path / "b")
    assert not same_weights(tmp_path / "a", tmp_path / "c")


def test_without_evaluation_tasks_nothing_is_evaluated(tiny_policy: str, tmp_path: Path) -> None:
    summary = run(recipe_of(DICE, tiny_policy, tmp_path, "evaluation.tasks=0", "train.iterations=1"))
    assert (summary["success_before"], summary["reward_after"], summary["eval_tasks"]) == (None, None, 0)
    assert [line["iteration"] for line in RunFolder(tmp_path / "run").metrics()] == [1]
    assert [path.name for path in files(tmp_path / "run")] == ["000001-train.parquet"]


def test_the_very_same_evaluation_is_played_before_and_after(tiny_policy: str, tmp_path: Path) -> None:
    """``Dice`` does not learn, so its evaluation must not change either: tasks, seeds, sampling are fixed."""
    summary = run(recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=2"))
    assert summary["reward_before"] == summary["reward_after"]
    before, after = (read(tmp_path / "run" / "trajectories" / f"{n:06d}-eval.parquet") for n in (0, 2))
    assert (
        [g.task_id for g in before]
        == [g.task_id for g in after]
        == [task.id for task in guesses(4, first=90)]
    )
    assert [g.trajectories[0].seed for g in before] == [g.trajectories[0].seed for g in after]


def test_epochs_and_mini_batches_make_as_many_updates(tiny_policy: str, tmp_path: Path) -> None:
    options = ("algorithm.epochs=2", "algorithm.minibatches=3", "train.iterations=1", "evaluation.tasks=0")
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options))
    (line,) = RunFolder(tmp_path / "run").metrics()
    assert line["learner/updates"] == 6
    assert line["learner/optimiser_steps"] + line["learner/skipped_steps"] <= 6


def test_a_weight_that_no_component_answers_to_is_told(tiny_policy: str, tmp_path: Path) -> None:
    display = quiet()
    options = ("rollout.rewards.outcom=2.0", "train.iterations=1", "evaluation.tasks=0")
    run(recipe_of(DICE, tiny_policy, tmp_path, *options), display=display)
    assert "rollout.rewards: no step so far has a component 'outcom'" in said(display)


def test_when_every_episode_breaks_the_run_stops_with_the_reason(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="all 8 episodes failed.* the first prompt of task"):
        run(recipe_of(DICE, tiny_policy, tmp_path, "engine.max_context=8", "evaluation.tasks=0"))
    assert RunFolder(tmp_path / "run").checkpoints() == []


def test_training_with_nothing_to_compare_changes_nothing(tiny_policy: str, tmp_path: Path) -> None:
    """Equal rewards in every group: advantages are 0 and the weights stay, bit for bit."""
    same = ("engine.args.replies=['3']", "train.iterations=1", "evaluation.tasks=0")
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *same))
    before = load_file(Path(tiny_policy) / "model.safetensors")
    after = weights(tmp_path / "run")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    (line,) = RunFolder(tmp_path / "run").metrics()
    assert line["groups/zero_variance_share"] == 1.0


# --- when episodes break --------------------------------------------------------------------------------


class Fragile(Guess):
    """Cannot be set up for one of the six tasks."""

    def setup(self, task: Task, seed: int) -> None:
        if task.id == "task-1":
            raise OSError("no connection\nto the vault")


class EverySecond(Guess):
    """Every second instance cannot be set up."""

    made = 0

    def setup(self, task: Task, seed: int) -> None:
        EverySecond.made += 1
        if EverySecond.made % 2 == 0:
            raise OSError("busy")


class Provoked(Guess):
    """Breaks whenever the answer is 2: the agent's doing."""

    reward_range = (-1.0, 1.0)

    def reward(self, task: Task, answer: str) -> float:
        if answer == "2":
            raise ZeroDivisionError("two is not allowed")
        return super().reward(task, answer)


def test_a_group_that_broke_is_stored_counted_told_and_not_trained_on(
    tiny_policy: str, tmp_path: Path
) -> None:
    options = ("env.id=test_loop:Fragile", "train.iterations=3", "evaluation.tasks=0")
    display = quiet()
    run(recipe_of(DICE, tiny_policy, tmp_path, *options), display=display)
    lines = RunFolder(tmp_path / "run").metrics()
    stored = read(tmp_path / "run", split="train")
    assert len(stored) == 6 and sum(line["groups/dropped"] for line in lines) == 1
    (broken,) = [group for group in stored if group.task_id == "task-1"]
    assert all(t.error is not None and t.steps == () for t in broken.trajectories)
    (line,) = [line for line in lines if line["groups/dropped"]]
    assert (line["errors/OSError"], line["batch/counted"], line["stop/error"]) == (4, 4, 0.5)
    assert line["learner/updates"] == 1
    told = said(display)
    assert (
        f"episode failed: OSError: no connection to the vault (4 of this kind, the first is "
        f"{broken.trajectories[0].uid}, stop reason error)"
    ) in told
    assert told.count("episode failed") == 1


def test_a_group_with_too_few_left_is_dropped_and_an_iteration_without_any_goes_on(
    tiny_policy: str, tmp_path: Path
) -> None:
    options = ("env.id=test_loop:EverySecond", "rollout.failures.retries=0", "evaluation.tasks=0")
    display = quiet()
    recipe = recipe_of(DICE, tiny_policy, tmp_path, *options, "rollout.failures.minimum_group=3")
    assert run(recipe, display=display)["iterations"] == 4
    for line in RunFolder(tmp_path / "run").metrics():
        assert (line["groups/dropped"], line["batch/counted"], line["learner/updates"]) == (2, 4, 0)
        assert (line["errors/total"], line["speed/rows"]) == (4, 0)
    assert "iteration 4: no episode is left to train on; the weights stay" in said(display)
    before, after = load_file(Path(tiny_policy) / "model.safetensors"), weights(tmp_path / "run")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert len(read(tmp_path / "run", split="train")) == 8

    enough = recipe_of(DICE, tiny_policy, tmp_path, *options, "name=two", "rollout.failures.minimum_group=2")
    run_briskly(enough)
    lines = RunFolder(tmp_path / "two").metrics()
    assert [line["groups/dropped"] for line in lines] == [0] * 4 and lines[0]["learner/updates"] == 1


def test_what_the_agent_broke_is_trained_on_with_the_least_reward(tiny_policy: str, tmp_path: Path) -> None:
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, "env.id=test_loop:Provoked", "evaluation.tasks=0"))
    broken = [
        t
        for group in read(tmp_path / "run", split="train")
        for t in group.trajectories
        if t.error is not None
    ]
    assert broken and {t.stop_reason for t in broken} == {StopReason.TERMINATED}
    assert {t.reward for t in broken} == {-1.0}
    lines = RunFolder(tmp_path / "run").metrics()
    assert sum(line["errors/by_agent"] for line in lines) == len(broken)
    assert all(line["batch/counted"] == 8 and line["groups/dropped"] == 0 for line in lines)


# --- deterministic mode ---------------------------------------------------------------------------------


class Counted(Dice):
    """Notes the version of every sync."""

    versions: list[int] = []

    async def sync(self, source: WeightSource, version: int) -> None:
        Counted.versions.append(version)
        await super().sync(source, version)


@pytest.mark.parametrize(("mode", "versions"), [("false", [1, 2]), ("true", [0, 0, 1, 1, 2])])
def test_deterministic_forgets_what_is_cached_before_every_batch(
    tiny_policy: str, tmp_path: Path, mode: str, versions: list[int]
) -> None:
    Counted.versions.clear()
    options = ("engine.id=test_loop:Counted", "train.iterations=2", f"deterministic={mode}")
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options))  # an evaluation, and two iterations
    assert Counted.versions == versions
    torch.use_deterministic_algorithms(False)
