"""Small policies: Llamas of a given size, freshly initialised so that they learn soon to copy what they read.

They are made to be warmed up on one environment, on a CPU, in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from steprl.errors import ConfigError

Model: TypeAlias = PreTrainedModel
"""Any Hugging Face model, for rooms that hand one on and never look inside."""

_HEAD = 32
_WIDTH_PER_HEAD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """How large a policy is. Everything else follows from these numbers.

    Args:
        hidden: width of the residual stream: 16, or a multiple of 32.
        layers: how many layers.
        max_context: most tokens of prompt and action together.

    Raises:
        ConfigError: a number is out of its range.
    """

    hidden: int = 128
    layers: int = 2
    max_context: int = 1024

    def __post_init__(self) -> None:
        if self.hidden != _WIDTH_PER_HEAD and (self.hidden < 1 or self.hidden % (2 * _WIDTH_PER_HEAD)):
            raise ConfigError(
                f"hidden must be {_WIDTH_PER_HEAD}, or a multiple of {2 * _WIDTH_PER_HEAD}; got {self.hidden}"
            )
        for name in ("layers", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


SIZES: Mapping[str, PolicySize] = {
    "tiny": PolicySize(hidden=64),
    "small": PolicySize(),
    "medium": PolicySize(hidden=256, layers=4),
}
"""Sizes by name; ``small`` is the quickstart's."""


def make_policy(vocabulary: int, size: PolicySize, *, pad_id: int | None, seed: int) -> Model:
    """A Llama with random weights that ``seed`` decides; input and output embeddings are one matrix.

    Twice as wide inside its heads as outside, and with larger weights than is usual (1/√hidden): a model
    this narrow learns to copy names from its context several times sooner so.
    """
    heads = size.hidden // _WIDTH_PER_HEAD
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=_HEAD,
        max_position_embeddings=size.max_context,
        initializer_range=round(size.hidden**-0.5, 2),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):  # whoever calls keeps their own random stream
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def parameter_count(model: Model) -> int:
    """How many numbers there are to learn; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
