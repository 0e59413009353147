"""Formatter, linter and type checker as tests, so that whoever runs the tests runs them too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("command", ["ruff format --check .", "ruff check .", "mypy"])
def test_the_tree_passes(command: str) -> None:
    arguments = [sys.executable, "-m", *command.split()]
    run = subprocess.run(
        arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert run.returncode == 0, run.stdout
