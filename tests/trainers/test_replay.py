"""Replay: an untouched run comes out equal, a changed environment is found at its first difference, and the
gap between engine and learner is measured on the tokens that a checkpoint's own weights sampled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import Guess, call, guesses
from safetensors.numpy import load_file, save_file
from tiny_model import tiny_llama
from training import COURIER, DICE, quiet, recipe_of, run, run_briskly

from steprl.errors import ConfigError
from steprl.tools import tool
from steprl.trainers.given import Given
from steprl.trainers.replay import EnvironmentSide, ModelSide, ReplayReport, replay
from steprl.trajectory.store import read
from steprl.types import Action, Message, Task, Transition

MOOD: dict[str, Any] = {}
"""How ``Moody`` differs from what it was while the run was recorded."""


class Moody(Guess):
    """``Guess``, with every part of it open to change."""

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        tasks = guesses(6) if source == "train" else guesses(4, first=90)
        return [MOOD.get(task.id, task) for task in tasks if MOOD.get(task.id) != "gone"]

    @property
    def system_prompt(self) -> str:  # type: ignore[override]
        return str(MOOD.get("opening", "Answer with a digit."))

    @tool
    def hint(self) -> str:
        """A hint."""
        return str(MOOD.get("hint", "It is a rather small one, and smaller than you think."))

    tools = (hint,)

    def anchor(self, feedback: Sequence[Message]) -> str:
        return str(MOOD.get("anchor", "no state"))

    def reward(self, task: Task, answer: str) -> float:
        return float(MOOD.get("reward", super().reward(task, answer)))

    async def step(self, action: Action) -> Transition:
        transition = await super().step(action)
        if MOOD.get("generous") and not transition.terminated:
            return Transition(feedback=transition.feedback, anchor=transition.anchor, terminated=True)
        if MOOD.get("insistent") and transition.terminated:
            return Transition(rewards=transition.rewards, anchor=transition.anchor)
        if MOOD.get("breaks") and transition.terminated:
            raise OSError("no connection")
        return transition


@pytest.fixture(autouse=True)
def same_mood() -> Iterator[None]:
    MOOD.clear()
    yield
    MOOD.clear()


@pytest.fixture(scope="module")
def recorded(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``Moody``: per iteration 8 episodes, and 4 evaluated before training."""
    runs = tmp_path_factory.mktemp("moody")
    MOOD.clear()
    replies = ["0", "1", call("hint"), call("hint")]
    table = {**DICE, "engine": {"id": "playing:Dice", "args": {"replies": replies}}}
    overrides = ("env.id=test_replay:Moody", "train.iterations=2")
    return run_briskly(recipe_of(table, tiny_policy, runs, *overrides))


@pytest.fixture(scope="module")
def courier(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that really sampled: 4 episodes in each of 3 iterations, 3 evaluated before, during and after."""
    runs = tmp_path_factory.mktemp("courier")
    run(recipe_of(COURIER, tiny_policy, runs, "evaluation.greedy=false"))
    return runs / "courier"


def environment(folder: Path, **options: Any) -> EnvironmentSide:
    report = replay(folder, model=False, display=quiet(), **options)
    assert report.environment is not None and report.model is None
    return report.environment


def scored(folder: Path, **options: Any) -> ModelSide:
    report = replay(folder, environment=False, display=quiet(), **options)
    assert report.model is not None and report.environment is None
    return report.model


# --- environment side ---------------------------------------------------------------------------------


def test_an_untouched_run_comes_out_equal_on_both_sides(courier: Path) -> None:
    report = replay(courier, display=quiet())
    assert isinstance(report, ReplayReport) and report.model is not None
    assert report.environment == EnvironmentSide(
        equal=21, different=0, skipped=0, gone=(), changed=(), first=None
    )
    assert report.environment.same
    gap = report.model.gap
    assert gap is not None and gap.version == 3 and gap.tokens > 0
    assert 0 <= gap.mean <= gap.p99 <= gap.largest.size < 1e-4 and gap.first is None


def test_a_run_with_tools_comes_out_equal(recorded: Path) -> None:
    assert environment(recorded).equal == 20


@pytest.mark.parametrize(
    ("mood", "field", "then", "now"),
    [
        ({"hint": "It is a rather large one."}, "feedback", "a rather small one, and", "a rather large one."),
        ({"anchor": "some state"}, "anchor", "no state", "some state"),
        ({"reward": 0.5}, "reward components", "outcome ", "outcome 0.5"),
        ({"opening": "Answer with a letter."}, "prompt", "digit", "letter"),
        ({"generous": True}, "end", "terminated after", "terminated after 1 steps"),
        ({"insistent": True}, "end", "terminated after", "has no further action, but one is asked for"),
        ({"breaks": True}, "end", "terminated after", "OSError: no connection"),
    ],
)
def test_an_environment_that_changed_is_shown_at_its_first_difference(
    recorded: Path, mood: dict[str, Any], field: str, then: str, now: str
) -> None:
    MOOD.update(mood)
    side = environment(recorded)
    first = side.first
    assert first is not None and not side.same
    assert side.different > 0 and side.equal + side.different == 20
    assert first.field == field
    assert then in first.recorded and now in first.now and now not in first.recorded


def test_the_difference_shown_is_the_first_of_all(recorded: Path) -> None:
    MOOD["hint"] = "none today"
    episodes = [t for group in read(recorded) for t in group.trajectories]
    asked = [(t.uid, index) for t in episodes for index, step in enumerate(t.steps) if step.feedback]
    side = environment(recorded)
    assert side.first is not None
    assert (side.first.episode, side.first.step) == asked[0]
    assert side.different == len({uid for uid, _ in asked})


def test_a_prompt_that_differs_is_shown_around_its_first_differing_token(recorded: Path) -> None:
    MOOD["opening"] = "Answer with a letter."
    first = environment(recorded).first
    assert first is not None and first.step == 0
    assert first.recorded.startswith("token ") and "Answer with a ', then 'digit." in first.recorded
    assert first.now.startswith("token ") and "Answer with a ', then 'letter." in first.now


def test_tasks_that_are_gone_or_changed_are_reported_and_not_played(recorded: Path) -> None:
    episodes = [t for group in read(recorded) for t in group.trajectories]
    gone, changed = list(dict.fromkeys(t.task_id for t in episodes if t.uid.startswith("train")))[:2]
    MOOD[gone] = "gone"
    MOOD[changed] = Task(id=changed, prompt="Which letter?", answer=0)
    side = environment(recorded)
    assert side.gone == tuple(t.uid for t in episodes if t.task_id == gone)
    assert side.changed == tuple(t.uid for t in episodes if t.task_id == changed)
    assert side.equal == 20 - len(side.gone) - len(side.changed)
    assert side.different == 0 and not side.same


class Breaking(Guess):
    """Breaks on one task, in ``setup``: nobody's action explains that."""

    def setup(self, task: Task, seed: int) -> None:
        if task.id == "task-1":
            raise OSError(MOOD.get("message", "no connection"))


def test_an_episode_that_broke_is_played_again_only_by_name(tiny_policy: str, tmp_path: Path) -> None:
    folder = run_briskly(
        recipe_of(
            DICE,
            tiny_policy,
            tmp_path,
            "env.id=test_replay:Breaking",
            "train.iterations=3",
            "evaluation.tasks=0",
        )
    )
    broken = [t for group in read(folder) for t in group.trajectories if t.error is not None]
    side = environment(folder)
    assert side.skipped == len(broken) > 0 and side.same
    assert environment(folder, episode=broken[0].uid).equal == 1
    MOOD["message"] = "no route"
    first = environment(folder, episode=broken[0].uid).first
    assert first is not None and first.step is None
    assert "no connection" in first.recorded and "no route" in first.now


# --- what is replayed ---------------------------------------------------------------------------------


def test_episodes_are_chosen_by_iteration_uid_and_number(recorded: Path) -> None:
    assert environment(recorded, iteration=0).equal == 4
    assert environment(recorded, iteration=2).equal == 8
    assert environment(recorded, episode="train-1-0.2").equal == 1
    assert environment(recorded, limit=9).equal == 9
    assert environment(recorded, limit=1000).equal == 20
    MOOD["opening"] = "?"
    first = environment(recorded, limit=9).first
    assert first is not None and first.episode == "train-1-1.3"  # the last of the last but one file


def test_the_last_episodes_are_those_of_the_newest_weights(courier: Path) -> None:
    assert [found.version for found in scored(courier, limit=3).versions] == [3]


def test_what_is_not_there_is_refused(recorded: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"episode": "train-9-0.0"}, f"unknown episode 'train-9-0.0'. See: steprl show {recorded} --list"),
        ({"iteration": 9}, "holds no trajectories of iteration 9"),
        ({"limit": 0}, "limit must be at least 1 episode, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            replay(recorded, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is not a run folder"):
        replay(tmp_path)


def test_a_run_of_python_objects_is_replayed_with_the_same_objects(recorded: Path, tmp_path: Path) -> None:
    given = Given(train_tasks=guesses(6))
    shutil.copytree(recorded, tmp_path / "run")
    (tmp_path / "run" / "given.json").write_text(json.dumps(given.record()))
    with pytest.raises(ConfigError) as caught:
        replay(tmp_path / "run")
    told = str(caught.value)
    assert "was started from Python with what its config.toml cannot name: train_tasks. Replay it" in told
    assert told.endswith(f"replay.replay('{tmp_path / 'run'}', given=Given(train_tasks=…))")
    assert environment(tmp_path / "run", given=given).equal == 20


# --- model side ---------------------------------------------------------------------------------------


def test_tokens_are_grouped_by_the_version_that_sampled_them(courier: Path) -> None:
    side = scored(courier)
    assert side.checkpoint.endswith("step-3") and side.version == 3 and side.left_out == 0
    counts = dict.fromkeys(range(4), 0)
    for group in read(courier):
        for step in (s for t in group.trajectories for s in t.steps):
            for version in step.policy_versions[step.sampled_mask].tolist():
                counts[version] += 1
    assert {found.version: found.tokens for found in side.versions} == counts
    assert all(found.largest.size > 1e-3 for found in side.versions if found.version != 3)


def test_the_starting_model_measures_the_first_version(courier: Path, tiny_policy: str) -> None:
    for name in ("none", tiny_policy):
        side = scored(courier, checkpoint=name)
        assert side.version == 0 and side.gap is not None and side.gap.largest.size < 1e-4


def test_a_perturbed_model_shows_the_gap_and_its_first_token(
    courier: Path, tiny_policy: str, tmp_path: Path
) -> None:
    """The run's own starting model, whose weights somebody has changed since."""
    folder, perturbed = tmp_path / "run", tmp_path / "perturbed"
    shutil.copytree(courier, folder)
    shutil.copytree(tiny_policy, perturbed)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace(tiny_policy, str(perturbed)))
    tensors = dict(load_file(perturbed / "model.safetensors"))
    name = "model.norm.weight"
    tensors[name] = tensors[name] * np.float32(1.2)
    save_file(tensors, perturbed / "model.safetensors", metadata={"format": "pt"})
    gap = scored(folder, checkpoint="none", tolerance=0.01).gap
    assert gap is not None and gap.version == 0 and gap.first is not None
    assert gap.largest.size > 0.01 < gap.first.size <= gap.largest.size and gap.mean < gap.largest.size
    (step,) = [
        s
        for group in read(courier)
        for t in group.trajectories
        if t.uid == gap.first.episode
        for s in t.steps[gap.first.step : gap.first.step + 1]
    ]
    assert step.logprobs is not None
    assert gap.first.recorded == pytest.approx(float(step.logprobs[gap.first.position]))


def test_a_checkpoint_of_unknown_origin_measures_nothing(courier: Path, tmp_path: Path) -> None:
    shutil.copytree(courier / "checkpoints" / "step-3", tmp_path / "copy")
    side = scored(courier, checkpoint=tmp_path / "copy")
    assert side.version is None and side.gap is None and len(side.versions) == 4


def test_a_checkpoint_that_cannot_be_used_is_refused(courier: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="there is no checkpoint folder 'step-9'. The run keeps .*step-3; 'none'"
    ):
        scored(courier, checkpoint="step-9")
    tiny_llama(8).save_pretrained(tmp_path / "small")
    with pytest.raises(ConfigError, match="and the model knows 8 ids. Give a checkpoint of the model"):
        scored(courier, checkpoint=tmp_path / "small")
