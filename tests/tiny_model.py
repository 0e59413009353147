"""Random models of real architectures, small enough for a test."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny_llama(
    vocab: int = 64, seed: int = 0, *, dtype: torch.dtype = torch.float32, **config: Any
) -> LlamaForCausalLM:
    """Two layers of Llama, hidden size 32, random weights that ``seed`` decides."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocab, initializer_range=0.2, **{**SIZES, **config}))
    return model.to(dtype).eval()


def tiny_gemma2(
    vocab: int = 64, seed: int = 0, *, dtype: torch.dtype = torch.float32, **config: Any
) -> Gemma2ForCausalLM:
    """Two layers of Gemma 2, whose head is followed by a soft cap."""
    sizes = {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 1.0, **config}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Gemma2ForCausalLM(Gemma2Config(vocab_size=vocab, initializer_range=0.2, **sizes))
    return model.to(dtype).eval()
