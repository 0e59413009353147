"""What is played in an evaluation: every task, every attempt, once, whatever stops it on the way."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from playing import Dice, Guess, guesses
from training import DICE, quiet, recipe_of, run_briskly, said

import steprl
from steprl.errors import ConfigError, EngineError, EnvError
from steprl.rollout import derive_seed
from steprl.trainers import api
from steprl.trainers.api import Attempted, evaluate_attempts
from steprl.trainers.evaluation.attempts import Solved
from steprl.trainers.evaluation.folder import EvaluationFolder
from steprl.trainers.evaluation.what import recipe_of as recipe_to_evaluate
from steprl.trainers.given import Given
from steprl.trainers.interrupt import Interrupted
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import read

PLACES = range(4)


@pytest.fixture
def recipe(tiny_policy: str, tmp_path: Path) -> Recipe:
    return recipe_of(DICE, tiny_policy, tmp_path / "runs")


def evaluated(recipe: Recipe, **options: Any) -> Attempted:
    options.setdefault("display", quiet())
    return evaluate_attempts(recipe, **options)


def with_options(recipe: Recipe, tmp_path: Path, *assignments: str) -> Recipe:
    return recipe_of(DICE, recipe.model.path, tmp_path / "runs", *assignments)


def said_by(found: Attempted) -> list[list[int]]:
    return [s.action_ids.tolist() for g in found.groups for t in g.trajectories for s in t.steps]


def test_more_attempts_contain_fewer_and_more_tasks_contain_fewer(recipe: Recipe, tmp_path: Path) -> None:
    once, often = evaluated(recipe), evaluated(recipe, samples=5)
    assert [a.key for a in often.attempts] == [(p, a) for p in PLACES for a in range(5)]
    assert said_by(once) == [s.action_ids.tolist() for g in often.groups for s in g.trajectories[0].steps]
    two = evaluated(with_options(recipe, tmp_path, "evaluation.tasks=2"), samples=5)
    assert [a.name for a in two.attempts] == [a.name for a in often.attempts if a.place < 2]
    assert len({a.sampling_seed for a in often.attempts}) == 20 and len({a.seed for a in often.attempts}) == 4


def test_one_attempt_is_what_evaluating_a_recipe_always_was(recipe: Recipe) -> None:
    old, new = api.evaluate_recipe(recipe, greedy=False, display=quiet()), evaluated(recipe)
    assert (new.report["success"], new.report["reward"]) == (old.success, old.reward)
    assert (new.report["tasks"], new.report["errors"]) == (old.tasks, old.errors) == (4, 0)
    assert new.attempts[0].sampling_seed == derive_seed(derive_seed(recipe.seed, "evaluation"), 0, 0)


def test_two_models_meet_the_same_seeds(recipe: Recipe, tmp_path: Path) -> None:
    other = evaluated(with_options(recipe, tmp_path, "engine.args.replies=['2']"), samples=3)
    assert [a.name for a in other.attempts] == [a.name for a in evaluated(recipe, samples=3).attempts]


# --- kept, interrupted, continued ---------------------------------------------------------------------


class Counted(Dice):
    """Notes which attempt asks; asks to stop at the seventh request, or breaks down, if told to."""

    asked: list[str] = []
    at_the_seventh: Any = None

    async def generate(self, *args: Any, session_id: str, **options: Any) -> Any:
        Counted.asked.append(session_id)
        if len(Counted.asked) == 7 and Counted.at_the_seventh is not None:
            Counted.at_the_seventh()
        return await super().generate(*args, session_id=session_id, **options)


@pytest.fixture
def counted(recipe: Recipe, tmp_path: Path) -> Recipe:
    Counted.asked, Counted.at_the_seventh = [], None
    return with_options(
        recipe, tmp_path, "engine.id=test_play_attempts:Counted", "engine.args.replies=['0', '1', '2']",
        "rollout.concurrency=1",
    )  # fmt: skip


def press_ctrl_c() -> None:
    import signal

    signal.raise_signal(signal.SIGINT)


def break_down() -> None:
    raise ConfigError("the disk of the server is gone")


def test_an_interrupted_evaluation_goes_on_loses_nothing_and_plays_nothing_twice(
    counted: Recipe, tmp_path: Path
) -> None:
    whole = evaluated(counted, samples=3)
    Counted.asked, Counted.at_the_seventh = [], press_ctrl_c
    out = tmp_path / "evaluation"
    with pytest.raises(Interrupted, match="stopped after 6 of 12 attempts; they are saved. The same command"):
        evaluated(counted, samples=3, out=out)
    assert not (out / "evaluation.json").exists()
    Counted.at_the_seventh = None
    before = list(Counted.asked)
    resumed = evaluated(counted, samples=3, out=out)
    assert before[:6] + Counted.asked[7:] == [a.uid for a in whole.attempts]
    assert said_by(resumed) == said_by(whole)
    assert [a.name for a in resumed.attempts] == [a.name for a in whole.attempts]
    stored = [t.uid for g in read(out) for t in g.trajectories]
    assert sorted(stored) == sorted(a.uid for a in whole.attempts)


def test_what_was_done_before_a_breakdown_is_kept(counted: Recipe, tmp_path: Path) -> None:
    Counted.at_the_seventh = break_down
    with pytest.raises(ConfigError, match="the disk of the server is gone"):
        evaluated(counted, samples=3, out=tmp_path / "e")
    assert len(EvaluationFolder(tmp_path / "e").attempts()) == 6


def test_a_kill_between_episodes_and_their_lines_plays_them_again(counted: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "e"
    evaluated(counted, samples=2, out=out)
    part = out / "attempts" / "000001.jsonl"
    (out / "attempts" / ".000002.jsonl.partial").write_text("half")
    part.unlink()  # as if killed after the episodes of the only part, before its lines
    Counted.asked = []
    again = evaluated(counted, samples=2, out=out)
    assert len(Counted.asked) == 8 == len(again.attempts)
    assert len([t for g in read(out) for t in g.trajectories]) == 8
    assert not list((out / "attempts").glob(".*"))


def test_what_is_complete_is_reported_again_without_a_model(counted: Recipe, tmp_path: Path) -> None:
    out, display = tmp_path / "e", quiet()
    first = evaluated(counted, samples=2, out=out)
    Counted.asked = []
    again = evaluated(counted, samples=2, out=out, display=display, solved=Solved(by="reward", threshold=0.0))
    assert Counted.asked == [] and f"nothing left to play: {out} is complete" in said(display)
    assert again.attempts == first.attempts and said_by(again) == said_by(first)
    assert again.report["success"] == 1.0 != first.report["success"]
    assert json.loads((out / "evaluation.json").read_text())["solved"] == {"by": "reward", "threshold": 0.0}


def test_more_attempts_and_tasks_extend_what_is_there(
    counted: Recipe, recipe: Recipe, tmp_path: Path
) -> None:
    out = tmp_path / "e"
    options = ("engine.id=test_play_attempts:Counted", "engine.args.replies=['0', '1', '2']")
    evaluated(with_options(recipe, tmp_path, *options, "evaluation.tasks=2"), out=out)
    Counted.asked = []
    extended = evaluated(counted, samples=2, out=out)
    assert sorted(Counted.asked) == ["eval-0.1", "eval-1.1", "eval-2.0", "eval-2.1", "eval-3.0", "eval-3.1"]
    assert said_by(extended) == said_by(evaluated(counted, samples=2))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed=1", "seed was 0 and is 1"),
        ("rollout.max_tokens=7", "rollout.max_tokens was 256 and is 7"),
        ("engine.args.replies=['0']", "engine.args.replies was"),
    ],
)
def test_another_evaluation_in_the_same_folder_is_refused(
    recipe: Recipe, tmp_path: Path, assignment: str, message: str
) -> None:
    evaluated(recipe, out=tmp_path / "e")
    with pytest.raises(ConfigError, match=f"is an evaluation of something else: .*{message}"):
        evaluated(with_options(recipe, tmp_path, assignment), out=tmp_path / "e")
    with pytest.raises(ConfigError, match="greedy was False and is True"):
        evaluated(recipe, out=tmp_path / "e", greedy=True)
    evaluated(with_options(recipe, tmp_path, "rollout.concurrency=2", "learner.lr=0.5"), out=tmp_path / "e")


def test_other_tasks_in_the_same_folder_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    evaluated(recipe, out=tmp_path / "e")
    with pytest.raises(ConfigError, match="evaluation task 0 was 'task-90' .* and is 'task-50'"):
        evaluated(recipe, out=tmp_path / "e", given=Given(eval_tasks=guesses(4, first=50)))


def test_a_folder_of_something_else_stays_as_it_is(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is no evaluation .no settings.json in it.; it stays as it is"):
        evaluated(recipe, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_another_process_writes_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    evaluated(recipe, out=tmp_path / "e")
    with EvaluationFolder(tmp_path / "e").locked():
        with pytest.raises(ConfigError, match="is being written by another process"):
            evaluated(recipe, out=tmp_path / "e", samples=2)


def test_what_cannot_be_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="at least 1 attempt per task, got 0"):
        evaluated(recipe, samples=0)
    with pytest.raises(ConfigError, match="a component and a finite number"):
        Solved(threshold=float("nan"))


# --- faults -------------------------------------------------------------------------------------------


HANGS = threading.Event()


class Troubled(Guess):
    """Solves nothing right: one task each where the connection fails, the scorer raises, the scorer hangs."""

    broken = True
    reward_deadline = 0.2

    def setup(self, task: steprl.Task, seed: int) -> None:
        if Troubled.broken and task.id == "task-91":
            raise OSError("no connection")

    def reward(self, task: steprl.Task, answer: str) -> Any:
        if Troubled.broken and task.id == "task-92":
            raise ValueError("cannot parse")
        if Troubled.broken and task.id == "task-93":
            HANGS.wait(20)
        return 1.0


@pytest.fixture
def troubled(recipe: Recipe, tmp_path: Path) -> Any:
    Troubled.broken = True
    HANGS.clear()
    yield with_options(
        recipe, tmp_path, "env.id=test_play_attempts:Troubled", "engine.args.replies=['0']",
        "rollout.failures.backoff=0",
    )  # fmt: skip
    HANGS.set()


def test_faults_are_no_wrong_answers_and_told_apart(troubled: Recipe) -> None:
    report = evaluated(troubled, samples=2).report
    assert report["faults"]["environment"] == {
        "attempts": 2, "tasks": 1, "kinds": {"OSError": 2}, "first": "eval-1.0: OSError: no connection",
    }  # fmt: skip
    assert report["faults"]["scorer"]["kinds"] == {"ScorerError": 2, "ScorerTimeout": 2}
    assert (report["faults"]["scorer"]["attempts"], report["faults"]["scorer"]["tasks"]) == (4, 2)
    assert (report["success"], report["reward"], report["errors"]) == (0.25, 1.0, 6)
    assert report["pass@k"]["1"]["mean"] == 0.25 and report["left_out"]["pass@k"]["1"]["mean"] == 1.0
    assert (
        report["by_agent"] == 0
    )  # the scorer's error is the scorer's, although it is trained on as the agent's


def test_the_old_verb_counts_them_alike(troubled: Recipe) -> None:
    found = api.evaluate_recipe(troubled, greedy=False, display=quiet())
    assert (found.tasks, found.success, found.reward, found.errors) == (4, 0.25, 1.0, 3)


def test_spoiled_attempts_are_played_again_when_asked_for(troubled: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "e"
    evaluated(troubled, out=out)
    Troubled.broken = False
    assert evaluated(troubled, out=out).report["errors"] == 3
    assert evaluated(troubled, out=out, retry=True).report["errors"] == 0
    assert evaluated(troubled, out=out).report["success"] == 1.0


def test_an_evaluation_in_which_everything_failed_is_none(recipe: Recipe, tmp_path: Path) -> None:
    gone = with_options(recipe, tmp_path, "engine.args.replies=[]", "rollout.failures.retries=0")
    with pytest.raises(EngineError, match="all 4 episodes failed; nothing to report. They are kept; --retry"):
        evaluated(gone, out=tmp_path / "e")
    with pytest.raises(EnvError, match="all 4 episodes failed; nothing to report. eval-0.0: KeyError"):
        evaluated(recipe, given=Given(env=Broken))


class Broken(Guess):
    def setup(self, task: steprl.Task, seed: int) -> None:
        raise KeyError("nothing works")


# --- a run, or its checkpoint -------------------------------------------------------------------------


def test_a_run_is_evaluated_with_its_newest_checkpoint(tiny_policy: str, tmp_path: Path) -> None:
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, "train.iterations=1", "evaluation.tasks=0"))
    (checkpoint,) = RunFolder(folder).checkpoints()
    for named in (folder, checkpoint):
        found = recipe_to_evaluate(named, ["evaluation.tasks=2"])
        assert (found.model.path, found.evaluation.tasks, found.env.id) == (
            str(checkpoint),
            2,
            "playing:Guess",
        )
    assert recipe_to_evaluate(folder, [f"model.path={tiny_policy}"]).model.path == tiny_policy
    with pytest.raises(ConfigError, match="neither a run .* nor one of its checkpoints.*model.path="):
        recipe_to_evaluate(tiny_policy)
    with pytest.raises(ConfigError, match="there is no recipe"):
        recipe_to_evaluate(tmp_path / "absent.toml")


def test_a_run_that_was_started_from_python_is_evaluated_from_there(tiny_policy: str, tmp_path: Path) -> None:
    RunFolder.create(recipe_of(DICE, tiny_policy, tmp_path), given={"script": True})
    with pytest.raises(ConfigError, match="cannot name: script. Evaluate it from Python"):
        recipe_to_evaluate(tmp_path / "run")
