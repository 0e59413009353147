"""A Hugging Face causal LM as the engine runs it: one flat pass over the new tokens of many requests.

Shapes: N new tokens of all requests, B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from steprl.engines.torch_cache import ATTENTION, Run, SlotStore, attend, plan_pass
from steprl.errors import EngineError
from steprl.types import Ints, WeightSource

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


def take_weights(model: PreTrainedModel, source: WeightSource) -> None:
    """Copy a source's tensors into the model: all of them, or none when they are not exactly its own.

    Raises:
        EngineError: an adapter; a tensor that is missing, unknown, or of another shape.
    """
    if source.kind != "full":
        raise EngineError(f"the torch engine takes full weights, got '{source.kind}'")
    own = dict(model.state_dict(keep_vars=True))
    given = dict(source.tensors())
    for name, tensor in given.items():
        if name not in own or own[name].shape != tensor.shape:
            wanted = f"has {tuple(own[name].shape)} there" if name in own else "has no such tensor"
            raise EngineError(
                f"weights '{name}' {tuple(tensor.shape)} do not fit: the engine's model {wanted}"
            )
    # A tied weight may come under any one of its names.
    covered = {id(own[name]) for name in given}
    missing = [name for name, tensor in own.items() if id(tensor) not in covered]
    if missing:
        raise EngineError(
            f"the weights lack {len(missing)} of the model's tensors, first of them '{missing[0]}'"
        )
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)


@torch.inference_mode()
def take_over_attention(model: PreTrainedModel, max_context: int) -> None:
    """Give the model slot attention, and prove on a ragged batch in two passes that it changes nothing.

    Raises:
        EngineError: an architecture whose attention cannot be replaced, or whose logits then differ, or
            would differ in a context longer than those of the proof.
    """
    name = type(model).__name__
    rng = np.random.default_rng(0)
    vocabulary = model.config.get_text_config().vocab_size
    texts = [rng.integers(0, vocabulary, length).astype(np.int32) for length in (9, 5)]
    store = SlotStore(len(texts), 16, model.device)
    # The head of each text, then the rest: the second pass reads what the first has stored.
    heads = [(slot, 0, len(text) // 2) for slot, text in enumerate(texts)]
    rests = [(slot, count, len(texts[slot]) - count) for slot, _, count in heads]
    try:
        # "eager" is the definition of a model: other implementations leave out soft caps, for one.
        model.set_attn_implementation("eager")
        plain = [
            model(input_ids=torch.from_numpy(text.astype(np.int64))[None].to(model.device)).logits[0, -1]
            for text in texts
        ]
        model.set_attn_implementation(ATTENTION)
        forward(model, store, heads, np.concatenate([texts[s][:n] for s, _, n in heads]), ())
        ragged = forward(model, store, rests, np.concatenate([texts[s][n:] for s, n, _ in rests]), (0, 1))
        expected = torch.stack(plain).float()
        gap = (ragged.float() - expected).abs().max().item()
    except Exception as error:
        raise EngineError(
            f"{name} does not run on the torch engine, which needs attention layers that take an "
            f"attention function: {error!r}"
        ) from error
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    if not gap <= tolerance * expected.abs().max().item():
        raise EngineError(
            f"{name} gives other logits on the torch engine than in a plain forward pass (largest gap "
            f"{gap:.3g}): it has layers that this engine does not serve exactly, such as recurrent ones"
        )
    reason = _differs_when_long(model, max_context, windows=store.windows)
    if reason is not None:
        raise EngineError(f"{name} is not served exactly in a context of {max_context} tokens: {reason}")


def _differs_when_long(model: PreTrainedModel, max_context: int, *, windows: set[int]) -> str | None:
    """What the proof's few tokens cannot show: rules that set in with length and bypass the attention
    function. ``windows`` are those that attention was called with."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        return f"the engine knows full and sliding attention, not {', '.join(sorted(unknown))}"
    window: int | None = getattr(config, "sliding_window", None)
    slides = not kinds or "sliding_attention" in kinds
    if window is not None and slides and window not in windows and max_context > window:
        return (
            f"its window of {window} tokens is no argument of its attention; lower engine.max_context to it"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):
        if isinstance(part, Mapping) and part.get("rope_type") == "longrope":
            trained = part.get("original_max_position_embeddings", 0)
            if max_context > trained:
                return (
                    f"its rotary embedding changes after {trained} tokens; lower engine.max_context to that"
                )
    return None
