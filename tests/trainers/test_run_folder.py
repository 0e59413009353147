"""A run on disk: never overwritten unasked, checkpoints whole or absent, metrics that a kill may cut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from steprl.config import build
from steprl.errors import CheckpointError, ConfigError
from steprl.trainers.recipe import EnvConfig, Recipe
from steprl.trainers.storage.durable import write_whole
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trainers.storage.state import TrainerState
from steprl.trajectory.store import file_path


def recipe(runs: Path) -> Recipe:
    return build(Recipe, {"env": {"id": "courier"}, "name": "a", "runs": str(runs), "seed": 3})


def state(iteration: int) -> TrainerState:
    return TrainerState(
        iteration=iteration,
        evaluated=iteration - 1,
        cursor=8 * iteration,
        train_seconds=1.5,
        before={"success": 0.25},
    )


def saves(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "weights").write_text(text) and None


# --- making and opening -------------------------------------------------------------------------------


def test_the_recipe_in_the_folder_is_the_one_that_runs(tmp_path: Path) -> None:
    RunFolder.create(recipe(tmp_path / "deep" / "runs"))
    _, found = RunFolder.open(tmp_path / "deep" / "runs" / "a")
    assert found == recipe(tmp_path / "deep" / "runs")


def test_an_existing_folder_is_left_alone_and_the_ways_out_are_named(tmp_path: Path) -> None:
    RunFolder.create(recipe(tmp_path)).append_metrics({"iteration": 1})
    with pytest.raises(ConfigError) as caught:
        RunFolder.create(recipe(tmp_path))
    path = tmp_path / "a"
    assert str(caught.value) == (
        f"the run folder '{path}' exists. Continue it with 'steprl train --resume {path}', "
        f"replace it with --overwrite, or choose another name=…"
    )
    assert (path / "metrics.jsonl").exists()


def test_overwriting_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    RunFolder.create(recipe(tmp_path)).append_metrics({"iteration": 1})
    RunFolder.create(recipe(tmp_path), overwrite=True)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["config.toml"]
    RunFolder.create(recipe(tmp_path / "none"), overwrite=True)  # nothing there is fine, too


def test_overwriting_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    thesis = tmp_path / "a" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with pytest.raises(ConfigError, match=r"is not a run folder \(no config.toml in it\); it stays as it is"):
        RunFolder.create(recipe(tmp_path), overwrite=True)
    assert thesis.read_text() == "years of work"


def test_overwriting_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("notes")
    with pytest.raises(ConfigError, match="is not a run folder"):
        RunFolder.create(recipe(tmp_path), overwrite=True)
    assert (tmp_path / "a").read_text() == "notes"


def test_an_empty_folder_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert RunFolder.create(recipe(tmp_path), overwrite=True).path == tmp_path / "a"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunFolder.create(recipe(tmp_path / "file"))


def test_opening_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder: it has no config.toml"):
        RunFolder.open(tmp_path)


# --- checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_has_the_state_and_what_was_saved(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    target = folder.checkpoint(state(3), saves("three"))
    assert target == tmp_path / "checkpoints" / "step-3"
    assert folder.checkpoints() == [target] and folder.state(target) == state(3)
    assert (target / "weights").read_text() == "three"


def test_the_older_checkpoint_goes_only_when_the_new_one_is_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    older = folder.checkpoint(state(9), saves("nine"))

    def interrupted(aside: Path) -> None:
        assert older.exists()
        (aside / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.checkpoint(state(10), interrupted)
    assert folder.checkpoints() == [older]
    newer = folder.checkpoint(state(10), saves("ten"))
    assert folder.checkpoints() == [newer] and not older.exists()
    assert (newer / "weights").read_text() == "ten"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-10"]


def test_checkpoints_are_ordered_by_number_and_partial_ones_ignored(tmp_path: Path) -> None:
    for name in ("step-9", "step-10", ".step-12.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [path.name for path in RunFolder(tmp_path).checkpoints()] == ["step-9", "step-10"]


@pytest.mark.parametrize("lost", ["trainer.json", "weights", "files.json"])
def test_a_newest_checkpoint_that_lost_a_file_is_refused_not_skipped(tmp_path: Path, lost: str) -> None:
    """Going on from an older one, or from nothing, is for a person to decide."""
    folder = RunFolder(tmp_path)
    older = folder.checkpoint(state(9), saves("nine"))
    shutil.copytree(older, tmp_path / "kept")
    newest = folder.checkpoint(state(10), saves("ten"))
    (newest / lost).unlink()
    assert folder.checkpoints() == [newest]
    with pytest.raises(CheckpointError) as caught:
        folder.state(newest)
    assert str(caught.value) == (
        f"the checkpoint '{newest}' is damaged: {lost} is missing. "
        f"Put back a copy of it, or start the run again with --overwrite."
    )
    shutil.copytree(tmp_path / "kept", older)
    with pytest.raises(
        CheckpointError, match="'step-9' beside it is whole: remove 'step-10' and resume from there"
    ):
        folder.state(newest)
    (older / "weights").unlink()
    with pytest.raises(CheckpointError, match="Put back a copy of it"):
        folder.state(newest)


def test_a_summary_of_a_shorter_run_does_not_outlive_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoint(state(2), saves("two"))
    folder.write_summary({"iterations": 2})
    folder.checkpoint(replace(state(2), evaluated=2), saves("two"))  # the same weights, evaluated
    assert folder.summary() == {"iterations": 2}
    folder.checkpoint(state(4), saves("four"))
    assert folder.summary() is None


def test_a_copy_of_a_checkpoint_is_left_alone_and_what_a_kill_left_goes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    shutil.copytree(folder.checkpoint(state(4), saves("four")), tmp_path / "checkpoints" / "step-4-best")
    (tmp_path / "checkpoints" / ".step-5.partial").mkdir()
    assert [path.name for path in folder.checkpoints()] == ["step-4"]
    folder.checkpoint(state(6), saves("six"))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-4-best", "step-6"]


@pytest.mark.parametrize("name", ["x" * 129, "a\0b", " ", "a\n", ".a", "", "a/b", "[bold]", "\ud800"])
def test_a_name_that_is_no_plain_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name must be a plain folder name"):
        Recipe(env=EnvConfig(id="courier"), name=name)


def test_an_iteration_is_saved_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoint(state(1), saves("first"))
    assert (folder.checkpoint(state(1), saves("second")) / "weights").read_text() == "first"
    later = replace(state(1), evaluated=1)
    assert folder.state(folder.checkpoint(later, saves("third"))) == later


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for content in ("", "{}", "[]"):
        (tmp_path / "trainer.json").write_text(content)
        with pytest.raises(CheckpointError, match="trainer.json cannot be read"):
            RunFolder.state(tmp_path)


# --- metrics, summary ---------------------------------------------------------------------------------


def test_a_last_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.metrics() == []
    folder.append_metrics({"iteration": 1, "reward/mean": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "rew')
    assert folder.metrics() == [{"iteration": 1, "reward/mean": 0.5}]


def test_a_line_of_metrics_that_is_none_is_told(tmp_path: Path) -> None:
    for line in ("{1}", "3"):
        (tmp_path / "metrics.jsonl").write_text(f'{{"iteration": 1}}\n{line}\n')
        with pytest.raises(
            CheckpointError, match=r"metrics.jsonl:2 is no line of figures: .* Remove the line"
        ):
            RunFolder(tmp_path).metrics()


def test_figures_that_are_not_finite_are_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_metrics({"iteration": 1, "a": float("nan"), "b": float("inf"), "c": 1})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=str) == {"iteration": 1, "a": None, "b": None, "c": 1}


def test_what_will_be_played_again_is_forgotten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in (0, 1, 2, 3):
        folder.append_metrics({"iteration": iteration})
        for split in ("train", "eval"):
            path = file_path(tmp_path, iteration=iteration, split=split)
            path.parent.mkdir(exist_ok=True)
            path.touch()
    (tmp_path / "trajectories" / "notes.parquet").touch()
    (tmp_path / "trajectories" / f".000001-train.parquet.{'0' * 32}.tmp").touch()  # left by kills, all three
    (tmp_path / ".metrics.jsonl.partial").touch()
    (tmp_path / "checkpoints" / ".step-3.partial").mkdir(parents=True)
    (tmp_path / "trajectories" / "000003-best.parquet").touch()
    folder.append_metrics({"iteration": 1, "eval/reward": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"cut')
    folder.forget_after(1, evaluated=0)
    assert [line["iteration"] for line in folder.metrics()] == [0, 1]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")
    assert sorted(path.name for path in (tmp_path / "trajectories").iterdir()) == [
        "000000-eval.parquet",
        "000000-train.parquet",
        "000001-train.parquet",
        "000003-best.parquet",
        "notes.parquet",
    ]
    assert not [path for path in tmp_path.rglob(".*")]


def test_the_summary_is_there_when_it_is_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.summary() is None
    folder.write_summary({"success_after": 0.5, "eval_tasks": 4})
    assert folder.summary() == {"success_after": 0.5, "eval_tasks": 4}


def test_writing_whole_leaves_nothing_aside(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    write_whole(tmp_path / "file", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


def test_a_kill_while_a_run_is_made_leaves_no_folder_in_the_way(tmp_path: Path) -> None:
    """The folder has its name only when its recipe is in it."""
    (tmp_path / ".a.partial").mkdir()
    (tmp_path / ".a.partial" / "given.json").write_text("{}")
    folder = RunFolder.create(recipe(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in folder.path.iterdir()] == ["config.toml"]


# --- odd things on the disk ---------------------------------------------------------------------------


def test_a_run_folder_may_be_a_link_and_replacing_it_keeps_the_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "big disk"
    elsewhere.mkdir()
    (tmp_path / "a").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="exists"):
        RunFolder.create(recipe(tmp_path))
    folder = RunFolder.create(recipe(tmp_path), overwrite=True)
    folder.append_metrics({"iteration": 1})
    RunFolder.create(recipe(tmp_path), overwrite=True)
    assert (tmp_path / "a").is_symlink() and (elsewhere / "config.toml").is_file()
    assert not (elsewhere / "metrics.jsonl").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "big disk"]


@pytest.mark.parametrize("content", [b"", b'{"success_after": 0.', b"\xff\xfe", b"[1]"])
def test_a_summary_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder.create(recipe(tmp_path))
    (folder.path / "summary.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="summary.json"):
        folder.summary()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\n", "cannot be read"),
        (b'{"reward/mean": 1.0}\n', "its iteration is None"),
        (b'{"iteration": "2"}\n', "its iteration is '2'"),
    ],
)
def test_a_line_of_metrics_that_is_none_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    folder = RunFolder.create(recipe(tmp_path))
    (folder.path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        folder.metrics()


@pytest.mark.parametrize("field", ["iteration", "evaluated", "cursor"])
@pytest.mark.parametrize("value", ["2", -2, 1.5, None, True])
def test_a_state_that_no_run_was_ever_in_is_refused(tmp_path: Path, field: str, value: object) -> None:
    folder = RunFolder.create(recipe(tmp_path))
    saved = folder.checkpoint(state(4), saves("w"))
    held = json.loads((saved / "trainer.json").read_text())
    (saved / "trainer.json").write_text(json.dumps({**held, field: value}))
    with pytest.raises(CheckpointError, match=f"trainer.json cannot be read: {field} is"):
        folder.state(saved)
