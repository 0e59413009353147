"""The order of tasks: every task once per epoch, another order in each, and a position to go on from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import guesses

from steprl.errors import TaskError
from steprl.trainers.cursor import TaskCursor


def taken(cursor: TaskCursor, *counts: int) -> list[str]:
    return [task.id for count in counts for task in cursor.take(count)]


@given(n=st.integers(1, 9), seed=st.integers(0, 5), counts=st.lists(st.integers(0, 7), max_size=8))
def test_every_task_comes_once_per_epoch_however_they_are_taken(n: int, seed: int, counts: list[int]) -> None:
    tasks = guesses(n)
    ids = taken(TaskCursor(tasks, seed=seed), *counts)
    assert len(ids) == sum(counts)
    for start in range(0, len(ids), n):
        epoch = ids[start : start + n]
        assert len(set(epoch)) == len(epoch)
    assert ids == taken(TaskCursor(tasks, seed=seed), sum(counts))


@given(n=st.integers(1, 9), before=st.integers(0, 30), after=st.integers(1, 30))
def test_a_position_is_all_that_is_needed_to_go_on(n: int, before: int, after: int) -> None:
    cursor = TaskCursor(guesses(n), seed=1)
    cursor.take(before)
    assert cursor.position == before
    resumed = TaskCursor(guesses(n), seed=1)
    resumed.position = before
    assert taken(resumed, after) == taken(cursor, after)


def test_orders_differ_between_epochs_and_seeds() -> None:
    tasks = guesses(12)
    epochs = TaskCursor(tasks, seed=0)
    first = taken(epochs, 12)
    assert first != [task.id for task in tasks]
    assert first != taken(epochs, 12)
    assert first != taken(TaskCursor(tasks, seed=1), 12)


def test_no_tasks_are_refused() -> None:
    with pytest.raises(TaskError, match="no tasks"):
        TaskCursor([], seed=0)
