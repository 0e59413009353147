"""Models from folders: complete, neutral, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import tiny_llama
from transformers import GenerationConfig

from steprl.errors import ConfigError
from steprl.learner.loading import load_model


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    model = tiny_llama(eos_token_id=7)
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert load_model(str(tmp_path), "bfloat16").dtype == torch.bfloat16


def test_sampling_defaults_of_the_folder_do_not_leak(tmp_path: Path) -> None:
    model = tiny_llama(eos_token_id=7)
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.3, top_p=0.5, top_k=5)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["temperature"] == 0.3
    loaded = load_model(str(tmp_path)).generation_config
    assert loaded is not None
    assert loaded.to_diff_dict().keys() <= {"eos_token_id", "transformers_version"}
    assert loaded.eos_token_id == 7


@pytest.mark.parametrize("missing", ["./nowhere", "/nowhere/at/all", "~/nowhere"])
def test_a_missing_folder_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"'{missing}': there is no such folder"):
        load_model(missing)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(str(tmp_path))


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="lacks 1 weights.*'model.norm.weight'"):
        load_model(str(tmp_path))
