"""docs/curricula.md says what there is: its recipe builds, its filter filters, all is named that there is."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from episodes import grouped, rewarded
from playing import guesses

from steprl.config import build
from steprl.registry import addresses, resolve
from steprl.trainers.curriculum.build import cursor_of
from steprl.trainers.filtering.choose import choose, filters_of
from steprl.trainers.recipe import Recipe
from steprl.types import StopReason

PAGE = (Path(__file__).parents[2] / "docs" / "curricula.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


def test_the_recipe_on_the_page_builds() -> None:
    recipe = build(Recipe, {"env": {"id": "courier"}, **tomllib.loads(block("toml"))})
    found = filters_of(recipe)
    assert [*found.of_groups, *found.of_trajectories] == ["informative", "no_repeats", "useful_calls"]
    assert cursor_of(recipe, guesses(3)).metrics() == {"curriculum/seen_share": 0.0}
    assert [recipe.rollout.limit(iteration) for iteration in (1, 2, 20, 21, 22)] == [4, 4, 15, 16, 16]


def test_the_filter_on_the_page_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_on_the_page.py").write_text(block("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    keep = {"mine_on_the_page:Answered": {"longest": 6}}
    recipe = build(Recipe, {"env": {"id": "courier"}, "filter": {"keep": keep}})
    cut = rewarded("cut", 0.0, stop_reason=StopReason.MAX_STEPS)
    groups = grouped(rewarded("a", 1.0, steps=6), rewarded("b", 0.0), rewarded("long", 0.0, steps=7), cut)
    from steprl.credit import Grpo

    (group,) = choose(recipe, filters_of(recipe), Grpo(), groups).groups
    assert [t.uid for t in group.trajectories] == ["a", "b"]


@pytest.mark.parametrize("kind", ["filter", "curriculum"])
def test_every_component_and_option_is_explained(kind: Any) -> None:
    for name, address in addresses(kind).items():
        if not address.startswith("steprl."):
            continue
        assert f"`{name}`" in PAGE or f"### {name}\n" in PAGE
        for option in list(inspect.signature(resolve(kind, name)).parameters):
            if option not in ("tasks", "seed"):
                assert re.search(rf"`{option}\b", PAGE), f"{name}: {option}"


def test_the_defaults_on_the_page_are_the_defaults() -> None:
    for name in addresses("curriculum"):
        section = PAGE.partition(f"### {name}\n")[2].partition("\n#")[0]
        told = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, flags=re.MULTILINE))
        for option, parameter in inspect.signature(resolve("curriculum", name)).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                default = parameter.default
                shown = f'`"{default}"`' if isinstance(default, str) else str(default)
                assert told[option] == shown
