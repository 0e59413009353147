"""What a process holds in memory: its greatest size over a while, and the weight of a run's own tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil

from steprl.engines.torch_engine import TorchEngine
from steprl.engines.torch_memory import engine_memory
from steprl.learner.optimiser import Optimiser
from steprl.trainers.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Bytes. ``program`` is the process before anything was built; ``peak`` its greatest resident size since
    then. ``reference`` and ``critic`` are those models where there are any, the critic with its gradients and
    optimiser. ``capacity`` and ``max_context`` are tokens per slot of the engine, now and at most."""

    program: int
    weights: int
    optimiser: int
    reference: int
    critic: int
    engine_weights: int
    keys_values: int
    peak: int
    available: int
    capacity: int
    max_context: int


class PeakMemory:
    """The greatest resident memory of this process while it is open, looked at every few milliseconds."""

    def __init__(self, interval: float = 0.005) -> None:
        self._process = psutil.Process()
        self._interval = interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self.start = self.peak = self.now()

    def now(self) -> int:
        """Bytes resident at this moment."""
        return int(self._process.memory_info().rss)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.peak = max(self.peak, self.now())

    def _watch(self) -> None:
        while not self._done.wait(self._interval):
            self.peak = max(self.peak, self.now())


def weigh(parts: Parts, memory: PeakMemory) -> MemoryFigures:
    """The figures after a calibration: optimiser and engine hold what they hold in a run."""
    engine = parts.player.engine
    held = engine_memory(engine) if isinstance(engine, TorchEngine) else None
    reference, critic = parts.models.reference, parts.models.critic
    return MemoryFigures(
        program=memory.start,
        weights=sum(tensor.nbytes for _, tensor in parts.learner.source().tensors()),
        optimiser=_moments(parts.learner.optimiser),
        reference=0 if reference is None else _weights(reference.model.parameters()),
        critic=0 if critic is None else 2 * _weights(critic.parameters()) + _moments(critic.optimiser),
        engine_weights=held.weights if held else 0,
        keys_values=held.keys_values if held else 0,
        peak=memory.peak,
        available=memory.now() + int(psutil.virtual_memory().available),
        capacity=held.capacity if held else 0,
        max_context=engine.max_context if held else 0,
    )


def _weights(parameters: Iterable[Any]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _moments(optimiser: Optimiser) -> int:
    """What an optimiser keeps for every weight, once it has taken a step."""
    moments = optimiser.state()["adam"]["state"].values()
    return sum(tensor.nbytes for of_one in moments for tensor in of_one.values())
