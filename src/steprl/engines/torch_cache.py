"""Keys and values of the embedded engine: one slot per request, and attention of a ragged batch over them.

A forward pass takes the new tokens of all requests as one flat sequence, so nothing is padded but
inside attention. A `Plan` says which tokens belong to which slot; `attend` is the attention function
that Hugging Face models call with it.

Shapes: S slots, C capacity of a slot, N new tokens of all requests, H query heads, G key heads,
R = H / G, D head size, B requests in a block, Q their longest run of new tokens, K keys read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ATTENTION = "steprl_slots"
"""The name under which `attend` is registered with transformers."""

_FIRST_CAPACITY = 256

Run = tuple[int, int, int]
"""New tokens of one request: its slot, the position of the first, how many."""


@dataclass(slots=True)
class Block:
    """Requests whose attention runs in one call.

    ``slots`` is a slice where the slots are neighbours, so that keys are read in place; else indices.
    ``query_BQ`` are indices into the N flat tokens (padding repeats the first), ``rows``/``columns``
    say which [B, Q] places are real, in flat order, ``flat`` where those tokens stand. ``mask_BQK`` is
    added to the scores: 0 or -inf.
    """

    slots: slice | Tensor
    keys: int
    query_BQ: Tensor
    mask_BQK: Tensor
    positions_BQ: Tensor
    rows: Tensor
    columns: Tensor
    flat: slice
    _masks: dict[tuple[int, int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, repeat: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """The mask [B, 1, R·Q, K] of a layer; layers that agree share it."""
        kind = (repeat, window, dtype)
        if kind not in self._masks:
            mask = self.mask_BQK
            if window is not None and self.keys > window:
                distance = self.positions_BQ[:, :, None] - torch.arange(self.keys, device=mask.device)
                mask = mask.masked_fill(distance >= window, float("-inf"))
            self._masks[kind] = mask.to(dtype).repeat(1, repeat, 1)[:, None]
        return self._masks[kind]


@dataclass(slots=True)
class Plan:
    """One forward pass: where each flat token is stored, and the blocks in which it attends."""

    slots_N: Tensor
    positions_N: Tensor
    blocks: tuple[Block, ...]
    store: SlotStore


class SlotStore:
    """Static storage [S, C, G, D] for keys and values of every layer; grows in C by doubling, unless it is
    wanted ``whole`` from the start."""

    def __init__(self, slots: int, max_context: int, device: torch.device, *, whole: bool = False) -> None:
        self.slots = slots
        self.max_context = max_context
        self.device = device
        self._first_capacity = max_context if whole else min(_FIRST_CAPACITY, max_context)
        self.capacity = self._first_capacity
        self.windows: set[int] = set()  # sliding windows that layers have asked for
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in every slot."""
        if length <= self.capacity:
            return
        capacity = self.capacity
        while capacity < length:
            capacity = min(capacity * 2, self.max_context)
        for layers in (self._keys, self._values):
            for layer, old in layers.items():
                # zeros: masked places are multiplied too, and a NaN that memory happens to hold would spread
                new = old.new_zeros((old.shape[0], capacity, *old.shape[2:]))
                new[:, : old.shape[1]] = old
                layers[layer] = new
        self.capacity = capacity

    def clear(self) -> None:
        """Give all storage back, with whatever a failed pass has left in it."""
        self._keys.clear()
        self._values.clear()
        self.capacity = self._first_capacity

    def write(self, layer: int, key_NGD: Tensor, value_NGD: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Store the new tokens of a layer; returns the layer's whole storage."""
        if layer not in self._keys:
            shape = (self.slots, self.capacity)
            self._keys[layer] = key_NGD.new_zeros((*shape, *key_NGD.shape[1:]))
            self._values[layer] = value_NGD.new_zeros((*shape, *value_NGD.shape[1:]))
        keys, values = self._keys[layer], self._values[layer]
        keys[plan.slots_N, plan.positions_N] = key_NGD
        values[plan.slots_N, plan.positions_N] = value_NGD
        return keys, values

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one slot to another: a shared prefix, computed once."""
        for layers in (self._keys, self._values):
            for storage in layers.values():
                storage[target, :length] = storage[source, :length]


def plan_pass(store: SlotStore, runs: Sequence[Run], *, block_cells: int) -> Plan:
    """Lay out one forward pass.

    Args:
        runs: flat tokens are in this order; runs of similar count should be neighbours.
        block_cells: upper bound on B·Q·K of a block of prompts, which bounds the memory of a mask.
    """
    counts = [count for _, _, count in runs]
    slots_N = [slot for slot, _, count in runs for _ in range(count)]
    positions_N = [position for _, start, count in runs for position in range(start, start + count)]
    blocks, first, flat = [], 0, 0
    while first < len(runs):
        last = first + 1
        longest, reach = counts[first], runs[first][1] + counts[first]
        while last < len(runs):
            # one-token runs (decoding) form a block of their own; prompts share one while it stays small
            if (counts[last] == 1) != (longest == 1):
                break
            wide = max(longest, counts[last])
            deep = max(reach, runs[last][1] + counts[last])
            if wide > 1 and (last - first + 1) * wide * deep > block_cells:
                break
            longest, reach, last = wide, deep, last + 1
        blocks.append(_block(store, runs[first:last], flat))
        flat += sum(counts[first:last])
        first = last
    device = store.device
    return Plan(
        slots_N=torch.tensor(slots_N, device=device),
        positions_N=torch.tensor(positions_N, device=device),
        blocks=tuple(blocks),
        store=store,
    )


def _block(store: SlotStore, runs: Sequence[Run], flat: int) -> Block:
    slots = [slot for slot, _, _ in runs]
    longest = max(count for _, _, count in runs)
    keys = max(start + count for _, start, count in runs)
    low, high = min(slots), max(slots) + 1
    device = store.device
    # Reading a neighbourhood in place, idle slots included, beats gathering copies of the used ones.
    in_place = high - low <= len(slots) + len(slots) // 3
    height = high - low if in_place else len(slots)
    row_of = [slot - low for slot in slots] if in_place else list(range(len(slots)))
    query = torch.full((height, longest), flat)
    positions = torch.zeros((height, longest), dtype=torch.long)
    rows: list[int] = []
    columns: list[int] = []
    place = flat
    for row, (_, start, count) in zip(row_of, runs, strict=True):
        query[row, :count] = torch.arange(place, place + count)
        positions[row, :count] = torch.arange(start, start + count)
        rows += [row] * count
        columns += range(count)
        place += count
    mask = torch.zeros((height, longest, keys))
    mask.masked_fill_(torch.arange(keys)[None, None, :] > positions[:, :, None], float("-inf"))
    return Block(
        slots=slice(low, high) if in_place else torch.tensor(slots, device=device),
        keys=keys,
        query_BQ=query.to(device),
        mask_BQK=mask.to(device),
        positions_BQ=positions.to(device),
        rows=torch.tensor(rows, device=device),
        columns=torch.tensor(columns, device=device),
        flat=slice(flat, place),
    )


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    plan: Plan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of N flat tokens over the slots, called by the model once per layer.

    ``query`` is [1, H, N, D], ``key`` and ``value`` [1, G, N, D]; the result is [1, N, H, D].
    """
    assert plan is not None, "the model does not hand keyword arguments on to its attention"
    keys, values = plan.store.write(
        module.layer_idx,  # type: ignore[arg-type]
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        plan,
    )
    if sliding_window is not None:
        plan.store.windows.add(sliding_window)
    query_NHD = query[0].transpose(0, 1)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = query_NHD.new_empty((query_NHD.shape[0], query_NHD.shape[1], values.shape[-1]))
    for block in plan.blocks:
        out[block.flat] = _attend_block(block, query_NHD, keys, values, scale, sliding_window, softcap, s_aux)
    return out[None], None


def _attend_block(
    block: Block,
    query_NHD: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    height, longest = block.query_BQ.shape
    heads, groups = query_NHD.shape[1], keys.shape[2]
    repeat = heads // groups
    # The R query heads of a key head stand beside each other as queries: keys are never repeated.
    q = query_NHD[block.query_BQ].view(height, longest, groups, repeat, -1)
    q = q.permute(0, 2, 3, 1, 4).reshape(height, groups, repeat * longest, -1)
    k = keys[block.slots, : block.keys].transpose(1, 2)
    v = values[block.slots, : block.keys].transpose(1, 2)
    mask = block.mask(repeat, window, q.dtype)
    if softcap is None and sinks_H is None:
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    else:
        o = _explicit(q, k, v, mask, scale, softcap, sinks_H, longest)
    o = o.view(height, groups, repeat, longest, -1).permute(0, 3, 1, 2, 4)
    return o.reshape(height, longest, heads, -1)[block.rows, block.columns]


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks_H: Tensor | None,
    longest: int,
) -> Tensor:
    """Attention written out, for models that cap their scores or have attention sinks."""
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = (scores + mask).float()
    if sinks_H is None:
        return scores.softmax(dim=-1).to(v.dtype) @ v
    groups = k.shape[1]
    sinks = sinks_H.view(1, groups, -1, 1).expand(q.shape[0], -1, -1, longest)
    sinks = sinks.reshape(q.shape[0], groups, -1, 1).float()
    weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(v.dtype) @ v
