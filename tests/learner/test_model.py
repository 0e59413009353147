"""Token log-probabilities: those of the plain model, without its full logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import tiny_gemma2, tiny_llama
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from steprl.errors import ConfigError
from steprl.learner.model import next_token_logits, prepare, score_tokens

SEQUENCES = [np.array(ids, dtype=np.int32) for ids in ([5, 0, 9, 1, 0, 0], [3, 4], list(range(20)))]
POSITIONS = [np.array(at, dtype=np.int32) for at in ([1, 4, 5], [1], [2, 3, 11, 19])]
TEMPERATURES = [
    np.full(len(at), t, dtype=np.float32) for at, t in zip(POSITIONS, (1.0, 0.5, 2.0), strict=True)
]


def plain(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies from the full logits of one row at a time."""
    logprobs, entropies = [], []
    for ids, at, temperature in zip(SEQUENCES, POSITIONS, TEMPERATURES, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(ids[None].astype(np.int64))).logits[0]
        for p, t in zip(at.tolist(), temperature.tolist(), strict=True):
            all_logprobs = (logits[p - 1] / t).log_softmax(-1)
            logprobs.append(all_logprobs[int(ids[p])])
            entropies.append(-(all_logprobs.exp() * all_logprobs).sum())
    return torch.stack(logprobs), torch.stack(entropies)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma2])
def test_padded_rows_score_as_each_row_alone_with_full_logits(make: Callable[..., PreTrainedModel]) -> None:
    model = make(dtype=torch.float64)
    scores = score_tokens(model, SEQUENCES, POSITIONS, TEMPERATURES)
    logprobs, entropies = plain(model)
    # stock models compute norms and softmax in float32 whatever their own precision
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(scores.entropy, entropies, rtol=1e-6, atol=1e-6)


def test_the_soft_cap_behind_the_head_applies() -> None:
    model = tiny_gemma2()
    with torch.no_grad():
        capped = next_token_logits(model, SEQUENCES, POSITIONS)
        model.config.final_logit_softcapping = None
        free = next_token_logits(model, SEQUENCES, POSITIONS)
    assert capped.abs().max() < 1 < free.abs().max()
    torch.testing.assert_close(capped, free.tanh())


def test_full_logits_are_never_made() -> None:
    model = tiny_llama(vocab=50)
    seen: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape))
    next_token_logits(model, SEQUENCES, POSITIONS)
    assert seen == [(8, 50)]


def test_the_head_is_left_as_it_was() -> None:
    model = tiny_llama()
    score_tokens(model, SEQUENCES, POSITIONS, TEMPERATURES)
    assert model(input_ids=torch.zeros((2, 3), dtype=torch.int64)).logits.shape == (2, 3, 64)


def test_attention_runs_purely_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    calls: list[tuple[Any, Any]] = []

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append((kwargs["attn_mask"], kwargs["is_causal"]))
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    score_tokens(tiny_llama(), SEQUENCES, POSITIONS, TEMPERATURES)
    assert calls == [(None, True)] * 2


def test_only_the_chosen_tokens_carry_gradient() -> None:
    model = tiny_llama(tie_word_embeddings=False)
    score_tokens(model, SEQUENCES, POSITIONS, TEMPERATURES).logprobs.sum().backward()
    assert model.model.embed_tokens.weight.grad is not None
    used = model.model.embed_tokens.weight.grad.abs().sum(-1) > 0
    # the last id of a row is only ever predicted: 19 has been no input, 18 has
    assert used[18] and not used[19]


def test_greedy_tokens_cannot_be_trained_on() -> None:
    cold = [np.zeros_like(t) for t in TEMPERATURES]
    with pytest.raises(ConfigError, match="temperature 0"):
        score_tokens(tiny_llama(), SEQUENCES, POSITIONS, cold)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_dropout_has_no_effect_in_any_pass(gradient_checkpointing: bool) -> None:
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)).train()
    prepare(model, gradient_checkpointing=gradient_checkpointing)
    once, again = (score_tokens(model, SEQUENCES, POSITIONS, TEMPERATURES).logprobs for _ in range(2))
    assert torch.equal(once, again)


def test_checkpointing_recomputes_and_changes_no_gradient() -> None:
    gradients, passes = [], []
    for gradient_checkpointing in (False, True):
        model = tiny_llama(attention_dropout=0.5)
        prepare(model, gradient_checkpointing=gradient_checkpointing)
        count: list[int] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        score_tokens(model, SEQUENCES, POSITIONS, TEMPERATURES).logprobs.sum().backward()
        passes.append(len(count))
        gradients.append([p.grad for p in model.parameters()])
    assert passes == [1, 2]
    torch.testing.assert_close(gradients[0], gradients[1])
