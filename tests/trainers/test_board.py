"""TensorBoard shows each figure of each iteration once, also after a run was resumed."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from steprl.trainers.storage.board import open_board, record


def shown(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard finds: steps and values by tag."""
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: [(event.step, round(float(make_ndarray(event.tensor_proto)), 6)) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def test_what_is_played_again_is_shown_once(tmp_path: Path) -> None:
    writer = open_board(tmp_path, [])
    for iteration in (1, 2, 3):
        record(writer, {"iteration": iteration, "reward/mean": 0.1 * iteration})
    writer.close()
    assert shown(tmp_path) == {"reward/mean": [(1, 0.1), (2, 0.2), (3, 0.3)]}

    writer = open_board(tmp_path, [{"iteration": 1, "reward/mean": 0.1}])  # a checkpoint was made at 1
    record(writer, {"iteration": 2, "reward/mean": 0.5})
    writer.close()
    assert shown(tmp_path) == {"reward/mean": [(1, 0.1), (2, 0.5)]}


def test_a_figure_that_is_not_finite_is_no_point(tmp_path: Path) -> None:
    open_board(tmp_path, [{"iteration": 1, "a": None, "b": 1, "c": float("nan")}]).close()
    assert shown(tmp_path) == {"b": [(1, 1.0)]}


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "notes.txt").write_text("mine")
    open_board(tmp_path, []).close()
    assert (tmp_path / "tensorboard" / "notes.txt").exists()
