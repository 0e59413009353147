"""What a report says of attempts, and two reports of each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attempted import attempt, table

from steprl.errors import ConfigError
from steprl.trainers.evaluation.attempts import Attempt, Solved, attempt_from
from steprl.trainers.evaluation.diff import Kept, difference, lines, load
from steprl.trainers.evaluation.diff import rows as rows_of_difference
from steprl.trainers.evaluation.report import report_of, rows

FOUR = table([1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0])


def means(figures: dict[str, Any]) -> dict[str, float]:
    return {k: pytest.approx(interval["mean"]) for k, interval in figures.items()}


def test_every_estimate_is_the_mean_over_tasks() -> None:
    report = report_of(FOUR, Solved())
    assert (report["tasks"], report["samples"], report["errors"]) == (3, 4, 0)
    assert {"1": (1 + 0.5) / 3, "2": (1 + 5 / 6) / 3, "4": 2 / 3} == means(report["pass@k"])
    assert {"1": (1 + 0.5) / 3, "2": (1 + 1 / 6) / 3, "4": 1 / 3} == means(report["pass^k"])
    assert report["success"] == report["pass@k"]["1"]["mean"] == pytest.approx(0.5)
    assert report["left_out"] is None
    shown = dict(rows(report))
    assert shown["pass@1"].startswith("0.500  [") and shown["pass^4"].startswith("0.333  [")
    assert "pass^1" not in shown and "pass@1, errors left out" not in shown


def test_faults_count_as_wrong_and_are_left_out_beside_it() -> None:
    report = report_of(table([1, "scorer"], ["environment", "scorer"], [1, 0]), Solved())
    assert means(report["pass@k"]) == {"1": 1 / 3, "2": 2 / 3}
    assert means(report["left_out"]["pass@k"]) == {"1": 0.75, "2": 1.0}
    assert report["left_out"]["pass@k"]["1"]["tasks"] == 2 and report["left_out"]["pass@k"]["2"]["tasks"] == 1
    assert report["reward"] == pytest.approx(2 / 3) and report["errors"] == 3
    shown = dict(rows(report))
    assert shown["scorer errors"] == "2 attempts at 2 tasks (2 ScorerError)"
    assert shown["environment errors"] == "1 attempts at 1 tasks (1 OSError)"
    assert shown["pass@1, errors left out"].startswith("0.750  [")


def test_a_threshold_or_another_component_says_what_is_solved() -> None:
    graded = [
        attempt(0, 0, 0.6, reward=0.2, components={"outcome": 0.6, "f1": 0.9}),
        attempt(1, 0, 0.3, reward=0.9, components={"outcome": 0.3, "f1": 0.1}),
    ]
    assert report_of(graded, Solved())["success"] == 0.0
    assert report_of(graded, Solved(threshold=0.5))["success"] == 0.5
    assert report_of(graded, Solved(by="f1", threshold=0.05))["success"] == 1.0
    assert report_of(graded, Solved(by="reward", threshold=0.9))["success"] == 0.5
    found = report_of(graded, Solved())["means"]
    assert {name: found[name]["mean"] for name in found} == pytest.approx(
        {"reward": 0.55, "f1": 0.5, "outcome": 0.45}
    )


def test_nothing_said_is_no_zero_but_a_limit_is() -> None:
    silent = report_of([attempt(0, 0, None), attempt(1, 0, None)], Solved())
    assert silent["success"] is None and silent["pass@k"] is None
    assert "no episode reported 'outcome'" in dict(rows(silent))["pass@1"]
    limited = report_of([attempt(0, 0, None, stop_reason="max_steps")], Solved())
    assert limited["success"] == 0.0 and limited["pass@k"]["1"]["low"] is None
    assert limited["stop_reasons"] == {"max_steps": 1}
    assert report_of([attempt(0, 0, None), attempt(1, 0, 1.0)], Solved())["success"] == 0.5


def test_a_component_that_a_scored_attempt_lacks_is_zero_there() -> None:
    found = report_of([attempt(0, 0, 1.0), attempt(1, 0, None, stop_reason="max_steps")], Solved())
    assert found["means"]["outcome"]["mean"] == 0.5


def test_an_attempt_is_read_back_as_it_was_written() -> None:
    for one in table([1.0, "scorer", None]):
        assert attempt_from(json.loads(json.dumps(one.to_json()))) == one
    with pytest.raises(ConfigError, match="this is no attempt of an evaluation: {'a': 1}"):
        attempt_from({"a": 1})


# --- two of them --------------------------------------------------------------------------------------


def kept(name: str, attempts: list[Attempt], *, solved: Solved | None = None, **options: Any) -> Kept:
    return Kept(path=Path(name), solved=solved or Solved(), options=options, attempts=tuple(attempts))


def test_a_difference_is_paired_by_task() -> None:
    a = kept("a", table([1], [0], [0], [0], [0], [0]), seed=0, path="x")
    b = kept("b", table([0], [1], [1], [1], [1], [0]), seed=0, path="y")
    found = difference(a, b)
    solved = found["solved"]
    assert solved["counted_as_wrong"]["difference"]["mean"] == pytest.approx(0.5)
    assert (solved["better"], solved["worse"], solved["same"]) == (4, 1, 1)
    assert solved["p"] == pytest.approx(2 * (1 + 5) / 32)
    assert solved["only_a"] == {"tasks": 1, "examples": ["t0"]}
    assert solved["only_b"] == {"tasks": 4, "examples": ["t1", "t2", "t3", "t4"]}
    assert found["options"] == {"path": ["x", "y"]}
    assert rows_of_difference(found)[0][:3] == ("pass@1", "0.167", "0.667")
    told = lines(found)
    assert told[0] == "better in B: 4 tasks, worse: 1, the same: 1; exact sign test p = 0.375"
    assert "solved by A and never by B: 1: t0" in told and "differs: path is 'x' in A and 'y' in B" in told
    back = difference(b, a)["solved"]["counted_as_wrong"]["difference"]
    assert back["mean"] == -solved["counted_as_wrong"]["difference"]["mean"]


def test_an_evaluation_does_not_differ_from_itself() -> None:
    found = difference(kept("a", FOUR), kept("b", FOUR))
    assert found["solved"]["p"] == 1.0 and found["solved"]["same"] == found["tasks"] == 3
    gap = found["means"]["reward"]["difference"]
    assert (gap["mean"], gap["low"], gap["high"]) == (0.0, 0.0, 0.0)


def test_pairing_is_narrower_than_two_intervals_where_tasks_differ_in_difficulty() -> None:
    """Half of the tasks are always solved, half never, and B solves a few more."""
    a = table(*([[1]] * 40 + [[0]] * 40))
    b = table(*([[1]] * 44 + [[0]] * 36))
    gap = difference(kept("a", a), kept("b", b))["solved"]["counted_as_wrong"]["difference"]
    alone = report_of(a, Solved())["pass@k"]["1"]
    assert gap["low"] > 0 and gap["high"] - gap["low"] < (alone["high"] - alone["low"]) / 2


def test_attempts_that_a_fault_spoiled_in_either_are_left_out_of_both() -> None:
    found = difference(kept("a", table([1], ["scorer"], [0])), kept("b", table([1], [1], ["environment"])))
    assert found["solved"]["faults"] == 2
    assert found["solved"]["counted_as_wrong"]["b"] == pytest.approx(2 / 3)
    assert found["solved"]["left_out"]["difference"]["tasks"] == 1
    assert found["means"]["reward"]["difference"]["tasks"] == 1


def test_other_tasks_seeds_or_attempts_are_refused_and_told() -> None:
    a, longer = kept("a", table([1], [0])), kept("b", table([1], [0], [1]))
    with pytest.raises(ConfigError, match="1 tasks are in 'b' alone .t2….*compare what they have in common"):
        difference(a, longer)
    assert difference(a, longer, common=True)["tasks"] == 2
    with pytest.raises(
        ConfigError, match="1 attempts at common tasks are in 'b' alone .other seeds, or more"
    ):
        difference(kept("a", table([1])), kept("b", table([1, 0])))
    elsewhere = kept("b", [attempt(0, 0, 1, seed=9), attempt(1, 0, 1, seed=9)])
    with pytest.raises(ConfigError, match="2 attempts at common tasks are in 'a' alone"):
        difference(a, elsewhere)
    with pytest.raises(ConfigError, match="have no task with the same seeds in common"):
        difference(a, elsewhere, common=True)
    with pytest.raises(ConfigError, match="differ in what counts as solved: outcome >= 1 and f1 >= 0.5"):
        difference(a, kept("b", table([1], [0]), solved=Solved(by="f1", threshold=0.5)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no evaluation"),
        ("{", "is no evaluation that 'steprl eval --out' wrote: JSONDecodeError"),
        ('{"tasks": 4}', "wrote: KeyError: 'format'"),
        ('{"format": 99}', "has format 99, this steprl reads 1"),
    ],
)
def test_what_is_no_evaluation_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path)


def test_an_unfinished_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not finished: give its command again"):
        load(tmp_path)


def test_what_the_agent_broke_or_a_limit_ended_is_not_solved_rather_than_unknown() -> None:
    solved = Solved(by="outcome", threshold=1.0)
    broken = [attempt(0, 0, None, by_agent=True), attempt(1, 0, None, stop_reason="max_steps")]
    assert report_of(broken, solved)["success"] == 0.0
    assert report_of([attempt(0, 0, None), *broken[1:]], solved)["success"] is None
