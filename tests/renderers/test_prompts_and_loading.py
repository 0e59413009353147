"""Prompts of observations, prompts that continue each other, and finding a tokenizer."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiny import CHATML, HEADERS, tiny_tokenizer

from steprl.errors import ConfigError
from steprl.renderers import ChatRenderer, extends, load_tokenizer, prompt_ids
from steprl.types import Message, Observation, ToolSpec

TOOL = ToolSpec(
    name="population", description="Inhabitants.", parameters={"type": "object", "properties": {}}
)
USER = Message(role="user", content="How many live in Oslo?")


@cache
def renderer(template: str = CHATML) -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer(template))


def test_extends_compares_token_for_token() -> None:
    assert extends([1, 2], [3], [1, 2, 3])
    assert extends(np.array([1, 2], dtype=np.int32), np.array([], dtype=np.int32), (1, 2, 9))
    assert not extends([1, 2], [3], [1, 2])
    assert not extends([1, 2], [3], [1, 2, 4, 3])
    assert not extends([1, 2], [3], [0, 2, 3])


def test_prompt_ids_of_each_kind_of_observation() -> None:
    asked = renderer().render((USER,), (TOOL,))
    assert prompt_ids(renderer(), Observation(text=USER.content), (TOOL,)) == asked
    assert prompt_ids(renderer(), Observation(messages=(USER,)), (TOOL,)) == asked
    assert prompt_ids(renderer(), Observation(token_ids=(5, 6))) == (5, 6)


def test_a_saved_tokenizer_is_loaded_with_its_template(tmp_path: Path) -> None:
    tiny_tokenizer(HEADERS).save_pretrained(tmp_path)
    loaded = ChatRenderer(load_tokenizer(tmp_path))
    assert loaded.stop_ids == renderer(HEADERS).stop_ids
    assert loaded.render((USER,), (TOOL,)) == renderer(HEADERS).render((USER,), (TOOL,))


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="no tokenizer folder './nowhere'"):
        load_tokenizer("./nowhere")
    with pytest.raises(ConfigError, match="no tokenizer folder"):
        load_tokenizer(tmp_path / "nowhere")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="not in the local Hugging Face cache"):
        load_tokenizer("nobody/nothing-here")


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policies").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="there is no folder 'policies/gems', while 'policies' is a folder here"
    ):
        load_tokenizer("policies/gems")


def test_importing_the_room_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, steprl.renderers; print({'torch', 'transformers', 'jinja2'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
