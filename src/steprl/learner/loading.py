"""A causal language model from a folder or the Hugging Face hub, complete or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from steprl.errors import ConfigError
from steprl.learner.config import Dtype

logging.disable_progress_bar()  # a run has its own, and these would cut its lines


def load_model(path_or_id: str, dtype: Dtype = "float32", *, device: str = "cpu") -> PreTrainedModel:
    """Load a model with its weights in ``dtype``.

    The folder's ``generation_config.json`` is ignored: its temperature or top-p would otherwise
    decide, unseen, how the model is sampled.

    Raises:
        ConfigError: no such folder or hub id, not a causal language model, or weights are missing.
    """
    folder = Path(path_or_id).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or path_or_id.startswith(("./", "../", "~"))):
        raise ConfigError(f"model '{path_or_id}': there is no such folder. Check the path.")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder) if folder.is_dir() else path_or_id,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model '{path_or_id}' cannot be loaded. It must be a folder with config.json and "
            f"safetensors weights, or the id of a causal language model on the hub. Cause: {error}"
        ) from error
    model: PreTrainedModel = loaded[0].to(device)
    missing: set[str] = loaded[1]["missing_keys"]
    if missing:
        raise ConfigError(
            f"model '{path_or_id}' lacks {len(missing)} weights, the first of them '{min(missing)}': "
            f"they would be random. Use a complete folder."
        )
    model.generation_config = _neutral(model)
    return model


def _neutral(model: PreTrainedModel) -> GenerationConfig:
    """Which ids begin, end and pad a text, and nothing that shapes the distribution."""
    ids = {
        name: value
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if (value := getattr(model.config, name, None)) is not None
    }
    return GenerationConfig(**ids)
