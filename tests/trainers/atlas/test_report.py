from pathlib import Path

import pytest

from steprl.trainers.atlas.report import by_rule, by_world, entries, picture, placed
from steprl.trainers.atlas.subjects import SUBJECTS
from steprl.trainers.atlas.worlds import BY_NAME, WORLDS

PAGE = Path(__file__).parents[3] / "docs" / "atlas.md"
SUBJECT = {subject.name: subject for subject in SUBJECTS}
FRESH = [world for world in WORLDS if not world.stale]


def _part(name: str) -> list[str]:
    page = PAGE.read_text(encoding="utf-8")
    return page.split(f"<!-- {name} -->")[1].split(f"<!-- end {name} -->")[0].strip().splitlines()


def test_the_page_has_every_world_and_estimator() -> None:
    assert [line.split(" | ")[0].removeprefix("| ") for line in _part("worlds")[2:]] == list(BY_NAME)
    for part in ("rules", "bias", "bias by default", "noise"):
        assert [line.split(" | ")[0].removeprefix("| ") for line in _part(part)[2:]] == list(SUBJECT)


@pytest.mark.parametrize("name", ["rloo", "grpo", "gae step, plain, lam 0, continuations (VinePPO)"])
def test_the_page_says_what_is_measured(name: str) -> None:
    found = entries(SUBJECT[name], FRESH)
    assert by_rule(found)[2] in _part("rules")
    assert by_world(found, lambda e: e.bias, rule="traj_mean_token_sum")[2] in _part("bias")
    assert by_world(found, lambda e: e.bias, rule="traj_mean_token_mean")[2] in _part("bias by default")
    assert by_world(found, lambda e: e.noise, rule="traj_mean_token_sum")[2] in _part("noise")


def test_cells() -> None:
    found = entries(SUBJECT["rloo"], [BY_NAME["bandit"], BY_NAME["deadline"]])
    assert by_world(found, lambda e: e.bias, rule="token_mean") == [
        "|  | bandit | deadline |",
        "|---|---|---|",
        "| rloo | **0** | 0.083 |",
    ]
    assert found[0].as_json()["claimed_constant"] == 1
    assert picture(found, ["token_mean"]).startswith(b"\x89PNG")


def test_parts_are_put_between_their_marks() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end a -->\nafter\n"
    assert placed(page, {"a": ["new", "lines"]}) == "before\n<!-- a -->\nnew\nlines\n<!-- end a -->\nafter\n"
    with pytest.raises(ValueError, match="<!-- b -->"):
        placed(page, {"b": []})
