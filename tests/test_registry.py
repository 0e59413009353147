"""Components by name: built-in ids, ``module:attribute``, and errors that say what to type instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from steprl import registry
from steprl.envs.courier import Courier
from steprl.errors import ConfigError, unknown
from steprl.registry import Kind, addresses, resolve

BUILT_IN = {
    "env": {"courier", "gsm8k", "guestbook", "hotpotqa"},
    "tool": {"calculator"},
    "reward": {"malformed_calls", "format", "tool_calls", "action_tokens"},
    "context": {
        "append_only",
        "sliding_window",
        "token_budget",
        "think_strip",
        "evidence",
        "summary_state",
        "llm_summary",
        "mixture",
    },
    "writer": {"frozen_model"},
    "format": {"hermes", "qwen3_coder", "llama3_json", "react", "tags", "fenced_code"},
    "engine": {"openai", "scripted", "torch"},
    "estimator": {
        "grpo",
        "dr_grpo",
        "rloo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "gae",
        "gigpo",
    },
    "filter": {"informative", "useful_calls", "tool_calls", "no_repeats", "length"},
    "curriculum": {"by_success", "by_difficulty"},
}


def refused(kind: Any, name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(kind, name)
    return str(caught.value)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_built_in_name_leads_to_something(kind: Any) -> None:
    assert set(addresses(kind)) >= BUILT_IN[kind]
    assert list(addresses(kind)) == sorted(addresses(kind))
    assert all(callable(resolve(kind, name)) for name in BUILT_IN[kind])


def test_a_name_and_its_address_are_the_same_component() -> None:
    assert addresses("env")["courier"] == "steprl.envs.courier:Courier"
    assert resolve("env", "courier") is resolve("env", "steprl.envs.courier:Courier") is Courier


def test_attributes_may_be_nested() -> None:
    assert resolve("tool", "steprl.envs.courier:Courier.lookup") is Courier.lookup


def test_an_unknown_name_is_answered_with_the_closest_and_all_of_them() -> None:
    message = refused("env", "curier")
    assert message.startswith("unknown env 'curier'. Did you mean 'courier'? Known: courier, gsm8k")
    assert message.endswith("Or name your own as module:attribute.")
    assert "Did you mean" not in refused("env", "zzz")


def test_a_missing_module_says_where_to_stand() -> None:
    assert refused("env", "nowhere:Env") == (
        "env 'nowhere:Env': there is no module 'nowhere'. "
        "Run from the folder that holds it, or install the package it belongs to."
    )
    assert "there is no module 'steprl.nowhere'" in refused("env", "steprl.nowhere:Env")


def test_a_missing_attribute_is_answered_with_the_closest() -> None:
    message = refused("env", "steprl.envs.courier:Curier")
    expected = "unknown attribute of steprl.envs.courier 'Curier'. Did you mean 'Courier'?"
    assert message.startswith(f"env 'steprl.envs.courier:Curier': {expected}")


@pytest.mark.parametrize("name", [":Env", "module:", ":", ".relative:Env"])
def test_half_an_address_is_refused(name: str) -> None:
    assert refused("env", name).startswith(f"env '{name}': write module:attribute, for example ")


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from; what was found there is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_package_that_a_module_needs_is_told_apart_from_the_module(importable: Path) -> None:
    (importable / "needy.py").write_text("import a_package_nobody_has\n")
    message = refused("env", "needy:Env")
    assert message.startswith("env 'needy:Env' needs the package 'a_package_nobody_has'")


def test_an_installed_package_adds_its_own_and_may_not_take_a_name(importable: Path) -> None:
    metadata = importable / "third_party-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    points = metadata / "entry_points.txt"
    points.write_text("[steprl.envs]\nharbour = steprl.envs.courier:Courier\n")
    registry._installed.cache_clear()
    try:
        assert resolve("env", "harbour") is Courier
        points.write_text("[steprl.envs]\ncourier = third_party:Other\n")
        registry._installed.cache_clear()
        message = refused("env", "courier")
        assert "two packages register the env 'courier'" in message and "third_party:Other" in message
    finally:
        registry._installed.cache_clear()


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from typing import get_args; from steprl.registry import Kind, addresses\n"
        "assert all(addresses(kind) for kind in get_args(Kind))\n"
        "print({'torch', 'transformers', 'steprl.envs.courier'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_the_wording_of_unknown() -> None:
    assert unknown("tool", "x", []) == "unknown tool 'x'."
    assert unknown("tool", "ad", ["sub", "add"], hint="See the list.") == (
        "unknown tool 'ad'. Did you mean 'add'? Known: add, sub. See the list."
    )
