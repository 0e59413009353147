"""A causal language model in plain torch that computes everything in its own precision, for tests to 1e-10.

Stock models compute norms and softmax in float32, which hides what is below 1e-6.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput


class PlainConfig(PreTrainedConfig):
    model_type = "plain"

    def __init__(self, vocab_size: int = 24, hidden_size: int = 12, **options: Any) -> None:
        super().__init__(**options)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size


class PlainTrunk(PreTrainedModel):
    """Embeddings, one layer of causal attention, one of a perceptron."""

    config_class = PlainConfig

    def __init__(self, config: PlainConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.tokens = nn.Embedding(config.vocab_size, size)
        self.places = nn.Embedding(64, size)
        self.qkv = nn.Linear(size, 3 * size)
        self.wide = nn.Linear(size, 2 * size)
        self.narrow = nn.Linear(2 * size, size)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> BaseModelOutput:
        length = input_ids.shape[1]
        x = self.tokens(input_ids) + self.places(torch.arange(length))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(x.shape[-1])).masked_fill(future, -math.inf)
        x = x + scores.softmax(-1) @ v
        return BaseModelOutput(last_hidden_state=x + self.narrow(self.wide(x).tanh()))


class PlainLM(PreTrainedModel):
    """The trunk and a head that is not tied to the embeddings."""

    config_class = PlainConfig
    base_model_prefix = "trunk"

    def __init__(self, config: PlainConfig) -> None:
        super().__init__(config)
        self.trunk = PlainTrunk(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> CausalLMOutput:
        return CausalLMOutput(logits=self.head(self.trunk(input_ids).last_hidden_state))


def plain_model(seed: int = 0) -> PlainLM:
    """Random weights in float64 that ``seed`` decides."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = PlainLM(PlainConfig()).double()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.4)
    return model.eval()
