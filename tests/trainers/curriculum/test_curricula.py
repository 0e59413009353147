"""Which tasks a curriculum deals: what stays true of every draw, and that a checkpoint is all it needs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from episodes import grouped, step, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import guesses

from steprl.config import build
from steprl.errors import CheckpointError, ConfigError, TaskError
from steprl.trainers.curriculum.build import cursor_of
from steprl.trainers.curriculum.by_difficulty import ByDifficulty
from steprl.trainers.curriculum.by_success import BySuccess
from steprl.trainers.cursor import Cursor, TaskCursor
from steprl.trainers.recipe import Recipe
from steprl.types import StopReason, Task, TrajectoryGroup


def played(task: Task, solved: int, size: int = 4, *, place: int = 0) -> TrajectoryGroup:
    """A group of the task of which so many are solved."""
    uid = f"{task.id}-{place}"
    made = (
        trajectory(f"{uid}.{n}", [step([1], [2], reward=r, rewards={"outcome": r})], group=uid)
        for n, r in enumerate([1.0] * solved + [0.0] * (size - solved))
    )
    (group,) = grouped(*made)
    return group


def iterate(cursor: Cursor, count: int, skill: dict[str, int], rounds: int = 1) -> list[str]:
    """An iteration that takes ``count`` tasks in each of its rounds; of each task, ``skill`` are solved."""
    tasks = [task for _ in range(rounds) for task in cursor.take(count)]
    cursor.note([played(task, skill[task.id], place=n) for n, task in enumerate(tasks)])
    return [task.id for task in tasks]


def levels(*difficulties: Any) -> list[Task]:
    return [Task(id=f"task-{n}", data={"level": level}) for n, level in enumerate(difficulties)]


def recipe(**curriculum: Any) -> Recipe:
    return build(Recipe, {"env": {"id": "courier"}, "curriculum": curriculum})


# --- by success ---------------------------------------------------------------------------------------


def test_weights_by_hand() -> None:
    cursor = BySuccess(guesses(4), seed=0, floor=0.2)
    assert cursor.chances().tolist() == pytest.approx([0.25] * 4)
    for index, solved in ((0, 0), (1, 4), (2, 8)):
        cursor.learn(index, played(guesses(4)[index], solved, 8))
    # 4ab/((a+b)(a+b+1)) of Beta(1, 9), Beta(5, 5) and Beta(9, 1); the last task is unseen
    weights = [4 * 9 / 110, 4 * 25 / 110, 4 * 9 / 110, 1.0]
    expected = [0.05 + 0.8 * weight / sum(weights) for weight in weights]
    assert cursor.chances().tolist() == pytest.approx(expected)


def test_tasks_solved_now_and_then_come_most_often_and_the_others_keep_coming() -> None:
    tasks = guesses(9)
    skill = {task.id: (0, 2, 4)[n % 3] for n, task in enumerate(tasks)}
    cursor = BySuccess(tasks, seed=3, floor=0.1)
    seen = Counter(task for _ in range(200) for task in iterate(cursor, 2, skill))
    by_skill = Counter({s: sum(seen[t.id] for t in tasks if skill[t.id] == s) for s in (0, 2, 4)})
    assert by_skill[2] > 3 * max(by_skill[0], by_skill[4])
    assert min(seen.values()) >= 3 and len(seen) == 9


@given(
    n=st.integers(1, 7),
    floor=st.floats(0.01, 1.0),
    solved=st.lists(st.integers(0, 4), max_size=12),
    decay=st.sampled_from([1.0, 0.5, 0.0]),
)
def test_every_task_has_at_least_its_share_of_the_floor(
    n: int, floor: float, solved: list[int], decay: float
) -> None:
    cursor = BySuccess(guesses(n), seed=0, floor=floor, decay=decay)
    for number, count in enumerate(solved):
        cursor.learn(number % n, played(guesses(n)[number % n], count))
    chances = cursor.chances()
    assert chances.sum() == pytest.approx(1.0)
    assert (chances >= floor / n * (1 - 1e-9)).all()


CURSORS: dict[str, Any] = {
    "shuffled": lambda n: TaskCursor(guesses(n), seed=1),
    "by_success": lambda n: BySuccess(guesses(n), seed=1, decay=0.7, remember=4),
    "by_difficulty": lambda n: ByDifficulty(levels(*range(n)), seed=1, key="level", until=9, start=0.4),
}


@pytest.mark.parametrize("kind", CURSORS)
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 7),
    takes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=6),
    cut=st.integers(0, 5),
    data=st.data(),
)
def test_a_resumed_curriculum_deals_the_same_tasks(
    kind: str, n: int, takes: list[list[int]], cut: int, data: st.DataObject
) -> None:
    """Position and state, through JSON, are all that is needed; an iteration that was given up is no trace;
    and whether its tasks are taken at once or in rounds makes no difference."""
    skill = {f"task-{i}": data.draw(st.integers(0, 4)) for i in range(n)}
    straight: Cursor = CURSORS[kind](n)
    resumed: Cursor = CURSORS[kind](n)
    dealt = []
    for number, rounds in enumerate(takes):
        if number == cut:
            given_up, state = straight.position, json.loads(json.dumps(straight.state()))
            straight.take(3)
            straight.position = given_up
            resumed = CURSORS[kind](n)
            resumed.position = given_up
            resumed.restore(state)
        tasks = [task for count in rounds for task in straight.take(count)]
        dealt.append([task.id for task in tasks])
        assert [task.id for task in resumed.take(sum(rounds))] == dealt[-1]
        for cursor in (straight, resumed):
            cursor.note([played(task, skill[task.id], place=i) for i, task in enumerate(tasks)])
    assert resumed.state() == straight.state() and resumed.metrics() == straight.metrics()
    assert straight.position == sum(map(sum, takes)) == len([task for part in dealt for task in part])
    if kind == "by_success":
        for part in dealt:  # none twice before all have come
            for start in range(0, len(part), n):
                assert len(set(part[start : start + n])) == len(part[start : start + n])


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    tasks = guesses(50)
    cursor = BySuccess(tasks, seed=0, remember=8)
    for index in range(20):
        cursor.learn(index, played(tasks[index], 2))
    cursor.learn(12, played(tasks[12], 2))  # played again: it is the newest now
    assert [entry[0] for entry in cursor.state()["successes"]] == [13, 14, 15, 16, 17, 18, 19, 12]
    chances = cursor.chances()
    assert len({float(chances[i]) for i in (*range(12), *range(20, 50))}) == 1, "forgotten is unseen"
    assert cursor.metrics()["curriculum/seen_share"] == 8 / 50


def test_decay_forgets_what_was_long_ago() -> None:
    task = guesses(1)[0]
    for decay, expected in ((1.0, (4.0, 8.0)), (0.5, (4.0, 6.0)), (0.0, (4.0, 4.0))):
        cursor = BySuccess([task], seed=0, decay=decay)
        cursor.learn(0, played(task, 0))
        cursor.learn(0, played(task, 4))
        assert cursor.state() == {"successes": [[0, *expected]]}


def test_only_episodes_that_count_say_how_difficult_a_task_is() -> None:
    late = trajectory("late", [step([1], [2], reward=0.0)], stop_reason=StopReason.DEADLINE)
    cut = trajectory("cut", [step([1], [2], reward=0.0)], stop_reason=StopReason.MAX_STEPS)
    done = trajectory("done", [step([1], [2], reward=1.0, rewards={"outcome": 1.0})])
    (group,) = grouped(late, cut, done)
    cursor = BySuccess(guesses(2), seed=0)
    cursor.learn(1, group)
    assert cursor.state() == {"successes": [[1, 1.0, 2.0]]}
    (broken,) = grouped(late)
    cursor.learn(0, broken)
    assert cursor.metrics()["curriculum/seen_share"] == 0.5


def test_the_difficulty_of_what_was_played_is_told() -> None:
    cursor = BySuccess(guesses(8), seed=0)
    assert cursor.metrics() == {"curriculum/seen_share": 0.0}
    for index, solved in enumerate((0, 1, 4, 4)):
        cursor.learn(index, played(guesses(8)[index], solved))
    assert cursor.metrics() == {
        "curriculum/seen_share": 0.5,
        "curriculum/success": pytest.approx(2.25 / 4),
        "curriculum/never_solved_share": 0.25,
        "curriculum/sometimes_solved_share": 0.25,
        "curriculum/always_solved_share": 0.5,
    }


@pytest.mark.parametrize("state", [[[9, 1.0, 2.0]], [[0, 3.0, 2.0]], [[0, 1.0]], [["0", 1.0, 2.0]], 7])
def test_a_state_of_other_tasks_is_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match="not of these 3 tasks.* Resume with the tasks"):
        BySuccess(guesses(3), seed=0).restore({"successes": state})


# --- by difficulty ------------------------------------------------------------------------------------


def test_the_easiest_come_first_and_the_share_grows_until_all_are_in() -> None:
    cursor = ByDifficulty(levels(5, 1, 4, 2, 3), seed=0, key="level", until=40, start=0.2)
    assert [cursor.size(position) for position in (0, 9, 10, 20, 30, 39, 40, 99)] == [1, 1, 2, 3, 4, 4, 5, 5]
    dealt = [[task.data["level"] for task in cursor.take(1)][0] for _ in range(40)]
    assert dealt[:10] == [1] * 10
    for position, level in enumerate(dealt):
        assert level <= cursor.size(position)
    assert set(dealt) == {1, 2, 3, 4}
    after = [task.data["level"] for task in cursor.take(10)]
    assert sorted(after[:5]) == sorted(after[5:]) == [1, 2, 3, 4, 5], "then every task once per epoch"
    assert cursor.metrics() == {"curriculum/tasks_share": 1.0}


def test_high_numbers_can_be_the_easy_ones() -> None:
    cursor = ByDifficulty(levels(0.9, 0.1, 0.5), seed=0, key="level", until=100, start=0.34, easy="high")
    assert [task.data["level"] for task in cursor.take(3)] == [0.9] * 3


@given(n=st.integers(2, 8), count=st.integers(1, 8))
def test_a_task_comes_once_in_a_batch_that_is_no_larger_than_what_is_in(n: int, count: int) -> None:
    cursor = ByDifficulty(levels(*range(n)), seed=0, key="level", until=1000, start=1.0)
    dealt = [task.id for task in cursor.take(min(n, count))]
    assert len(set(dealt)) == len(dealt)


def test_a_task_without_its_difficulty_is_named() -> None:
    with pytest.raises(TaskError, match="task 'b' has no data 'level'.* It has: hops"):
        ByDifficulty(
            [Task(id="a", data={"level": 1}), Task(id="b", data={"hops": 1})], seed=0, key="level", until=4
        )
    with pytest.raises(
        TaskError, match="task 'task-1': data 'level', its difficulty, must be a finite number"
    ):
        ByDifficulty(levels(1, "hard"), seed=0, key="level", until=4)


# --- from a recipe ------------------------------------------------------------------------------------


def test_by_default_tasks_come_as_they_always_did() -> None:
    cursor = cursor_of(recipe(), guesses(6))
    assert type(cursor) is TaskCursor and cursor.state() == {} and cursor.metrics() == {}


class Backwards(Cursor):
    """From the last task to the first."""

    def pick(self, position: int, dealt: Any) -> int:
        return -1 - position % len(self.tasks)


def test_one_of_ones_own_is_named_by_its_module() -> None:
    cursor = cursor_of(recipe(id="test_curricula:Backwards"), guesses(3))
    assert [task.id for task in cursor.take(4)] == ["task-2", "task-1", "task-0", "task-2"]
    cursor.note([played(task, 1) for task in guesses(4)])
    assert cursor.state() == {}


@pytest.mark.parametrize(
    ("curriculum", "message"),
    [
        ({"id": "by_sucess"}, "unknown curriculum 'by_sucess'. Did you mean 'by_success'?"),
        ({"args": {"floor": 0.1}}, "curriculum.args = {'floor': 0.1} without a curriculum.id"),
        ({"id": "by_success", "args": {"flor": 1}}, "curriculum 'by_success' does not take these options"),
        (
            {"id": "by_success", "args": {"floor": 0}},
            "curriculum.args.floor is 0; it must be a number above 0",
        ),
        (
            {"id": "by_success", "args": {"decay": 2}},
            "curriculum.args.decay is 2; it must be a number from 0",
        ),
        ({"id": "by_success", "args": {"unseen": "x"}}, "curriculum.args.unseen is 'x'; it must be a number"),
        ({"id": "by_success", "args": {"remember": 0}}, "it must be a number of tasks, 1 or more"),
        ({"id": "by_difficulty", "args": {"key": "level"}}, "does not take these options"),
        ({"id": "by_difficulty", "args": {"key": "l", "until": 0}}, "curriculum.args.until is 0"),
        ({"id": "by_difficulty", "args": {"key": "l", "until": 1, "start": 0}}, "curriculum.args.start is 0"),
        ({"id": "by_difficulty", "args": {"key": "l", "until": 1, "easy": "hi"}}, "Known: high, low"),
        ({"id": "test_curricula:levels"}, "does not take these options"),
        ({"id": "builtins:dict"}, "does not take these options"),
    ],
)
def test_what_cannot_work_is_refused(curriculum: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cursor_of(recipe(**curriculum), guesses(3))
    assert message in str(caught.value)
