"""The documentation's code runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", EXTENDING, flags=re.DOTALL)


def train(folder: Path, *overrides: str) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [Path(sys.executable).with_name("steprl"), "train", "vault.toml", *overrides]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    name = next((o.removeprefix("name=") for o in overrides if o.startswith("name=")), "vault")
    lines = (folder / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(lines[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("extending")
    (path / "mine.py").write_text("\n".join(blocks("python")), encoding="utf-8")
    (path / "vault.toml").write_text(blocks("toml")[0], encoding="utf-8")
    tasks = [{"id": str(digit), "prompt": "Open the vault.", "answer": str(digit)} for digit in range(10)]
    (path / "vault.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    return path


def test_the_parts_written_in_the_docs_train_together(folder):
    metrics = train(folder)
    assert metrics["batch/trajectories"] == 8.0
    assert metrics["reward/component/mine:brevity"] < 0


def test_the_workflow_written_in_the_docs_acts_three_times(folder):
    metrics = train(folder, "name=debate", "env.id=mine:Debate", "context.id=append_only", "context.args={}")
    assert metrics["episode/steps"] == 3.0
    assert metrics["stop/terminated"] == 1.0


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings have where it is shown as HTML."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in headings(target), f"{page.name} links to {link}#{anchor}"


def test_the_index_names_every_page():
    docs = ROOT / "docs"
    linked = re.findall(r"\]\(([^)#\s]+\.md)\)", (docs / "README.md").read_text(encoding="utf-8"))
    pages = {str(page.relative_to(docs)) for page in docs.glob("**/*.md")} - {"README.md"}
    assert pages <= set(linked), f"docs/README.md does not link to {pages - set(linked)}"
    assert len(linked) == len(set(linked))


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\*\*(.+?)\*\*: ", GLOSSARY, flags=re.MULTILINE)


def test_the_glossary_is_in_alphabetical_order():
    assert len(WORDS) > 60
    assert WORDS == sorted(WORDS, key=str.lower)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(steprl(?:\.\w+)+)`", GLOSSARY))))
def test_the_glossary_names_what_is_there(name):
    pkgutil.resolve_name(name)


CHECKING = (ROOT / "docs" / "checking.md").read_text(encoding="utf-8")


def test_the_check_page_runs_and_knows_every_check():
    page: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", CHECKING, flags=re.DOTALL)), page)
    page["test_doubling"]()
    explained = "\n".join(line.split("|")[1] for line in CHECKING.splitlines() if line.startswith("| `"))
    for check in page["report"].checks:
        assert f"`{check.name}`" in explained
        assert re.search(rf"^│ {check.name} +│ (passed|warned) │", CHECKING, flags=re.MULTILINE)
