"""A disk that is full ends the run with a message; what was safe before is safe after.

A limit on the size of files (RLIMIT_FSIZE) makes real writes fail, for root as well; /dev/full is always
full.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from training import DICE, Brisk, dealt, quiet, recipe_of, run_briskly, same_weights

from steprl.errors import StorageError
from steprl.trainers.parts import build_parts
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.curves import draw
from steprl.trainers.storage.durable import write_folder, write_whole
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import write


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within, no file can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def left(folder: Path) -> list[str]:
    """Everything in a folder, by name."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    with files_up_to(100), pytest.raises(StorageError) as caught:
        write_whole(tmp_path / "file", "new" * 100)
    assert str(caught.value).startswith(f"'{tmp_path / 'file'}' cannot be written: File too large (")
    assert str(caught.value).endswith(" are free there).")
    assert (tmp_path / "file").read_text() == "old" and left(tmp_path) == ["file"]


def test_a_folder_is_written_whole_or_is_not_there(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "small").write_text("fits")
        (folder / "large").write_text("does not" * 100)

    with (
        files_up_to(100),
        pytest.raises(StorageError, match=r"/folder' cannot be written: File too large \("),
    ):
        write_folder(tmp_path / "folder", fill)
    assert left(tmp_path) == []
    write_folder(tmp_path / "folder", fill)
    assert left(tmp_path) == ["folder", "folder/large", "folder/small"]


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_folder(tmp_path / "folder", fill)
    assert left(tmp_path) == []


def test_metrics_on_a_full_disk_are_told(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="metrics.jsonl' cannot be written: No space left on device"):
        RunFolder(tmp_path).append_metrics({"iteration": 1})


def test_trajectories_on_a_full_disk_are_told_and_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trajectories" / "000001-train.parquet"
    with files_up_to(100), pytest.raises(StorageError, match="parquet' cannot be written: File too large"):
        write(path, [], iteration=1)
    assert left(tmp_path) == ["trajectories"]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written: Not a directory"):
        write(tmp_path / "file" / "a.parquet", [], iteration=1)


def test_curves_on_a_full_disk_are_told_and_the_old_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    assert draw([], path, title="a") is None
    before = path.read_bytes()
    with files_up_to(100), pytest.raises(StorageError, match="curves.png' cannot be written: File too large"):
        draw([], path, title="a")
    assert path.read_bytes() == before and left(tmp_path) == ["curves.png"]


def test_a_picture_that_cannot_be_drawn_is_told_and_no_reason_to_stop(tmp_path: Path) -> None:
    told = draw([{"iteration": 1, "reward/mean": {}}], tmp_path / "a.png", title="a")
    assert told is not None and told.startswith("a.png could not be drawn: TypeError: ")
    assert left(tmp_path) == []


@pytest.fixture(scope="module")
def straight(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations that nothing interrupted."""
    return run_briskly(recipe(tiny_policy, tmp_path_factory.mktemp("straight")))


def recipe(policy: str, runs: Path) -> Recipe:
    return recipe_of(DICE, policy, runs, "evaluation.tasks=0")


@pytest.mark.parametrize("filled_by", ["model.safetensors", "optimiser.pt"])
def test_a_run_ends_with_what_is_safe_and_goes_on_when_there_is_room(
    tiny_policy: str, tmp_path: Path, straight: Path, filled_by: str
) -> None:
    """The checkpoint of iteration 2 fits; before that of iteration 4 the disk gets full."""
    settings = recipe(tiny_policy, tmp_path)
    sizes = {file.name: file.stat().st_size for file in RunFolder(straight).checkpoints()[-1].iterdir()}
    assert (
        sizes["optimiser.pt"]
        > sizes["model.safetensors"]
        > max(size for name, size in sizes.items() if name not in ("optimiser.pt", "model.safetensors"))
    )

    class Filling(Brisk):
        def save(self) -> Path:
            if self.iteration < 4:
                return super().save()
            with files_up_to(sizes[filled_by] - 1):
                return super().save()

    folder = RunFolder.create(settings)
    with pytest.raises(StorageError) as caught, folder.locked():
        Filling(settings, build_parts(settings), folder, quiet()).run()
    told = str(caught.value)
    assert told.startswith(f"'{folder.path}/checkpoints/step-4' cannot be written: File too large (")
    assert told.endswith(
        f"The checkpoint of iteration 2 is whole. Make room and continue with: "
        f"steprl train --resume {folder.path}"
    )
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["step-2"]
    run_briskly(settings, resume=folder.path)
    assert same_weights(folder.path, straight) and dealt(folder.path) == dealt(straight)


def test_without_a_checkpoint_the_message_says_so(tiny_policy: str, tmp_path: Path) -> None:
    settings = recipe(tiny_policy, tmp_path)
    folder = RunFolder.create(settings)
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(
        StorageError, match=r"Nothing is saved yet\. Make room and continue with: steprl train"
    ):
        with folder.locked():
            folder.append_metrics({"iteration": 1})
