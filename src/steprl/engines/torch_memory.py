"""What the embedded engine holds in memory, weighed tensor by tensor. Nothing here runs a model."""

from __future__ import annotations

from dataclasses import dataclass

from steprl.engines.torch_engine import TorchEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes of an engine's weights and of its keys and values, and the tokens that each of its slots has
    room for so far: ``capacity`` doubles up to ``max_context`` as longer prompts come."""

    weights: int
    keys_values: int
    capacity: int


def engine_memory(engine: TorchEngine) -> EngineMemory:
    """Weigh an engine as it is now."""
    store = engine._store
    kept = [*store._keys.values(), *store._values.values()]
    return EngineMemory(
        weights=sum(tensor.nbytes for tensor in engine._model.parameters()),
        keys_values=sum(tensor.nbytes for tensor in kept),
        capacity=store.capacity,
    )
