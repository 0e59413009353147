"""Which models the torch engine serves, and how it refuses the others: before the first request, by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_engine import ask_all, eager, tiny
from tiny_model import tiny_gemma2, tiny_llama
from transformers import PreTrainedModel

from steprl.engines.torch_engine import TorchEngine
from steprl.errors import EngineError
from steprl.types import Sampling


def refusal(model: PreTrainedModel, max_context: int = 64) -> str:
    with pytest.raises(EngineError) as error:
        TorchEngine(model, slots=2, max_context=max_context)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("Mamba", {"state_size": 8}),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("GPTNeo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}),
        ("Bloom", {"n_head": 4, "n_layer": 2}),
    ],
)
def test_layers_without_an_attention_function_are_refused(name: str, config: dict[str, Any]) -> None:
    message = refusal(tiny(name, **config))
    assert message.startswith(name) and "logits" in message


def test_attention_that_is_not_handed_the_keyword_arguments_is_refused() -> None:
    model = tiny_llama()
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = (
            lambda hidden_states, position_embeddings, attention_mask, forward=forward, **_: forward(
                hidden_states, position_embeddings, attention_mask
            )
        )
    message = refusal(model)
    assert message.startswith("LlamaForCausalLM") and "keyword arguments" in message


def test_a_model_that_fails_is_refused_by_name() -> None:
    model = tiny_llama()
    model.model.layers[0].mlp = torch.nn.Linear(7, 7)
    assert refusal(model).startswith("LlamaForCausalLM does not run")


def test_a_wrong_but_small_model_is_found_out() -> None:
    # logits far below 1, as of a network that was never trained: small gaps are relative to them
    model = tiny("Mamba", state_size=8, initializer_range=0.005)
    assert "logits" in refusal(model)


@pytest.mark.parametrize(
    ("name", "config", "limit", "message"),
    [
        (
            "Qwen2Moe",
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 2,
                "num_experts": 2,
                "num_experts_per_tok": 1,
            },
            16,
            "window of 16 tokens",
        ),
        (
            "Phi3",
            {
                "original_max_position_embeddings": 24,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                },
            },
            24,
            "rotary embedding changes after 24 tokens",
        ),
        ("Llama4", {"head_dim": 8, "num_local_experts": 2}, None, "chunked_attention"),
    ],
)
def test_what_sets_in_with_length_limits_the_context(
    name: str, config: dict[str, Any], limit: int | None, message: str
) -> None:
    config_name = "Llama4Text" if name == "Llama4" else name
    model = tiny(name, config_name=config_name, **config)
    assert message in refusal(model)
    if limit is not None:
        TorchEngine(model, slots=2, max_context=limit)


def test_the_cap_on_attention_scores_is_part_of_the_model() -> None:
    # loaded with torch's own attention, which leaves the cap out
    prompts, sampling = [[1, 2, 3, 4]], Sampling(max_tokens=10)
    caps = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 30.0}
    answers = [
        ask_all(TorchEngine(model, slots=1, max_context=64), prompts, sampling)[0]
        for model in (tiny_gemma2(**caps), eager(tiny_gemma2(**caps)))
    ]
    assert answers[0].logprobs.tolist() == answers[1].logprobs.tolist()  # type: ignore[union-attr]


def test_a_second_engine_can_take_the_model_over() -> None:
    model = tiny_llama()
    prompts, sampling = [[1, 2, 3], [4, 5]], Sampling(max_tokens=10)
    first, second = (
        ask_all(TorchEngine(model, slots=2, max_context=64), prompts, sampling) for _ in range(2)
    )
    assert [c.ids.tolist() for c in first] == [c.ids.tolist() for c in second]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_served(dtype: torch.dtype) -> None:
    (completion,) = ask_all(
        TorchEngine(tiny_llama(dtype=dtype), slots=1, max_context=64), [[1, 2, 3]], Sampling(max_tokens=10)
    )
    assert len(completion.ids) == 10
