"""Watching for collapse: quiet while all is well, alarms with the number, and what follows from them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import call
from safetensors.numpy import load_file
from training import DICE, dealt, quiet, recipe_of, run, run_briskly, said, same_weights, sampled

from steprl.errors import ConfigError, StepRLError
from steprl.trainers.loop import Trainer
from steprl.trainers.parts import build_parts
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trainers.watch import ROLLED_BACK, SIGNALS, Alarm, Collapsed, Watch, WatchConfig, marks

HEALTHY: dict[str, float | None] = {
    "calls/repeated_share": 0.02,
    "calls/none_share": 0.0,
    "learner/entropy": 0.01,
    "groups/zero_variance_share": 0.75,
    "filter/missing_share": 0.25,
    "reward/success_share": 0.8,
    "learner/engine_gap": 3e-7,
    "stop/error": 0.0,
    "stop/deadline": 0.0,
    "learner/skipped_steps": 0.0,
    "learner/updates": 2.0,
}
"""Figures as the quickstart has them near its end."""

WRONG: dict[str, dict[str, float | None]] = {
    "repeated_actions": {"calls/repeated_share": 0.6},
    "without_calls": {"calls/none_share": 1.0},
    "entropy_floor": {"learner/entropy": 1e-5},
    "zero_variance": {"groups/zero_variance_share": 1.0},
    "missing_groups": {"filter/missing_share": 0.8},
    "engine_gap": {"learner/engine_gap": 0.3},
    "failed_episodes": {"stop/error": 0.2, "stop/deadline": 0.2},
    "skipped_steps": {"learner/skipped_steps": 2.0},
}
"""What makes each alarm ring, and no other."""


def alarms(watch: Watch, *lines: dict[str, float | None]) -> list[Alarm]:
    """The alarms after the last of several iterations."""
    found: list[Alarm] = []
    for line in lines:
        found = watch.look({**HEALTHY, **line})
    return found


# --- when it rings ------------------------------------------------------------------------------------


def test_every_signal_has_its_case() -> None:
    assert [signal.option for signal in SIGNALS] == list(WRONG)


def test_a_healthy_run_is_quiet() -> None:
    watch = Watch(WatchConfig(patience=1))
    assert [alarms(watch, {}) for _ in range(50)] == [[]] * 50
    assert not watch.uneasy


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_figure_rings_after_patience_and_only_its_own(option: str) -> None:
    watch = Watch(WatchConfig(patience=3))
    assert alarms(watch, {}, WRONG[option], WRONG[option]) == [] and watch.uneasy
    (alarm,) = alarms(watch, WRONG[option])
    assert alarm.signal.option == option and watch.is_new(alarm)
    (again,) = alarms(watch, WRONG[option])
    assert again.streak == 4 and not watch.is_new(again)
    assert alarms(watch, {}) == [] and not watch.uneasy


@pytest.mark.parametrize("option", WRONG)
def test_the_message_has_the_number_the_threshold_the_meaning_and_the_way_out(option: str) -> None:
    (alarm,) = alarms(Watch(WatchConfig(patience=2)), {}, WRONG[option], WRONG[option])
    assert f"watch.{option} = {getattr(WatchConfig(), option):g} for 2 iterations in a row." in alarm.message
    assert alarm.signal.told.format(alarm.value) in alarm.message
    assert alarm.message.endswith(f"{alarm.signal.means} {alarm.signal.advice}")


@pytest.mark.parametrize("option", WRONG)
def test_a_threshold_of_zero_turns_a_figure_off(option: str) -> None:
    watch = Watch(replace(WatchConfig(patience=1), **{option: 0.0}))
    assert alarms(watch, {}, WRONG[option]) == [] and not watch.uneasy


def test_one_good_iteration_ends_a_streak_and_a_missing_figure_does_not() -> None:
    wrong, watch = WRONG["entropy_floor"], Watch(WatchConfig(patience=2))
    assert alarms(watch, wrong, {}, wrong) == []
    assert alarms(watch, {}, wrong, {"learner/entropy": None}) == []
    assert [alarm.value for alarm in alarms(watch, wrong)] == [1e-5]


def test_a_run_that_never_called_a_tool_is_not_told_that_it_calls_none() -> None:
    watch = Watch(WatchConfig(patience=1))
    assert alarms(watch, *[WRONG["without_calls"]] * 5) == []


def test_equal_rewards_because_all_is_solved_are_no_alarm() -> None:
    solved = {**WRONG["zero_variance"], "reward/success_share": 0.97}
    assert alarms(Watch(WatchConfig(patience=1)), solved) == []
    unknown: dict[str, float | None] = {**WRONG["zero_variance"], "reward/success_share": None}
    assert len(alarms(Watch(WatchConfig(patience=1)), unknown)) == 1


def test_groups_that_filters_drop_are_no_zero_variance_but_may_be_missing() -> None:
    """Most that is played is flat, and the rest is enough: that is what resampling is for."""
    dropped: dict[str, float | None] = {"groups/zero_variance_share": 1.0, "filter/rounds": 3.0}
    filled: dict[str, float | None] = {"filter/missing_share": 0.25, "filter/zero_variance_share": 0.0}
    assert alarms(Watch(WatchConfig(patience=1)), {**dropped, **filled}) == []
    (alarm,) = alarms(Watch(WatchConfig(patience=1)), {**dropped, "filter/missing_share": 1.0})
    assert alarm.signal.option == "missing_groups"
    (alarm,) = alarms(
        Watch(WatchConfig(patience=1)), {**dropped, **filled, "filter/zero_variance_share": 1.0}
    )
    assert alarm.signal.option == "zero_variance"
    solved: dict[str, float | None] = {"filter/missing_share": 1.0, "reward/success_share": 0.97}
    assert alarms(Watch(WatchConfig(patience=1)), {**dropped, **solved}) == []


def test_an_iteration_without_updates_skipped_none() -> None:
    nothing: dict[str, float | None] = {"learner/updates": 0.0, "learner/skipped_steps": None}
    assert alarms(Watch(WatchConfig(patience=1)), nothing) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"repeated_actions": 1.5},
            "watch.repeated_actions must be 0 (off) or a share between 0 and 1, got 1.5",
        ),
        ({"entropy_floor": -1.0}, "watch.entropy_floor must be 0 (off) or a number above 0, got -1.0"),
        ({"engine_gap": float("nan")}, "watch.engine_gap must be 0 (off) or a number above 0, got nan"),
        ({"patience": 0}, "watch.patience must be at least 1 iteration, got 0"),
        ({"rollbacks": -1}, "watch.rollbacks must be 0 or above, got -1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WatchConfig(**options)
    assert str(caught.value) == message


def test_what_follows_from_an_alarm() -> None:
    (ringing,) = alarms(Watch(WatchConfig(patience=1)), WRONG["engine_gap"])
    assert Watch(WatchConfig(action="stop")).verdict([]) == "go on"
    assert Watch(WatchConfig(action="warn")).verdict([ringing]) == "go on"
    assert Watch(WatchConfig(action="stop")).verdict([ringing]) == "stop"
    watch = Watch(WatchConfig(action="rollback", rollbacks=1))
    assert watch.verdict([ringing]) == "roll back"
    watch.rolled_back()
    assert watch.verdict([ringing]) == "stop"
    assert marks([ringing], "roll back") == {"watch/engine_gap": 1.0, ROLLED_BACK: 1.0}


LINES = st.lists(st.sampled_from([{}, *WRONG.values(), {"learner/entropy": None}]), max_size=12)


@given(lines=LINES, cut=st.integers(0, 12))
def test_a_resumed_watch_goes_on_as_if_never_stopped(lines: list[dict[str, float | None]], cut: int) -> None:
    """What it remembers is all in the metrics on disk."""
    config = WatchConfig(patience=2, action="rollback", rollbacks=2)

    def watched(watch: Watch, part: list[dict[str, float | None]]) -> tuple[list[str], list[dict[str, Any]]]:
        told, recorded = [], []
        for line in part:
            found = watch.look({**HEALTHY, **line})
            verdict = watch.verdict(found)
            told.append(f"{verdict} {[alarm.finding for alarm in found]}")
            recorded.append(json.loads(json.dumps({**HEALTHY, **line, **marks(found, verdict)})))
            if verdict == "roll back":
                watch.rolled_back()
            elif verdict == "stop":
                break
        return told, recorded

    straight, _ = watched(Watch(config), lines)
    before, recorded = watched(Watch(config), lines[:cut])
    resumed = Watch(config)
    resumed.recall(recorded)
    if before and before[-1].startswith("stop"):
        assert before == straight
        assert not resumed.uneasy, "whoever goes on after a stop has the patience of a new run"
    else:
        assert before + watched(resumed, lines[cut:])[0] == straight


# --- in a run -----------------------------------------------------------------------------------------


LOOPING = {**DICE, "watch": {"patience": 2}}
"""``Dice`` that can only ask for hints: every action repeats the one before, and all rewards are equal."""

HINTS = f"engine.args.replies=[{json.dumps(call('hint'))}]"


class Drifting(Trainer):
    """Says of some iterations that their actions repeat; everything else is as it is."""

    repeating: frozenset[int] = frozenset()

    async def iterate(self) -> dict[str, float]:
        metrics = await super().iterate()
        return {**metrics, "calls/repeated_share": float(self.iteration in self.repeating)}

    async def _finish(self, writer: Any) -> dict[str, Any]:
        return {}

    def draw(self) -> None:
        """Pictures are slow to make, and not looked at here."""


class Killed(Exception):
    """Stands for a kill: whatever was not saved is lost."""


def drifting(
    recipe: Recipe, *iterations: int, resume: bool = False, kill_after: int | None = None
) -> tuple[Path, str]:
    """Train with these iterations looking stuck; returns folder and what was said."""

    class Chosen(Drifting):
        repeating = frozenset(iterations)

        async def iterate(self) -> dict[str, float]:
            if self.iteration == kill_after:
                raise Killed
            return await super().iterate()

    folder = RunFolder(Path(recipe.runs) / recipe.name) if resume else RunFolder.create(recipe)
    display = quiet()
    try:
        Chosen(recipe, build_parts(recipe), folder, display).run()
    except Killed:
        pass
    return folder.path, said(display)


def drift_recipe(policy: str, runs: Path, *options: str) -> Recipe:
    """Six iterations, a checkpoint after every second, only repeated actions watched."""
    quieted = [f"watch.{signal.option}=0" for signal in SIGNALS if signal.option != "repeated_actions"]
    common = ("train.iterations=6", "train.checkpoint_every=2", "evaluation.tasks=0", "watch.patience=2")
    return recipe_of(DICE, policy, runs, *common, *quieted, *options)


def marked(folder: Path, name: str) -> list[int]:
    """The iterations whose metrics carry a mark."""
    return [line["iteration"] for line in RunFolder(folder).metrics() if name in line]


def test_a_run_that_loops_is_told_once_and_marked_as_long_as_it_lasts(
    tiny_policy: str, tmp_path: Path
) -> None:
    display = quiet()
    run(recipe_of(LOOPING, tiny_policy, tmp_path, HINTS, "evaluation.tasks=0"), display=display)
    told = said(display)
    assert (
        "watch: 1.00 of the actions repeat the action before them, at or above watch.repeated_actions" in told
    )
    assert told.count("of the actions repeat the action before them") == 1
    assert marked(tmp_path / "run", "watch/repeated_actions") == [2, 3, 4]
    assert marked(tmp_path / "run", "watch/zero_variance") == [2, 3, 4]


def test_stopping_saves_and_says_which_figure_and_how_to_go_on(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(LOOPING, tiny_policy, tmp_path, HINTS, "evaluation.tasks=0", "watch.action=stop")
    with pytest.raises(Collapsed) as caught:
        run(recipe)
    folder = tmp_path / "run"
    assert issubclass(Collapsed, StepRLError)
    message = str(caught.value)
    assert message.startswith("stopped after iteration 2: 1.00 of the actions repeat the action before them")
    assert message.endswith(f"then: steprl train --resume {folder}")
    assert [path.name for path in RunFolder(folder).checkpoints()] == ["step-2"]
    assert not (folder / "summary.json").exists()

    with pytest.raises(Collapsed, match="stopped after iteration 4: "):  # patience of 2 again
        run(recipe, resume=folder)

    config = folder / "config.toml"
    config.write_text(
        config.read_text()
        .replace('action = "stop"', 'action = "warn"')
        .replace("iterations = 4", "iterations = 5")
    )
    _, changed = RunFolder.open(folder)
    assert run(changed, resume=folder)["iterations"] == 5


def test_a_rollback_takes_the_last_checkpoints_weights_and_the_next_tasks(
    tiny_policy: str, tmp_path: Path
) -> None:
    """Stuck in 3 and 4: the weights of 2 come back, and iteration 5 plays the fifth batch, not the third."""
    straight, _ = drifting(drift_recipe(tiny_policy, tmp_path / "a", "train.iterations=2"))
    recipe = drift_recipe(tiny_policy, tmp_path / "b", "watch.action=rollback", "train.iterations=4")
    folder, told = drifting(recipe, 3, 4)
    assert "rolled back to the weights and optimiser of iteration 2; the next tasks follow" in told
    assert marked(folder, ROLLED_BACK) == [4]
    assert [path.name for path in RunFolder(folder).checkpoints()] == ["step-4"]
    assert same_weights(folder, straight)
    assert RunFolder.state(folder / "checkpoints" / "step-4").cursor == 8

    going_on, _ = drifting(drift_recipe(tiny_policy, tmp_path / "c", "watch.action=rollback"), 3, 4)
    plain, _ = drifting(drift_recipe(tiny_policy, tmp_path / "d"))
    assert dealt(going_on) == dealt(plain) and len(dealt(going_on)) == 12
    assert not same_weights(going_on, plain)


@pytest.mark.parametrize("kill_after", [3, 4, 5])
def test_a_run_killed_around_a_rollback_resumes_to_the_same_bits(
    tiny_policy: str, tmp_path: Path, kill_after: int
) -> None:
    options = ("watch.action=rollback", "train.checkpoint_every=2")
    straight, _ = drifting(drift_recipe(tiny_policy, tmp_path / "straight", *options), 3, 4)
    recipe = drift_recipe(tiny_policy, tmp_path / "killed", *options)
    drifting(recipe, 3, 4, kill_after=kill_after)
    folder, _ = drifting(recipe, 3, 4, resume=True)
    assert same_weights(folder, straight)
    assert dealt(folder) == dealt(straight) and sampled(folder) == sampled(straight)
    assert marked(folder, ROLLED_BACK) == marked(straight, ROLLED_BACK) == [4]


def test_no_checkpoint_to_go_back_to_is_made_while_a_figure_looks_wrong(
    tiny_policy: str, tmp_path: Path
) -> None:
    """A checkpoint is due at 2, in the middle of a streak: the rollback at 3 goes to the start instead, and
    one that is due while only a short streak lasts is made up for."""
    recipe = drift_recipe(tiny_policy, tmp_path, "watch.action=rollback", "train.iterations=3")
    folder, told = drifting(recipe, 2, 3)
    assert "rolled back to the weights and optimiser of iteration 0" in told
    before = load_file(Path(tiny_policy) / "model.safetensors")
    after = load_file(folder / "checkpoints" / "step-3" / "model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)

    recipe = drift_recipe(tiny_policy, tmp_path, "name=short", "watch.action=rollback", "train.iterations=5")
    folder, _ = drifting(recipe, 2, kill_after=3)
    assert [path.name for path in RunFolder(folder).checkpoints()] == ["step-3"]


def test_after_the_last_rollback_it_stops(tiny_policy: str, tmp_path: Path) -> None:
    recipe = drift_recipe(tiny_policy, tmp_path, "watch.action=rollback", "watch.rollbacks=1")
    with pytest.raises(Collapsed, match="stopped after iteration 5: 1.00 of the actions repeat"):
        drifting(recipe, 2, 3, 4, 5)
    assert marked(tmp_path / "run", ROLLED_BACK) == [3]


def test_warning_changes_nothing(tiny_policy: str, tmp_path: Path) -> None:
    warned, told = drifting(drift_recipe(tiny_policy, tmp_path / "warned"), 1, 2, 3)
    plain = run_briskly(drift_recipe(tiny_policy, tmp_path / "plain"))
    assert "watch: " in told and same_weights(warned, plain)


def test_the_documentation_shows_the_defaults_and_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "watching.md").read_text(encoding="utf-8")
    block = page.partition("```toml\n")[2].partition("```")[0]
    assert WatchConfig(**tomllib.loads(block)["watch"]) == WatchConfig()
    assert all(f"| `{signal.option}` | `" in page for signal in SIGNALS)
