"""A policy from nothing: kinds of demonstrations, tokens and masks of a rollout, complete or absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doors import Doors, Mute, Opener, Sometimes, Unknown
from playing import Recorder, call, guesses, members, play, renderer
from rich.console import Console
from training import DICE, quiet, recipe_of, run

from steprl.batch import rows
from steprl.config import build, options
from steprl.context import AppendOnly
from steprl.envs import Env
from steprl.envs.policy import Move
from steprl.errors import ConfigError, TaskError
from steprl.learner.small_policy import PolicySize
from steprl.renderers import load_tokenizer
from steprl.trainers import api
from steprl.trainers.imitation.build import build_policy
from steprl.trainers.imitation.config import PolicyConfig
from steprl.trainers.imitation.demonstrate import demonstrate
from steprl.trainers.imitation.warm_start import WarmStart
from steprl.trainers.progress import Display, Phase
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.aside import written_aside
from steprl.trajectory.store import read
from steprl.types import Observation

TINY = PolicySize(hidden=16, layers=1, max_context=256)
CONFIG = PolicyConfig(
    size=TINY, warm_start=WarmStart(steps=60, batch=8, lr=2e-2, final_lr=5e-3, warmup_steps=5), max_steps=4
)
BRIEF = replace(CONFIG, warm_start=replace(CONFIG.warm_start, steps=2), evaluation_tasks=0)
"""Enough to see which demonstrations there were."""
WIDE = replace(BRIEF, size=replace(TINY, max_context=2048))
"""For what the tiny tokenizer of other tests has recorded."""


OPTIONS = {
    "size.hidden": "int",
    "size.layers": "int",
    "size.max_context": "int",
    "warm_start.steps": "int",
    "warm_start.batch": "int",
    "warm_start.lr": "float",
    "warm_start.final_lr": "float",
    "warm_start.warmup_steps": "int",
    "seed": "int",
    "threads": "int | None",
    "count": "int | None",
    "min_reward": "float | None",
    "args": "dict[str, typing.Any]",
    "demo_args": "dict[str, typing.Any]",
    "context": "str",
    "context_args": "dict[str, typing.Any]",
    "format": "str",
    "format_args": "dict[str, typing.Any]",
    "chat_template": "str | None",
    "model": "str | None",
    "vocabulary": "int",
    "vocabulary_demos": "int",
    "max_steps": "int",
    "evaluation_tasks": "int",
}
"""Adding an option is a line here; renaming or removing one breaks commands that people keep."""


def built(folder: Path, config: PolicyConfig = BRIEF, **given: Any) -> dict[str, Any]:
    given = {"demos": "oracle", **given}
    return build_policy(given.pop("env", Doors), out=folder, config=config, display=quiet(), **given)


def test_the_list_of_options_is_frozen() -> None:
    assert options(PolicyConfig) == OPTIONS


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that was built on the oracle of ``Doors``."""
    folder = tmp_path_factory.mktemp("built") / "doors"
    built(folder, CONFIG)
    return folder


@pytest.fixture(scope="module")
def recorded(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose episodes are worth 0 or 1."""
    runs = tmp_path_factory.mktemp("recorded")
    run(recipe_of(DICE, tiny_policy, runs, "train.iterations=1", "rollout.groups=4"))
    return runs / "run"


# --- what comes out -----------------------------------------------------------------------------------


def test_a_few_thousand_parameters_learn_to_imitate(policy: Path) -> None:
    report = json.loads((policy / "policy.json").read_text())
    assert report["model"]["parameters"] < 15_000
    assert report["model"]["loss_last"] < 0.1 < 1.0 < report["model"]["loss_first"]
    assert report["evaluation"]["greedy"] == {"success": 1.0, "reward": 1.0, "errors": 0}
    assert report["evaluation"]["sampled"]["success"] > 0.5


def test_the_report_counts_what_was_shown_and_held_out(policy: Path) -> None:
    report = json.loads((policy / "policy.json").read_text())
    shown, without = report["demonstrations"]["kept"], report["demonstrations"]["dropped"].pop("no_oracle")
    assert shown + without == 24 and report["evaluation"]["tasks"] == 6
    assert not any(report["demonstrations"]["dropped"].values())
    assert report["demonstrations"]["mean_reward"] == 1.0
    assert report["demonstrations"]["steps"] == 2 * shown
    assert (report["env"], report["demos"], report["tasks"]) == ("doors:Doors", "oracle", "train")


def test_the_folder_is_one_that_a_recipe_takes(policy: Path) -> None:
    table = {
        "env": {"id": "doors:Doors", "eval": "train"},
        "model": {"path": str(policy)},
        "rollout": {"max_steps": 4, "max_tokens": 64},
        "evaluation": {"tasks": 10},
        "threads": 1,
    }
    assert api.evaluate_recipe(build(Recipe, table), greedy=True, display=quiet()).success == 1.0


def test_the_tokenizer_has_the_control_tokens_and_any_text(policy: Path) -> None:
    tokenizer = load_tokenizer(policy)
    for word in ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tools>", "</tools>", "open"):
        assert len(tokenizer(word)["input_ids"]) == 1, word
    for text in ("größer 東京 😀 \x00", "<tool_call>{}</tool_call>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    built(tmp_path / "one"), built(tmp_path / "two")
    for file in ("model.safetensors", "tokenizer.json", "policy.json", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    built(tmp_path / "three", replace(BRIEF, seed=1))
    other = (tmp_path / "three" / "model.safetensors").read_bytes()
    assert other != (tmp_path / "one" / "model.safetensors").read_bytes()


# --- demonstrations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demos", "args", "mean"),
    [
        ("doors:opener", {}, 1.0),
        ("doors:Opener", {}, 1.0),
        ("doors:Opener", {"says": "nothing"}, 0.0),
        (Opener(), {}, 1.0),
    ],
)
def test_a_scripted_policy_is_named_made_or_handed_over(
    tmp_path: Path, demos: Any, args: dict[str, Any], mean: float
) -> None:
    report = built(tmp_path / "policy", replace(BRIEF, demo_args=args), demos=demos)
    assert report["demonstrations"]["kept"] == 30
    assert report["demonstrations"]["mean_reward"] == mean
    assert report["demos"] == (demos if isinstance(demos, str) else "doors:Opener")


def test_what_cannot_be_imitated_is_dropped_and_counted(tmp_path: Path) -> None:
    report = built(tmp_path / "policy", replace(BRIEF, min_reward=0.5), demos=Sometimes())
    dropped = report["demonstrations"]["dropped"]
    assert (dropped["truncated"], dropped["below_min_reward"], report["demonstrations"]["kept"]) == (3, 3, 24)


def test_a_demonstration_longer_than_the_context_is_truncated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="left to imitate: .* truncated") as caught:
        built(tmp_path / "policy", replace(BRIEF, size=replace(TINY, max_context=45)))
    assert "truncated: raise max_steps or size.max_context" in str(caught.value)


def test_options_reach_the_environment(tmp_path: Path) -> None:
    report = built(tmp_path / "policy", replace(BRIEF, args={"locked": True}))
    assert report["demonstrations"]["mean_reward"] == 0.0


def test_tasks_may_be_handed_over_and_counted(tmp_path: Path) -> None:
    config = replace(BRIEF, count=5, evaluation_tasks=3)
    report = built(tmp_path / "policy", config, tasks=Doors.tasks("train")[5:], eval_tasks="train")
    assert report["demonstrations"]["kept"] == 5 and report["tasks"] == "25 from Python"
    assert report["evaluation"]["tasks"] == 3


def test_stored_trajectories_keep_their_tokens_and_tokenizer(
    recorded: Path, tiny_policy: str, tmp_path: Path
) -> None:
    stored = members(read(recorded, split="train"))
    solved = [trajectory for trajectory in stored if trajectory.reward == 1.0]
    config = replace(WIDE, min_reward=1.0)
    report = built(tmp_path / "policy", config, env="playing:Guess", demos=str(recorded))
    assert report["demonstrations"]["kept"] == len(solved) > 0
    assert sum(report["demonstrations"]["dropped"].values()) == len(stored) - len(solved) > 0
    assert report["demonstrations"]["tokens"] == sum(len(row.ids) for row in rows(solved))
    ours, theirs = load_tokenizer(tmp_path / "policy"), load_tokenizer(tiny_policy)
    assert ours.get_vocab() == theirs.get_vocab() and ours.chat_template == theirs.chat_template
    assert report["model"]["vocabulary"] == len(theirs)


def test_a_file_of_trajectories_needs_its_run_or_a_model(
    recorded: Path, tiny_policy: str, tmp_path: Path
) -> None:
    file = recorded / "trajectories" / "000001-train.parquet"
    report = built(tmp_path / "one", WIDE, env="playing:Guess", demos=file)
    alone = tmp_path / "alone.parquet"
    alone.write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="does not say which model its tokens belong to"):
        built(tmp_path / "two", env="playing:Guess", demos=str(alone))
    again = built(tmp_path / "two", replace(WIDE, model=tiny_policy), env="playing:Guess", demos=str(alone))
    assert again["demonstrations"] == report["demonstrations"]


def test_stored_trajectories_that_do_not_fit_are_told(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="16 too_long.* raise size.max_context, which is 256"):
        built(tmp_path / "policy", env="playing:Guess", demos=recorded)
    with pytest.raises(ConfigError, match="holds the token id .* but the tokenizer of .* it is another one"):
        config = replace(WIDE, model=str(built_on_bytes(tmp_path / "other")))
        built(tmp_path / "policy", config, env="playing:Guess", demos=recorded)


def built_on_bytes(folder: Path) -> Path:
    """A policy whose tokenizer knows little more than bytes."""
    built(folder, replace(BRIEF, vocabulary=260))
    return folder


def test_stored_tasks_are_not_evaluated_on(recorded: Path, tmp_path: Path) -> None:
    seen = {trajectory.task_id for trajectory in members(read(recorded, split="train"))}
    config = replace(WIDE, evaluation_tasks=10)
    report = built(tmp_path / "policy", config, env="playing:Guess", demos=recorded)
    assert report["evaluation"]["tasks"] == 6 - len(seen) > 0


def test_demonstrations_have_the_prompts_tokens_and_masks_of_a_rollout() -> None:
    class Hinted:
        def act(self, messages: Any) -> Move:
            if messages[-1].role == "user":
                return Move(text="Hm.", calls=(("hint", {}),))
            return Move(text="1")

    from playing import Guess

    shown = demonstrate(Guess, lambda _: Hinted(), guesses(3), renderer=renderer(), context=AppendOnly())
    script = [f"Hm.\n{call('hint')}", "1"]
    rolled = play(Guess, Recorder(script), guesses(3))
    for one, other in zip(rows(members(shown)), rows(members(rolled)), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.action_positions.tolist() == other.action_positions.tolist()
    for t in members(shown):
        assert all(step.sampled_mask.all() and not step.prompt_ids.size == 0 for step in t.steps)
    assert [t.reward for t in members(shown)] == [0.0, 1.0, 0.0]


# --- complete or absent -------------------------------------------------------------------------------


class Interrupting(Display):
    """A display that meets Ctrl-C in a phase of its name."""

    def __init__(self, name: str) -> None:
        super().__init__(Console(quiet=True))
        self.name = name

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Phase]:
        if name == self.name:
            raise KeyboardInterrupt
        with super().phase(name, total, done) as phase:
            yield phase


@pytest.mark.parametrize("phase", ["vocabulary", "demonstrations", "warm start", "evaluation"])
def test_an_interruption_leaves_nothing(tmp_path: Path, phase: str) -> None:
    config = replace(BRIEF, evaluation_tasks=5)
    with pytest.raises(KeyboardInterrupt):
        build_policy(
            Doors, demos="oracle", out=tmp_path / "policy", config=config, display=Interrupting(phase)
        )
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_what_was_there(tmp_path: Path) -> None:
    built(tmp_path / "policy")
    before = (tmp_path / "policy" / "policy.json").read_bytes()
    other = replace(BRIEF, seed=1)
    with pytest.raises(KeyboardInterrupt):
        build_policy(
            Doors,
            demos="oracle",
            out=tmp_path / "policy",
            config=other,
            overwrite=True,
            display=Interrupting("warm start"),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert (tmp_path / "policy" / "policy.json").read_bytes() == before
    built(tmp_path / "policy", other, overwrite=True)
    assert json.loads((tmp_path / "policy" / "policy.json").read_text())["seed"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_folder_that_is_no_model_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="exists and is not empty. Replace it with --overwrite"):
        built(tmp_path / "thesis")
    with pytest.raises(ConfigError, match="is not a model folder .* it stays as it is"):
        built(tmp_path / "thesis", overwrite=True)
    with pytest.raises(ConfigError, match="is a file; a policy is written to a folder"):
        built(tmp_path / "thesis" / "chapter.txt")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


# --- what cannot work ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        ({"env": Unknown}, {}, "Unknown has no oracle for any of its 30 tasks. Override Unknown.oracle"),
        ({"env": "curier"}, {}, "unknown env 'curier'. Did you mean 'courier'?"),
        ({"tasks": "none"}, {}, "the task set 'none' is empty; there is nothing to demonstrate"),
        ({}, {"args": {"color": "red"}}, "env 'doors:Doors' does not take these options"),
        ({}, {"count": 31}, "count = 31, but there are 30 tasks, of which 0 are held out"),
        ({}, {"demo_args": {"says": "x"}}, "demo_args are for demonstrators named module:attribute"),
        ({}, {"model": "x"}, "model is for stored trajectories"),
        ({}, {"format": "hermse"}, "unknown format 'hermse'. Did you mean 'hermes'?"),
        ({}, {"format_args": {"x": 1}}, "format 'hermes' does not take these options: "),
        ({}, {"context_args": {"keep": 1}}, "context 'append_only' does not take these options"),
        ({}, {"chat_template": "/no/where.jinja"}, "chat_template: there is no file '/no/where.jinja'"),
        ({}, {"vocabulary": 100}, "a vocabulary of 100 is too small: 256 bytes and 3 control tokens"),
        ({"demos": "oracel"}, {}, "demos 'oracel' is neither 'oracle' nor module:attribute"),
        ({"demos": "nowhere:policy"}, {}, "demos 'nowhere:policy': there is no module 'nowhere'"),
        ({"demos": "doors:Openre"}, {}, "Did you mean 'Opener'?"),
        ({"demos": "doors:Doors"}, {}, "which is no scripted policy: it needs a method act(messages)"),
        ({"demos": "doors:opener"}, {"demo_args": {"says": "x"}}, "is a policy already and takes no options"),
        ({"demos": "doors:Opener"}, {"demo_args": {"x": 1}}, "does not take these options"),
        ({"demos": Mute()}, {}, "Mute.act returned 'key', which is not a steprl.envs.policy.Move"),
        ({"demos": "no/run"}, {}, "there is no run folder or .parquet file 'no/run'"),
        ({"demos": Opener("x")}, {"min_reward": 0.5}, "is left to imitate: 30 below_min_reward. truncated:"),
    ],
)
def test_what_cannot_work_says_why_and_leaves_nothing(
    tmp_path: Path, given: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, TaskError)) as caught:
        built(tmp_path / "policy", replace(BRIEF, **changes), **given)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"evaluation_tasks": -1}, "evaluation_tasks must be 0 (none) or above, got -1"),
        ({"seed": -1}, "seed must be 0 or above, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(CONFIG, **change)
    assert message in str(caught.value)


def test_a_policy_that_a_workflow_plays_cannot_be_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a workflow; a policy is built for a class derived from"):
        built(tmp_path / "policy", env="test_build_policy:Alone")


class Alone:
    """A workflow."""

    async def run(self, task: Any, session: Any) -> None:
        await session.act(Observation(text="?"))


def test_an_environment_that_breaks_stops_the_build(tmp_path: Path) -> None:
    class Broken(Doors):
        async def reset(self, task: Any, *, seed: int) -> Any:
            raise OSError("no disk")

    assert issubclass(Broken, Env)
    with pytest.raises(Exception, match="no disk"):
        built(tmp_path / "policy", env=Broken)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_goes_with_the_next_one_and_nothing_else_does(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, former = tmp_path / f".p.{gone.pid}.partial", tmp_path / f".p.{gone.pid}.former.partial"
    running = tmp_path / f".p.{os.getppid()}.partial"
    for folder in (left, former, running):
        folder.mkdir()
    with written_aside(tmp_path / "p") as folder:
        (folder / "config.json").write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([former.name, running.name, "p"])
