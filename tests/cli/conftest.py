"""What every test of the command line works with."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal import Terminal
from training import DICE, recipe_of

from steprl.config import to_toml


@pytest.fixture
def steprl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capfd)


@pytest.fixture
def recipe(tiny_policy: str, tmp_path: Path) -> Path:
    """A recipe file of one iteration, whose runs go beside it."""
    file = tmp_path / "recipe.toml"
    file.write_text(to_toml(recipe_of(DICE, tiny_policy, tmp_path / "runs", "train.iterations=1")))
    return file
