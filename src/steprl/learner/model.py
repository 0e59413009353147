"""Log-probabilities of chosen tokens under any Hugging Face causal language model.

Rows are padded on the right and run without an attention mask: under causal attention no token sees
the padding after it, and attention kernels are fastest when the mask is purely causal.

Shapes: B rows, S tokens of the longest, H hidden size, M chosen tokens of all rows, V vocabulary,
R hidden states that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steprl.errors import ConfigError
from steprl.types import Floats, Ints

PADDING = 0  # any id will do: nothing attends to it and nothing is read from it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """``logprobs`` [M] of the chosen tokens, and ``entropy`` [M] of their distributions, without gradient
    unless it was asked for; ``states`` [R, H], hidden states that were read on the way."""

    logprobs: Tensor
    entropy: Tensor
    states: Tensor | None = None


def score_tokens(
    model: PreTrainedModel,
    sequences: Sequence[Ints],
    positions: Sequence[Ints],
    temperatures: Sequence[Floats],
    *,
    read: Sequence[Ints] | None = None,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Score ``sequences[b][p]`` given ``sequences[b][:p]`` for every position p, row by row in order.

    Args:
        sequences: ids i32[L] of each row.
        positions: increasing, at least one per row, each in 1 … L−1.
        temperatures: f32 beside ``positions``; logits are divided by it before the softmax.
        read: positions in front of each row's last label whose hidden state before the head is wanted too.
        entropy_gradient: let the entropy carry a gradient, which costs the memory of another softmax.

    Raises:
        ConfigError: a temperature of 0, whose distribution is a point and has no gradient.
    """
    temperature = torch.from_numpy(np.concatenate(temperatures)).to(model.device)
    if (temperature <= 0).any():
        raise ConfigError(
            "a token was sampled with temperature 0 (greedy): its log-probability is always 0 and there "
            "is nothing to learn from. Roll out for training with a temperature above 0."
        )
    chosen = [ids[at] for ids, at in zip(sequences, positions, strict=True)]
    labels = torch.from_numpy(np.concatenate(chosen).astype(np.int64)).to(model.device)
    states: list[Tensor] = []
    with _reading(model, read, states):
        logits = next_token_logits(model, sequences, positions)
    # half precision is too coarse for a ratio near 1; float64 models keep float64
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature[:, None]
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(-1, labels[:, None]).squeeze(-1) - normaliser
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        expected = (torch.exp(logits - normaliser[:, None]) * logits).sum(-1)
        entropy = normaliser - expected
    return TokenScores(logprobs=logprobs, entropy=entropy, states=states[0] if states else None)


def next_token_logits(model: PreTrainedModel, sequences: Sequence[Ints], positions: Sequence[Ints]) -> Tensor:
    """Logits [M, V] that predict the tokens at ``positions``, row by row in order.

    Hidden states are selected in front of the output head, so that [B, S, V] is never made, and what
    the model does behind its head (a soft cap, a scale) still applies.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ConfigError(f"{type(model).__name__} has no output head: it is not a causal language model.")
    # a row ends before its last label: nothing is predicted from there on
    batch = _padded([ids[: at[-1]] for ids, at in zip(sequences, positions, strict=True)])
    index = _flat_index([at - 1 for at in positions], batch.shape[1]).to(model.device)

    def select(_: torch.nn.Module, hidden: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (hidden[0].flatten(0, 1)[index],)

    hook = head.register_forward_pre_hook(select)
    try:
        logits: Tensor = model(input_ids=batch.to(model.device), use_cache=False).logits
    finally:
        hook.remove()
    return logits


def last_states(trunk: PreTrainedModel, sequences: Sequence[Ints], positions: Sequence[Ints]) -> Tensor:
    """Last hidden states [R, H] of a model without head, after the tokens at ``positions``, row by row in
    order."""
    batch = _padded([ids[: at[-1] + 1] for ids, at in zip(sequences, positions, strict=True)])
    index = _flat_index(positions, batch.shape[1]).to(trunk.device)
    hidden: Tensor = trunk(input_ids=batch.to(trunk.device), use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[index]


@contextmanager
def _reading(model: PreTrainedModel, read: Sequence[Ints] | None, found: list[Tensor]) -> Iterator[None]:
    """Within, a pass of ``model`` puts the hidden states [R, H] in front of its head at ``read`` into
    ``found``."""
    if read is None:
        yield
        return

    def keep(_: torch.nn.Module, hidden: tuple[Tensor, ...]) -> None:
        index = _flat_index(read, hidden[0].shape[1]).to(model.device)
        found.append(hidden[0].flatten(0, 1)[index])

    hook = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def _padded(inputs: Sequence[Ints]) -> Tensor:
    """The rows side by side: i64 [B, S]."""
    length = max(len(ids) for ids in inputs)
    batch = np.full((len(inputs), length), PADDING, dtype=np.int64)
    for b, ids in enumerate(inputs):
        batch[b, : len(ids)] = ids
    return torch.from_numpy(batch)


def _flat_index(positions: Sequence[Ints], length: int) -> Tensor:
    """Where positions of each row stand once [B, S] has become [B·S]."""
    return torch.from_numpy(
        np.concatenate([b * length + at.astype(np.int64) for b, at in enumerate(positions)])
    )


def prepare(model: PreTrainedModel, *, gradient_checkpointing: bool) -> None:
    """Put the model into the one mode that every learner pass runs in: gradients, but no dropout.

    Dropout would make ρ ≠ 1 with fresh weights. Checkpointing layers only checkpoint in training
    mode, so they alone are put into it, with their own dropout at 0; what is inside them stays out.
    Attention whose scores are capped (Gemma 2) runs eagerly: torch's fused attention leaves the cap out.
    """
    model.eval()
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")
    if not gradient_checkpointing:
        return
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True
            for name, value in vars(layer).items():
                if "dropout" in name and isinstance(value, float):
                    setattr(layer, name, 0.0)
