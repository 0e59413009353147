"""What does an episode leave behind? Many short episodes, with memory, threads, files and processes counted.

Caches fill and pools start in the first fifth; after that nothing may go on growing.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, sleep

import psutil

from steprl.envs.checker.lab import HELD_TOO_LONG, Broken, Instance, Lab
from steprl.envs.checker.report import Check, failed, passed, warned
from steprl.types import Action, Task

FIFTHS = 5
_MEASURED = (1, 3, 5)
"""Fifths after which everything is counted: warmed up, half of the rest, the end."""
_SETTLING = 0.2
"""Seconds given to threads and processes that are on their way out."""
_ACCIDENTS = 0.005
"""Share of calls that may hold the event loop: a first import, a busy machine."""
_STILL_GROWING = 0.25
"""A jump is not a leak: at least this share of the growth comes late."""
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Something that can leak: how much growth is no accident, and what to do about it."""

    name: str
    unit: str
    noticed: float
    remedy: str


_KINDS = (
    _Kind(
        name="memory",
        unit="MB",
        noticed=1.5,
        remedy="What an episode makes must go with the instance: look for lists and dicts on the class or "
        "the module, and caches without a limit.",
    ),
    _Kind(
        name="threads",
        unit="threads",
        noticed=3,
        remedy="End in close what the episode started, or share one pool between all instances.",
    ),
    _Kind(
        name="files",
        unit="open files and sockets",
        noticed=3,
        remedy="Close files, sockets and pipes in close, or open them in a with block.",
    ),
    _Kind(
        name="processes",
        unit="child processes",
        noticed=3,
        remedy="End in close what the episode started, and wait for it: a dead child stays until then.",
    ),
)


def resources(
    lab: Lab, tasks: Sequence[Task], actions: Sequence[Action], *, resets: int, seed: int
) -> list[Check]:
    """Make, reset, one step, close, ``resets`` times over, and one check for each thing that can leak."""
    process = psutil.Process()
    marks = [round(resets * fifth / FIFTHS) for fifth in _MEASURED]
    counts: list[tuple[float, ...]] = []
    played = 0
    for index in range(resets):
        task = tasks[index % len(tasks)]
        try:
            with Instance(lab, task.id) as instance:
                instance.reset(task, seed + index)
                # another action whenever the tasks have been through
                instance.step(actions[index // len(tasks) % len(actions)])
            played += 1
        except Broken as broken:
            if broken.hung:
                break
        if index + 1 in marks:
            counts.append(_counted(process, counts[-1] if counts else ()))
    if len(counts) < len(marks) or not played:
        return [
            warned(kind.name, f"not checked: {played} of {resets} resets could be played") for kind in _KINDS
        ]
    return [_judged(kind, [count[i] for count in counts], resets) for i, kind in enumerate(_KINDS)]


def event_loop(lab: Lab) -> Check:
    """Whether reset and step let other episodes go on. A long call now and then is the machine's doing."""
    found = [f"{call} {lab.held[call]:.3f} s" for call in ("reset", "step") if call in lab.held]
    if not found:
        return warned("event_loop", "not checked: nothing could be called")
    longest = f"held longest: {', '.join(found)}"
    blocking = [
        call for call in ("reset", "step") if lab.blocked[call] > max(1, _ACCIDENTS * lab.calls[call])
    ]
    if blocking:
        times = " and ".join(f"{call} {lab.blocked[call]} of {lab.calls[call]} times" for call in blocking)
        return warned(
            "event_loop",
            f"{longest}; {times} for over {HELD_TOO_LONG:g} s, while all other episodes stand still. Make "
            f"slow work a sync @tool, which runs in a thread, or await asyncio.to_thread(…).",
        )
    return passed("event_loop", longest)


def _counted(process: psutil.Process, before: tuple[float, ...]) -> tuple[float, ...]:
    """Memory in MB, threads, open files, child processes; waits a little for what is just ending."""
    gc.collect()
    end = monotonic() + _SETTLING
    while True:
        count = (
            process.memory_info().rss / _MEGABYTE,
            process.num_threads(),
            process.num_handles() if os.name == "nt" else process.num_fds(),
            len(process.children(recursive=True)),
        )
        if not before or count[1:] <= before[1:] or monotonic() > end:
            return count
        sleep(0.02)


def _judged(kind: _Kind, counts: Sequence[float], resets: int) -> Check:
    first, middle, last = counts
    growth, late = last - first, last - middle
    warm = round(resets / FIFTHS)
    found = f"{first:.4g} {kind.unit} after {warm} resets, {last:.4g} after {resets}"
    if growth >= kind.noticed and late >= _STILL_GROWING * growth:
        each = growth / (resets - warm)
        per = f"{each * 1024:.1f} KB" if kind.name == "memory" else f"{each:.2g}"
        return failed(kind.name, f"{found}: {per} a reset, and still growing. {kind.remedy}")
    return passed(kind.name, found)
