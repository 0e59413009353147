"""Planning: what is measured is measured with the run's own parts, and the arithmetic on it is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from playing import Guess
from safetensors.numpy import load_file
from training import COURIER, DICE, quiet, recipe_of, said

from steprl.cli.plan import _bytes, _count, _seconds, show
from steprl.errors import ConfigError, EnvError
from steprl.trainers import api
from steprl.trainers.planning.calibrate import Calibration, LearnerFigures, RolloutFigures, calibrate
from steprl.trainers.planning.memory import MemoryFigures, PeakMemory
from steprl.trainers.planning.plan import RULES, dominant, plan_of
from steprl.trainers.recipe import Recipe
from steprl.types import Task

MB = 1_000_000


def rollout(**changed: Any) -> RolloutFigures:
    """16 episodes that took 4 s, half of it in the engine."""
    figures: dict[str, Any] = {
        "episodes": 16,
        "seconds": 4.0,
        "engine_share": 0.5,
        "prompt_tokens": 8000,
        "sampled_tokens": 800,
        "prefilled_tokens": 1000,
        "prefill_seconds": 0.5,
        "statistics": {"batch/trajectories": 16.0},
    }
    return RolloutFigures(**{**figures, **changed})


def calibration(**changed: Any) -> Calibration:
    """Two groups of eight; forward 1 s, update 3 s over 4,000 tokens, half of them with a difference."""
    parts: dict[str, Any] = {
        "groups": 2,
        "rollout": rollout(),
        "evaluation": rollout(seconds=8.0),
        "learner": LearnerFigures(
            rows=16,
            row_tokens=4000,
            widest_pass=2000,
            scoring_seconds=1.0,
            forward_seconds=1.0,
            update_seconds=3.0,
            critic_seconds=0.0,
            training_share=0.5,
            sync_seconds=0.25,
        ),
        "memory": MemoryFigures(
            program=200 * MB,
            weights=100 * MB,
            optimiser=200 * MB,
            reference=0,
            critic=0,
            engine_weights=100 * MB,
            keys_values=50 * MB,
            peak=800 * MB,
            available=10_000 * MB,
            capacity=256,
            max_context=512,
        ),
        "eval_tasks": 32,
    }
    return Calibration(**{**parts, **changed})


def recipe(policy: str, runs: Path, *options: str) -> Recipe:
    """Eight groups of eight, ten iterations."""
    sizes = ("rollout.groups=8", "rollout.group_size=8", "train.iterations=10", "learner.token_budget=4000")
    return recipe_of(COURIER, policy, runs, *sizes, "evaluation.every=0", *options)


# --- arithmetic ---------------------------------------------------------------------------------------


def test_an_iteration_and_a_run_follow_from_the_calibration(tiny_policy: str, tmp_path: Path) -> None:
    plan = plan_of(recipe(tiny_policy, tmp_path), calibration())
    assert plan.rollout == {"prefill": 2.0, "decode": 6.0, "environment": 8.0}
    assert plan.learner == {
        "scoring": 4.0,
        "forward": 2.0,  # half of 4 s: half of the tokens had something to learn from
        "backward": 4.0,  # half of 12 − 4
        "weights to the engine": 0.25,
    }
    assert plan.iteration_seconds == 26.25
    assert plan.most_seconds == 16 + 4 + 12 + 0.25
    assert (plan.tokens.prompt, plan.tokens.sampled, plan.tokens.row) == (32_000, 3_200, 16_000)
    assert plan.evaluation_seconds == 0.5 * 32 * 2  # sampled and greedy
    assert plan.evaluations == 2
    assert plan.run_seconds == 262.5 + 64


def test_evaluations_during_training_and_epochs_are_counted(tiny_policy: str, tmp_path: Path) -> None:
    often = recipe(
        tiny_policy, tmp_path, "evaluation.every=5", "evaluation.greedy=false", "algorithm.epochs=3"
    )
    plan = plan_of(often, calibration())
    assert plan.evaluations == 3 and plan.evaluation_seconds == 16  # the one at iteration 10 is the last
    assert plan.learner["scoring"] == 4 and plan.learner["forward"] + plan.learner["backward"] == 18
    assert plan_of(often, calibration(evaluation=None)).run_seconds == 10 * plan.iteration_seconds


def test_scoring_and_a_critic_take_their_time_and_their_memory(tiny_policy: str, tmp_path: Path) -> None:
    twice = recipe(tiny_policy, tmp_path, "algorithm.epochs=2")
    learner = replace(calibration().learner, scoring_seconds=2.5, critic_seconds=0.5)
    found = calibration(learner=learner, memory=memory(reference=30 * MB, critic=20 * MB))
    plan = plan_of(twice, found)
    assert plan.learner == {
        "scoring": 10.0,  # of policy, reference and critic
        "forward": 4.0,
        "backward": 8.0,
        "critic": 4.0,  # all rows, whatever their advantages
        "weights to the engine": 0.25,
    }
    assert plan.most_seconds == 16 + 10 + 24 + 4 + 0.25
    assert (plan.memory["reference"], plan.memory["critic"]) == (30 * MB, 20 * MB)
    assert plan.memory["activations"] == 0  # 50 MB less than without the two
    assert not {"reference", "critic"} & plan_of(twice, calibration()).memory.keys()


def test_memory_grows_with_the_context_and_the_widest_pass(tiny_policy: str, tmp_path: Path) -> None:
    plan = plan_of(recipe(tiny_policy, tmp_path), calibration())
    # 800 − (200 + 100 + 100 + 200 + 100) − 50 = 50 MB of activations at 2000 tokens; the budget allows 4000
    assert plan.memory["activations"] == 100 * MB
    assert plan.memory["keys and values"] == 100 * MB
    assert plan.peak == (200 + 100 + 100 + 200 + 100 + 100 + 100) * MB


def test_an_engine_that_does_not_say_what_it_computed_is_one_part(tiny_policy: str, tmp_path: Path) -> None:
    silent = rollout(prefilled_tokens=None, prefill_seconds=None)
    plan = plan_of(recipe(tiny_policy, tmp_path), calibration(rollout=silent))
    assert plan.rollout == {"engine": 8.0, "environment": 8.0}


def test_the_largest_part_dominates() -> None:
    assert dominant({"a": 1.0, "b": 3.0}) == ("b", 0.75)
    assert dominant({"a": 0.0}) == ("a", 0.0)


def memory(**changed: int) -> MemoryFigures:
    return replace(calibration().memory, **changed)


@pytest.mark.parametrize(
    ("options", "changed", "advice"),
    [
        ((), {"rollout": rollout(engine_share=0.2)}, "80% of their time in environment, tools and rendering"),
        (("rollout.concurrency=8",), {"rollout": rollout(engine_share=0.2)}, "raise rollout.concurrency (8)"),
        ((), {"rollout": rollout(engine_share=0.2)}, "all 64 episodes run at once already"),
        ((), {"rollout": rollout(prefill_seconds=2.0)}, "88% of prompt tokens reused"),
        (("engine.slots=4",), {}, "64 episodes run at once and engine.slots = 4"),
        ((), {"memory": memory(keys_values=600 * MB)}, "lower engine.slots (8) or engine.max_context (512)"),
        ((), {"memory": memory(peak=3000 * MB)}, "lower learner.token_budget (4000)"),
        ((), {"memory": memory(available=500 * MB)}, "this machine has 0.5 GB for it"),
        ((), {"rollout": rollout(statistics={"groups/zero_variance_share": 1.0})}, "In 100% of the groups"),
        ((), {"rollout": rollout(statistics={"step/length_share": 0.5})}, "cut at rollout.max_tokens = 8"),
        ((), {"rollout": rollout(statistics={"stop/max_steps": 0.6})}, "60% of the episodes end at a limit"),
        (
            (),
            {"rollout": rollout(statistics={"errors/total": 3.0, "batch/trajectories": 16.0})},
            "3 of 16 episodes broke; before a long run: steprl env check courier",
        ),
        ((), {"evaluation": rollout(seconds=80.0)}, "lower evaluation.tasks (32)"),
    ],
)
def test_what_stands_out_comes_with_what_to_do(
    tiny_policy: str, tmp_path: Path, options: tuple[str, ...], changed: dict[str, Any], advice: str
) -> None:
    plan = plan_of(recipe(tiny_policy, tmp_path, *options), calibration(**changed))
    assert [line for line in plan.advice if advice in line], plan.advice


def test_nothing_stands_out_in_a_balanced_run(tiny_policy: str, tmp_path: Path) -> None:
    balanced = calibration(rollout=rollout(engine_share=0.8), evaluation=rollout(seconds=1.0))
    assert plan_of(recipe(tiny_policy, tmp_path, "engine.slots=64"), balanced).advice == ()


# --- measuring ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Calibration, Path]:
    """A calibration of Courier with the tiny model: three groups of two."""
    folder = tmp_path_factory.mktemp("plan")
    wide = recipe_of(COURIER, tiny_policy, folder / "runs", "rollout.groups=4", "rollout.max_tokens=8")
    return wide, calibrate(wide, groups=3, display=quiet()), folder


def test_a_calibration_counts_what_it_played(measured: tuple[Recipe, Calibration, Path]) -> None:
    recipe, found, _ = measured
    assert (found.groups, found.rollout.episodes, found.eval_tasks) == (3, 6, 3)
    assert found.evaluation is not None and found.evaluation.episodes == 3
    figures = found.rollout
    steps = figures.statistics["episode/steps"] * 6
    assert figures.prompt_tokens + figures.sampled_tokens == figures.statistics["tokens/total"]
    assert steps <= figures.sampled_tokens <= 8 * steps
    assert figures.prefilled_tokens is not None and 0 < figures.prefilled_tokens <= figures.prompt_tokens
    assert figures.prefill_seconds is not None
    assert 0 < figures.prefill_seconds <= figures.engine_share * figures.seconds < figures.seconds
    assert found.learner.rows >= 6 and found.learner.forward_seconds > 0 and found.learner.update_seconds > 0


def test_a_calibration_weighs_the_models(
    measured: tuple[Recipe, Calibration, Path], tiny_policy: str
) -> None:
    _, found, _ = measured
    weights = sum(array.nbytes for array in load_file(Path(tiny_policy) / "model.safetensors").values())
    assert found.memory.weights == found.memory.engine_weights == weights
    assert 2 * weights <= found.memory.optimiser < 2 * weights + 10_000  # two moments, and a count per tensor
    assert found.memory.keys_values > 0 and found.memory.capacity <= found.memory.max_context == 1024
    assert found.memory.peak >= found.memory.program


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_a_calibration_times_and_weighs_a_critic_and_a_reference(
    measured: tuple[Recipe, Calibration, Path], tiny_policy: str, tmp_path: Path, kind: str
) -> None:
    options = ("algorithm.estimator=gae", "algorithm.args.kl_beta=0.1", f"critic.kind={kind}")
    found = calibrate(recipe_of(COURIER, tiny_policy, tmp_path, *options), display=quiet())
    learner, weights = found.learner, measured[1].memory.weights
    assert found.memory.reference == weights
    head = 4 * (32 + 1)
    language_head = load_file(Path(tiny_policy) / "model.safetensors")["lm_head.weight"].nbytes
    if kind == "separate":
        assert learner.critic_seconds > 0 and learner.scoring_seconds > learner.forward_seconds > 0
        # four times: weights, gradients, two moments; the language head is let go
        own = weights - language_head + head
        assert 4 * own <= found.memory.critic < 4 * own + 10_000
    else:
        assert learner.critic_seconds == 0 and learner.training_share == 1
        assert 4 * head <= found.memory.critic < 4 * head + 100


def test_a_calibration_leaves_nothing_behind(measured: tuple[Recipe, Calibration, Path]) -> None:
    assert list(measured[2].iterdir()) == []


def test_a_plan_is_shown_with_its_rules(measured: tuple[Recipe, Calibration, Path]) -> None:
    recipe, found, _ = measured
    display = quiet()
    show(plan_of(recipe, found), display.console)
    told = said(display)
    assert "plan of courier: 3 iterations" in told and "what dominates" in told
    assert "Measured on 3 of 4 groups (6 episodes," in told
    for rule in RULES:
        assert rule.split(":")[0] in told


def test_more_groups_than_an_iteration_has_are_refused(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plays 1 to rollout.groups = 2 groups, and 3 were asked"):
        api.plan(recipe_of(DICE, tiny_policy, tmp_path), groups=3, display=quiet())


def test_any_engine_can_be_planned_for_and_equal_rewards_are_no_obstacle(
    tiny_policy: str, tmp_path: Path
) -> None:
    plan = api.plan(recipe_of(DICE, tiny_policy, tmp_path, "engine.args.replies=['3']"), display=quiet())
    assert set(plan.rollout) == {"engine", "environment"}
    assert plan.calibration.learner.update_seconds > 0 and plan.calibration.learner.training_share == 0
    assert plan.learner["backward"] == 0 < plan.most_seconds
    assert any("all rewards are equal" in line for line in plan.advice)
    assert plan.memory["keys and values"] == 0


class Broken(Guess):
    """Breaks before the first action."""

    def setup(self, task: Task, seed: int) -> None:
        raise OSError("no connection")


def test_a_recipe_whose_episodes_all_break_says_so(tiny_policy: str, tmp_path: Path) -> None:
    broken = recipe_of(DICE, tiny_policy, tmp_path, "env.id=test_plan:Broken")
    with pytest.raises(EnvError, match="episodes failed"):
        api.plan(broken, display=quiet())


def test_the_peak_is_that_of_the_block() -> None:
    with PeakMemory(interval=0.001) as memory:
        block = np.ones(50 * MB // 8)
        sleep(0.1)  # looked at meanwhile
        del block
    assert memory.start + 40 * MB <= memory.peak <= memory.start + 200 * MB


def test_numbers_are_shown_in_units_a_person_reads() -> None:
    assert [_seconds(value) for value in (0.5, 42, 600, 36_000)] == ["0.50 s", "42 s", "10.0 min", "10.0 h"]
    assert [_count(value) for value in (7, 1234, 5e6, 2e9)] == ["7", "1.2 k", "5.0 M", "2.0 G"]
    assert [_bytes(value) for value in (5 * MB, 2e9)] == ["5.0 MB", "2.00 GB"]
