"""SIGKILL before every single change of the file system that a run's folder sees, one process each: what has
its name is whole, and the next attempt finds nothing in its way."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steprl.config import build
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trainers.storage.state import TrainerState

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def killed_before(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a forked process that is killed right before its ``number``-th change of the file
    system; False when it was done before that."""
    child = os.fork()
    if child == 0:
        changes = 0

        def watch(event: str, arguments: Any) -> None:
            nonlocal changes
            if event in CHANGES or (event == "open" and arguments[2] & WRITING):
                changes += 1
                if changes == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def every_kill(
    folder: Path, prepare: Callable[[Path], None], work: Callable[[Path], object]
) -> Iterator[Path]:
    """A folder for each moment at which the work can be killed: prepared, and the work cut there."""
    for number in range(1, 200):
        place = folder / str(number)
        place.mkdir()
        prepare(place)
        if not killed_before(number, lambda place=place: work(place)):  # type: ignore[misc]
            assert number > 3
            return
        yield place
    pytest.fail("it never ended")


def state(iteration: int, evaluated: int) -> TrainerState:
    return TrainerState(iteration=iteration, evaluated=evaluated, cursor=0, train_seconds=1.0, before={})


def save(folder: Path) -> None:
    (folder / "deep").mkdir()
    for name in ("weights", "optimiser", "deep/tokens"):
        (folder / name).write_text(name * 1000)


def test_a_checkpoint_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        RunFolder(place).checkpoint(state(1, 0), save)
        RunFolder(place).append_metrics({"iteration": 1})

    found = []
    for place in every_kill(tmp_path, prepare, lambda place: RunFolder(place).checkpoint(state(2, 0), save)):
        folder = RunFolder(place)
        newest = folder.state(folder.checkpoints()[-1])  # which refuses what is damaged
        found.append(newest.iteration)
        for saved in folder.checkpoints():
            folder.state(saved)
        folder.forget_after(newest.iteration, evaluated=newest.evaluated)
        assert [path for path in place.rglob(".*")] == []
        assert folder.metrics() == [{"iteration": 1}]
        last = folder.checkpoint(state(3, 0), save)
        assert list((place / "checkpoints").iterdir()) == [last] and folder.state(last) == state(3, 0)
    assert found == sorted(found) and set(found) == {1, 2}


def test_a_state_that_is_written_again_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        RunFolder(place).checkpoint(state(1, 0), save)

    def evaluated_and_summed_up(place: Path) -> None:
        RunFolder(place).checkpoint(state(1, 1), save)
        RunFolder(place).write_summary({"iterations": 1})

    found = []
    for place in every_kill(tmp_path, prepare, evaluated_and_summed_up):
        folder = RunFolder(place)
        found.append((folder.state(folder.checkpoints()[-1]).evaluated, folder.summary()))
    assert found[0] == (0, None) and found[-1] == (1, None)
    assert found == sorted(found, key=lambda pair: pair[0])


def recipe(place: Path) -> Recipe:
    return build(Recipe, {"env": {"id": "courier"}, "name": "a", "runs": str(place)})


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_folder_has_its_recipe_or_is_not_there(tmp_path: Path, overwrite: bool) -> None:
    given = {"script": True}

    def prepare(place: Path) -> None:
        if overwrite:
            RunFolder.create(recipe(place)).checkpoint(state(1, 0), save)

    def create(place: Path) -> None:
        RunFolder.create(recipe(place), given=given, overwrite=overwrite)

    for place in every_kill(tmp_path, prepare, create):
        if (place / "a").exists():
            folder, found = RunFolder.open(place / "a")
            assert found == recipe(place)
            for saved in folder.checkpoints():
                folder.state(saved)
            assert folder.given() == ({} if folder.checkpoints() else given)
        again = RunFolder.create(recipe(place), given=given, overwrite=(place / "a").exists())
        assert again.given() == given and again.checkpoints() == []
        assert [path.name for path in place.iterdir()] == ["a"]


def test_forgetting_can_be_cut_and_done_again(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        folder = RunFolder(place)
        (place / "trajectories").mkdir()
        for iteration in (1, 2, 3):
            folder.append_metrics({"iteration": iteration})
            (place / "trajectories" / f"{iteration:06d}-train.parquet").touch()

    for place in every_kill(tmp_path, prepare, lambda place: RunFolder(place).forget_after(1, evaluated=0)):
        RunFolder(place).forget_after(1, evaluated=0)
        assert RunFolder(place).metrics() == [{"iteration": 1}]
        assert [path.name for path in (place / "trajectories").iterdir()] == ["000001-train.parquet"]
        assert [path for path in place.rglob(".*")] == []
