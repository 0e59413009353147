"""A Hugging Face causal LM as the engine runs it: one flat pass over the new tokens of many requests.

Shapes: N new tokens of all requests, B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from steprl.engines.torch_cache import ATTENTION, Run, SlotStore, attend, plan_pass
from steprl.errors import EngineError
from steprl.types import Ints

AttentionInterface.register(ATTENTION, attend)

_BLOCK_CELLS = 1 << 22
"""Bound on the cells of one attention mask of prompts: 16 MiB in float32."""


def forward(
    model: PreTrainedModel, store: SlotStore, runs: Sequence[Run], ids_N: Ints, wanted: Sequence[int]
) -> Tensor:
    """Run the new tokens of some requests; logits [B, V] after the last token of the ``wanted`` runs."""
    plan = plan_pass(store, runs, block_cells=_BLOCK_CELLS)
    ends = np.cumsum([count for _, _, count in runs]) - 1
    output = model(
        input_ids=torch.from_numpy(ids_N.astype(np.int64))[None].to(store.device),
        position_ids=plan.positions_N[None],
        use_cache=False,
        logits_to_keep=torch.from_numpy(ends[list(wanted)]).to(store.device),
        plan=plan,
    )
    logits: Tensor = output.logits[0]
    return logits


@torch.inference_mode()
def take_over_attention(model: PreTrainedModel) -> None:
    """Give the model slot attention, and prove on a ragged batch in two passes that it changes nothing.

    Raises:
        EngineError: an architecture whose attention cannot be replaced, or whose logits then differ.
    """
    name = type(model).__name__
    rng = np.random.default_rng(0)
    vocabulary = model.config.get_text_config().vocab_size
    texts = [rng.integers(0, vocabulary, length).astype(np.int32) for length in (9, 5)]
    plain = [
        model(input_ids=torch.from_numpy(text.astype(np.int64))[None].to(model.device)).logits[0, -1]
        for text in texts
    ]
    store = SlotStore(len(texts), 16, model.device)
    # The head of each text, then the rest: the second pass reads what the first has stored.
    heads = [(slot, 0, len(text) // 2) for slot, text in enumerate(texts)]
    rests = [(slot, count, len(texts[slot]) - count) for slot, _, count in heads]
    try:
        model.set_attn_implementation(ATTENTION)
        forward(model, store, heads, np.concatenate([texts[s][:n] for s, _, n in heads]), ())
        ragged = forward(model, store, rests, np.concatenate([texts[s][n:] for s, n, _ in rests]), (0, 1))
    except Exception as error:
        raise EngineError(
            f"{name} does not run on the torch engine, which needs attention layers that take an "
            f"attention function: {error!r}"
        ) from error
    expected = torch.stack(plain).float()
    gap = (ragged.float() - expected).abs().max().item()
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    if not gap <= tolerance * max(1.0, expected.abs().max().item()):
        raise EngineError(
            f"{name} gives other logits on the torch engine than in a plain forward pass (largest gap "
            f"{gap:.3g}): it has layers that this engine does not serve exactly, such as recurrent ones"
        )
