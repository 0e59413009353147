"""Attention of ragged batches over slots, against attention written out for one query at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steprl.engines.torch_cache import Run, SlotStore, attend, plan_pass

CPU = torch.device("cpu")
HEADS, GROUPS, SIZE, VALUE_SIZE = 6, 2, 4, 3


class Layer(torch.nn.Module):
    """What attention needs to know of a layer."""

    layer_idx = 0


def one_query(
    query_HD: Tensor,
    keys_KGD: Tensor,
    values_KGD: Tensor,
    *,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """Attention of the last token over all tokens up to it, head by head; [H, D]."""
    out = []
    for head in range(HEADS):
        group = head * GROUPS // HEADS
        scores = [float(query_HD[head] @ key[group]) / math.sqrt(SIZE) for key in keys_KGD]
        if softcap is not None:
            scores = [softcap * math.tanh(score / softcap) for score in scores]
        first = 0 if window is None else max(0, len(scores) - window)
        weights = [math.exp(score) for score in scores[first:]]
        total = sum(weights) + (0.0 if sinks_H is None else math.exp(float(sinks_H[head])))
        out.append(sum(w / total * v[group] for w, v in zip(weights, values_KGD[first:], strict=True)))
    return torch.stack(out)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.lists(
        st.dictionaries(st.integers(0, 6), st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=3
    ),
    shuffled=st.randoms(),
    block_cells=st.sampled_from([1, 30, 1 << 20]),
    window=st.sampled_from([None, 1, 3]),
    softcap=st.sampled_from([None, 1.5]),
    with_sinks=st.booleans(),
)
def test_every_token_attends_to_its_own_request_and_to_nothing_later(
    rounds: list[dict[int, int]],
    shuffled: object,
    block_cells: int,
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    store = SlotStore(7, 32, CPU)
    sinks_H = random(HEADS) if with_sinks else None
    known: dict[int, tuple[Tensor, Tensor]] = {}
    for counts in rounds:
        runs: list[Run] = [(s, len(known[s][0]) if s in known else 0, n) for s, n in counts.items()]
        shuffled.shuffle(runs)  # type: ignore[attr-defined]
        total = sum(counts.values())
        query, key, value = (
            random(total, HEADS, SIZE),
            random(total, GROUPS, SIZE),
            random(total, GROUPS, VALUE_SIZE),
        )
        plan = plan_pass(store, runs, block_cells=block_cells)
        found, _ = attend(
            Layer(),
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            None,
            scaling=SIZE**-0.5,
            sliding_window=window,
            softcap=softcap,
            s_aux=sinks_H,
            plan=plan,
        )
        place = 0
        for slot, start, count in runs:
            new = (key[place : place + count], value[place : place + count])
            old = known.get(slot, (key[:0], value[:0]))
            known[slot] = (torch.cat([old[0], new[0]]), torch.cat([old[1], new[1]]))
            for j in range(count):
                keys, values = (kept[: start + j + 1] for kept in known[slot])
                expected = one_query(
                    query[place + j], keys, values, window=window, softcap=softcap, sinks_H=sinks_H
                )
                torch.testing.assert_close(found[0, place + j], expected, atol=1e-6, rtol=0)
            place += count


def test_prompts_are_cut_into_blocks_of_bounded_size_and_decoding_is_one() -> None:
    store = SlotStore(40, 512, CPU)
    runs: list[Run] = [(slot, 100, 1) for slot in range(30)] + [(30 + i, 0, 50) for i in range(10)]
    blocks = plan_pass(store, runs, block_cells=4 * 50 * 50).blocks
    assert [block.flat for block in blocks[:2]] == [slice(0, 30), slice(30, 230)]
    assert len(blocks) == 4
    assert all(block.mask_BQK.numel() <= 4 * 50 * 50 for block in blocks[1:])


def test_neighbouring_slots_are_read_in_place_and_scattered_ones_gathered() -> None:
    store = SlotStore(40, 512, CPU)
    near = plan_pass(store, [(slot, 5, 1) for slot in (3, 4, 6, 7)], block_cells=1 << 20)
    far = plan_pass(store, [(slot, 5, 1) for slot in (0, 39)], block_cells=1 << 20)
    assert near.blocks[0].slots == slice(3, 8)
    assert isinstance(far.blocks[0].slots, Tensor) and far.blocks[0].slots.tolist() == [0, 39]


@pytest.mark.parametrize(("length", "capacity"), [(256, 256), (257, 512), (900, 1000)])
def test_storage_doubles_up_to_the_longest_context(length: int, capacity: int) -> None:
    store = SlotStore(2, 1000, CPU)
    plan = plan_pass(store, [(1, 0, 2)], block_cells=1 << 20)
    before, _ = store.write(0, torch.ones(2, 1, 1), torch.ones(2, 1, 1), plan)
    store.reserve(length)
    after, _ = store.write(0, torch.ones(2, 1, 1), torch.ones(2, 1, 1), plan)
    assert store.capacity == after.shape[1] == capacity
    assert torch.equal(after[:, :256], before) and after.sum() == 2
    store.clear()
    assert store.capacity == 256


def test_a_copied_prefix_leaves_its_donor_alone() -> None:
    store = SlotStore(3, 16, CPU)
    plan = plan_pass(store, [(0, 0, 4)], block_cells=1 << 20)
    keys, values = store.write(
        0, torch.arange(4.0).view(4, 1, 1) + 1, torch.arange(4.0).view(4, 1, 1) + 5, plan
    )
    store.copy(0, 2, 3)
    assert keys[2, :5].flatten().tolist() == [1, 2, 3, 0, 0]
    assert values[2, :5].flatten().tolist() == [5, 6, 7, 0, 0]
    assert keys[0, :5].flatten().tolist() == [1, 2, 3, 4, 0]
