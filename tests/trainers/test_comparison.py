"""Comparisons: variants as they are written, runs that are made once, figures that can be checked by hand."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from training import DICE, quiet, run_briskly, said

from steprl.errors import ConfigError
from steprl.trainers.comparison.aggregation import Run, band, cautions, differences, read_run, result_of
from steprl.trainers.comparison.compare import Comparison, compare, compare_runs
from steprl.trainers.comparison.report import as_json, write_report
from steprl.trainers.comparison.running import train_all, trainings
from steprl.trainers.comparison.statistics import drawdown, estimate, smoothed, t_quantile
from steprl.trainers.comparison.variants import Variant, algorithm_variants, parse_word
from steprl.trainers.interrupt import Interrupted
from steprl.trainers.progress import Display
from steprl.trajectory.store import read

# --- variants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name", "options"),
    [
        ("grpo", "grpo", {}),
        ("gae:credit=step,lam=0.95", "gae", {"credit": "step", "lam": 0.95}),
        ("mine.credit:Mine", "mine.credit:Mine", {}),
        ("mine:Mine:whiten=false", "mine:Mine", {"whiten": False}),
    ],
)
def test_a_word_is_a_name_with_options(word: str, name: str, options: dict[str, Any]) -> None:
    assert parse_word(word) == (name, options)


def test_an_algorithm_sets_its_own_options_and_with_a_dot_those_of_the_recipe() -> None:
    (variant,) = algorithm_variants(["gigpo:omega=0.5,algorithm.epochs=2"])
    assert variant.name == "gigpo-omega-0.5-algorithm.epochs-2"
    assert variant.apply({"env": {"id": "courier"}}) == {
        "env": {"id": "courier"},
        "algorithm": {"estimator": "gigpo", "args": {"omega": 0.5}, "epochs": 2},
    }


def test_options_of_another_component_go_and_those_of_the_same_stay() -> None:
    recipe = {"algorithm": {"estimator": "gigpo", "args": {"omega": 2.0}}, "context": {"args": {"n": 4}}}
    grpo, gigpo = algorithm_variants(["grpo", "gigpo:gamma=0.9"])
    assert grpo.apply(recipe)["algorithm"] == {"estimator": "grpo", "args": {}}
    assert gigpo.apply(recipe)["algorithm"]["args"] == {"omega": 2.0, "gamma": 0.9}
    window = Variant(name="window", overrides={"context.id": "sliding_window"})
    assert window.apply(recipe)["context"] == {"id": "sliding_window", "args": {}}
    assert recipe["algorithm"] == {"estimator": "gigpo", "args": {"omega": 2.0}}  # as it was


def test_variants_come_from_a_file_under_their_names(tmp_path: Path) -> None:
    file = tmp_path / "variants.toml"
    file.write_text(
        '[variants.ppo_step]\n"algorithm.estimator" = "gae"\nalgorithm.args = {credit = "step"}\n'
        "[variants.fast]\nlearner.lr = 1e-3\n"
    )
    ppo, fast, grpo = algorithm_variants([str(file), "grpo"])
    assert ppo.overrides == {"algorithm.estimator": "gae", "algorithm.args.credit": "step"}
    assert (fast.name, fast.overrides, grpo.name) == ("fast", {"learner.lr": 1e-3}, "grpo")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grpo", "grpo"], "two variants are called 'grpo'"),
        (["learner.lr=1"], "names nothing"),
        (["absent.toml"], "there is no file of variants 'absent.toml'"),
        (["../up"], None),
    ],
)
def test_words_that_are_no_variants_are_refused(words: list[str], message: str | None) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm_variants(words)


def test_a_variant_of_the_recipes_own_estimator_keeps_its_options() -> None:
    table = {"algorithm": {"args": {"truncated_in_loss": False}}}  # of grpo, the default
    (same,) = algorithm_variants(["grpo"])
    (other,) = algorithm_variants(["rloo"])
    assert same.apply(table)["algorithm"]["args"] == {"truncated_in_loss": False}
    assert other.apply(table)["algorithm"]["args"] == {}


def test_what_the_comparison_gives_is_no_option_of_a_variant(tmp_path: Path) -> None:
    file = tmp_path / "variants.toml"
    file.write_text("[variants.a]\nseed = 5\n")
    with pytest.raises(ConfigError, match="variant 'a' sets seed, which the comparison gives to every run"):
        algorithm_variants([str(file)])


# --- arithmetic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (1000, 1.9623)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-5)


def test_an_estimate_by_hand() -> None:
    found = estimate([0.8, 0.9, 1.0])
    assert found is not None
    assert (found.mean, found.std, found.seeds) == (pytest.approx(0.9), pytest.approx(0.1), 3)
    assert found.margin == pytest.approx(4.302653 * 0.1 / math.sqrt(3))
    one = estimate([0.5])
    assert one is not None and (one.mean, one.std, one.margin) == (0.5, None, None)
    assert estimate([]) is None


def test_drawdown_by_hand() -> None:
    assert drawdown([0.1, 0.6, 0.4, 0.7, 0.2, 0.9]) == pytest.approx(0.5)
    assert drawdown([0.1, 0.2, 0.3]) == drawdown([]) == 0.0
    assert smoothed([1.0, 2.0, 3.0, 4.0], 2) == [1.5, 2.5, 3.5]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1), st.floats(-1e3, 1e3))
def test_drawdown_is_that_of_the_shape(curve: list[float], shift: float) -> None:
    fallen = drawdown(curve)
    assert 0 <= fallen <= max(curve) - min(curve)
    assert drawdown([value + shift for value in curve]) == pytest.approx(fallen, abs=1e-9)
    assert (fallen == 0) == (curve == sorted(curve))


def test_a_band_averages_the_runs_that_have_the_figure() -> None:
    found = band([{1: 0.0, 2: 1.0}, {1: 1.0}, {1: 2.0, 2: 3.0}])
    assert (found.iterations, found.mean, found.seeds) == ([1, 2], [1.0, 2.0], [3, 2])
    assert found.std == [pytest.approx(1.0), pytest.approx(stdev([1.0, 3.0]))]


# --- results ------------------------------------------------------------------------------------------


def made(name: str, seed: int, successes: list[float], **changes: Any) -> Run:
    """A run whose training success was this, and whose reward is ten times as much."""
    metrics = [
        {
            "iteration": number,
            "reward/success_share": success,
            "reward/mean": 10 * success,
            "episode/action_tokens": 20.0,
            "episode/steps": 2.5,
            "batch/counted": 8.0,
            "time/iteration": 1.5,
        }
        for number, success in enumerate(successes, start=1)
    ]
    after = {"success_before": 0.1, "success_after": successes[-1], "reward_after": -successes[-1]}
    options = {"name": f"{name}-{seed}", "runs": "runs", "seed": seed, "algorithm.estimator": name}
    given = {
        "path": Path(f"runs/{name}-{seed}"),
        "options": {**options, "env.id": "courier"},
        "summary": after,
    }
    return Run(**{**given, "metrics": metrics, **changes})


def test_a_result_by_hand() -> None:
    found = result_of("grpo", [made("grpo", 1, [0.2, 0.6, 0.3, 0.8]), made("grpo", 0, [0.4, 0.4, 0.4, 0.6])])
    assert [run.seed for run in found.runs] == [0, 1]
    success, steps, seconds = (found.figures[n] for n in ("success_after", "environment_steps", "seconds"))
    assert success is not None and (success.mean, success.std) == (
        pytest.approx(0.7),
        pytest.approx(stdev([0.8, 0.6])),
    )
    assert steps is not None and steps.mean == 4 * 20
    assert seconds is not None and seconds.mean == 6.0
    assert found.figures["greedy_after"] is None
    assert (found.window, found.drawdown) == (
        1,
        {"success": pytest.approx(0.3), "reward": pytest.approx(3.0)},
    )
    assert found.curves["success"].mean == pytest.approx([0.3, 0.5, 0.35, 0.7])
    assert "KL" not in found.curves  # no run has it


def test_steps_of_a_critic_that_learns_alone_are_counted_apart() -> None:
    run = made("gae", 0, [0.1, 0.2, 0.3])
    updates = [
        {"critic/updates": 2.0, "learner/updates": 0.0},
        {"critic/updates": 2.0, "learner/updates": 2.0},
    ]
    run = replace(run, metrics=[{**line, **u} for line, u in zip(run.metrics, [*updates, {}], strict=True)])
    assert (run.warmup_steps, run.environment_steps) == (20, 40)


def test_what_is_not_alike_is_told() -> None:
    grpo = result_of("grpo", [made("grpo", 0, [0.5]), made("grpo", 1, [0.5])])
    assert cautions([grpo, result_of("rloo", [made("rloo", 0, [0.5]), made("rloo", 1, [0.5])])]) == []
    other = made("rloo", 0, [0.5], summary=None)
    other = replace(other, options={**other.options, "env.id": "gsm8k"})
    told = cautions([grpo, result_of("rloo", [other])])
    assert [line.split(":")[0] for line in told] == [
        "the variants differ in env.id",
        "the seeds differ",
        "rloo-0 is not finished (iteration 1)",
    ]
    assert differences([grpo, result_of("rloo", [other])])["algorithm.estimator"] == {
        "grpo": "grpo",
        "rloo": "rloo",
    }


def test_runs_of_one_variant_that_are_not_alike_are_told() -> None:
    one, other = made("grpo", 0, [0.5]), made("grpo", 1, [0.5])
    other = replace(other, options={**other.options, "learner.lr": 1.0})
    assert cautions([result_of("mine", [one, other])]) == [
        "the runs of mine differ from each other in learner.lr"
    ]


def test_the_report_is_complete_in_itself(tmp_path: Path) -> None:
    results = [
        result_of("<b>grpo", [made("grpo", seed, [0.1, 0.5, 0.6]) for seed in range(3)]),
        result_of("rloo", [made("rloo", seed, [0.1, 0.5, 0.9]) for seed in range(3)]),
    ]
    page = write_report(results, tmp_path / "out", title="grpo & rloo").read_text(encoding="utf-8")
    assert "<script" not in page and "<b>grpo" not in page and "&lt;b&gt;grpo" in page
    assert set(re.findall(r'(?:src|href)="(.{10})', page)) == {"data:image"}
    assert "By success: rloo, &lt;b&gt;grpo. By reward: &lt;b&gt;grpo, rloo." in page
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(as_json(results, title="grpo & rloo")))
    assert stored["variants"][1]["figures"]["success_after"]["mean"] == pytest.approx(0.9)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    page = write_report([result_of("grpo", [made("grpo", 0, [0.1, 0.5])])], tmp_path, title="one").read_text()
    assert "<td>0.500</td>" in page and "0.500 ±" not in page


# --- running ------------------------------------------------------------------------------------------


def table(policy: str) -> dict[str, Any]:
    """A recipe of two iterations."""
    return {**DICE, "model": {"path": policy}, "train": {"iterations": 2, "show_every": 0}}


def test_every_variant_meets_the_same_tasks_with_the_same_seeds(tiny_policy: str, tmp_path: Path) -> None:
    planned = trainings(table(tiny_policy), algorithm_variants(["grpo", "rloo"]), [0, 1], tmp_path)
    assert [training.path.name for training in planned] == ["grpo-0", "rloo-0", "grpo-1", "rloo-1"]
    assert {training.path.parent for training in planned} == {tmp_path / "runs"}
    assert [training.recipe.seed for training in planned] == [0, 0, 1, 1]


def test_what_cannot_work_is_refused_before_anything_is_trained(tiny_policy: str, tmp_path: Path) -> None:
    def refused(*words: str, seeds: tuple[int, ...] = (0,)) -> str:
        with pytest.raises(ConfigError) as error:
            train_all(trainings(table(tiny_policy), algorithm_variants(words), seeds, tmp_path), quiet())
        assert not (tmp_path / "runs").exists()
        return str(error.value)

    assert refused("grpo", "grppo").startswith("variant 'grppo': unknown estimator")
    assert "variant 'grpo-omega-1': estimator 'grpo' does not take" in refused("rloo", "grpo:omega=1")
    assert "variant 'grpo-rollout.group_size-1'" in refused("rloo", "grpo:rollout.group_size=1")
    assert "give each once" in refused("grpo", seeds=(1, 1))
    assert "at least one variant" in refused()


class Impatient(Display):
    """Presses Ctrl-C when it is told of the third iteration: the first one of the second run."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=200))
        self.told = 0

    def iteration(self, number: int, metrics: Mapping[str, float]) -> None:
        self.told += 1
        if self.told == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_comparison_is_made_once_and_goes_on_where_it_stopped(tiny_policy: str, tmp_path: Path) -> None:
    variants = algorithm_variants(["grpo", "rloo"])

    def once(display: Display, recipe: dict[str, Any]) -> Comparison:
        return compare(recipe, variants, [0], tmp_path, title="two", display=display)

    with pytest.raises(Interrupted, match="rloo-0 was stopped after iteration 1.*The same command again"):
        once(Impatient(), table(tiny_policy))
    assert (tmp_path / "runs" / "grpo-0" / "summary.json").exists()
    display = quiet()
    found = once(display, table(tiny_policy))
    assert "run 1 of 2, grpo with seed 0: finished before" in said(display)
    assert f"resuming {tmp_path / 'runs' / 'rloo-0'} after iteration 1" in said(display)
    assert [r.iterations for result in found.results for r in result.runs] == [2, 2]
    assert found.report.exists()
    other = {**table(tiny_policy), "learner": {"lr": 0.5}}
    with pytest.raises(ConfigError, match="is a run of another recipe: learner.lr was 0.01 and is 0.5"):
        once(quiet(), other)


@pytest.fixture(scope="module")
def elsewhere(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two algorithms, two seeds of one of them."""
    out = tmp_path_factory.mktemp("elsewhere")
    variants = algorithm_variants(["grpo", "rloo"])
    for training in trainings(table(tiny_policy), variants, [0, 1], out)[:3]:
        run_briskly(training.recipe)
    return out / "runs"


def test_runs_made_elsewhere_are_put_together_by_what_they_are(elsewhere: Path, tmp_path: Path) -> None:
    paths = [(None, elsewhere / name) for name in ("grpo-1", "rloo-0", "grpo-0")]
    found = compare_runs(paths, tmp_path, title="elsewhere")
    assert {r.variant: [run.seed for run in r.runs] for r in found.results} == {"grpo": [0, 1], "rloo": [0]}
    assert any(line.startswith("the seeds differ") for line in cautions(found.results))
    named = compare_runs(
        [("mine", elsewhere / "grpo-0"), ("other", elsewhere / "rloo-0")], tmp_path, title="x"
    )
    assert [result.variant for result in named.results] == ["mine", "other"]


def test_runs_that_cannot_be_compared_are_refused(elsewhere: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"grpo-0' is named twice; it would be compared with itself"):
        compare_runs([("a", elsewhere / "grpo-0"), ("b", elsewhere / "grpo-0")], tmp_path, title="twice")
    shutil.copytree(elsewhere / "grpo-0", tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"variant 'grpo' has the seeds \[0, 0\]"):
        compare_runs([(None, elsewhere / "grpo-0"), (None, tmp_path / "copy")], tmp_path, title="twice")
    with pytest.raises(ConfigError, match="is not a run folder"):
        compare_runs([(None, tmp_path)], tmp_path, title="none")
    with pytest.raises(ConfigError, match="give the folders"):
        compare_runs([], tmp_path, title="none")


def test_steps_that_value_states_are_told_apart(tiny_policy: str, tmp_path: Path) -> None:
    vine = Variant(
        name="vine",
        overrides={
            "algorithm.estimator": "gae",
            "algorithm.args": {"credit": "step", "values": "rollout", "continuations": 2},
        },
    )
    (result,) = compare(table(tiny_policy), [vine], [0], tmp_path, title="x", display=quiet()).results
    (run,) = result.runs
    assert run.continuation_steps == sum(line.get("continuations/steps", 0) for line in run.metrics) > 0
    assert "continuation steps" in (tmp_path / "report.html").read_text()


def test_environment_steps_are_those_that_were_stored(elsewhere: Path) -> None:
    stored = sum(
        len(t.steps) for group in read(elsewhere / "grpo-0", split="train") for t in group.trajectories
    )
    assert read_run(elsewhere / "grpo-0").environment_steps == stored
