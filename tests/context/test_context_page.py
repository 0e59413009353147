"""docs/context.md: its rule runs, its options are those that there are, and its recipes can be built."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from histories import HISTORIES, OPENING, contents, everything, history, shown
from hypothesis import given
from playing import Guess, Recorder, call, guesses, only, play, renderer

from steprl import context
from steprl.config import build
from steprl.trainers.recipe import Recipe
from steprl.types import History

PAGE = (Path(__file__).parents[2] / "docs" / "context.md").read_text(encoding="utf-8")
RULES = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): getattr(context, name) for name in sorted(context.__all__)
}
"""Every rule by the name that it has in a recipe: that of its file."""

SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def first_and_last(**options: Any) -> Any:
    page: dict[str, Any] = {}
    exec(blocks("python")[0], page)
    return page["FirstAndLast"](**options)


def test_every_rule_has_a_line_and_those_with_options_a_section() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", PAGE, flags=re.MULTILINE)[: len(RULES)] == [
        "append_only",
        *SECTIONS,
    ]
    assert set(RULES) == {"append_only", *SECTIONS}


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_section_has_the_options_of_its_rule(name: str) -> None:
    section = SECTIONS[name].split("[algorithm]")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]*) \|", section, flags=re.MULTILINE)
    described = {option: default for names, default in rows for option in re.findall(r"\w+", names)}
    options = [field for field in fields(RULES[name]) if field.init]
    assert list(described) == [field.name for field in options]
    for field in options:
        told = described[field.name]
        required = field.default is MISSING and field.default_factory is MISSING
        assert (told == "–") == required, field.name
        if isinstance(field.default, int):
            assert told == str(field.default), field.name
        elif isinstance(field.default, str) and field.name != "prompt":
            assert f'"{field.default}"' in told, field.name


def test_the_recipes_of_the_page_can_be_built() -> None:
    made = []
    for text in blocks("toml"):
        recipe = build(Recipe, {"env": {"id": "courier"}, **tomllib.loads(text)})
        made.append(RULES[recipe.context.id](**recipe.context.args))
    assert context.SlidingWindow(rounds=4) in made


def test_the_rule_of_the_page_plays() -> None:
    engine = Recorder([*[call("hint")] * 4, "0"])
    t = only(play(Guess, engine, guesses(1), context=first_and_last(keep=1)))
    assert t.reward == 1.0
    prompts = [renderer().decode(step.prompt_ids.tolist()) for step in t.steps]
    assert ["left out" in prompt for prompt in prompts] == [False] * 3 + [True] * 2
    assert "[2 rounds left out]" in prompts[4]


@given(HISTORIES)
def test_the_rule_of_the_page_shows_what_it_says(past: History) -> None:
    rounds = past.rounds
    found = shown(first_and_last(keep=2), past)
    if len(rounds) <= 3:
        assert found == everything(past)
    else:
        first = everything(History(opening=OPENING, rounds=rounds[:1]))
        last = everything(History(opening=(), rounds=rounds[-2:]))
        assert found[: len(first)] == first and found[len(first) + 1 :] == last
        assert contents(found)[len(first)] == f"[{len(rounds) - 3} rounds left out]"


def test_a_rule_in_a_file_has_its_name() -> None:
    for name, rule in RULES.items():
        assert rule.__module__ == f"steprl.context.{name}"
    assert shown(RULES["sliding_window"](rounds=1), history()) == list(OPENING)
