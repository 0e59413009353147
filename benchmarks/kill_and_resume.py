"""Runs killed at random moments and resumed, against one that nothing interrupted.

    python benchmarks/kill_and_resume.py --kills 20 --seed 0

A tiny policy plays an environment whose tools take a random time, in threads, in deterministic mode. Every
run is a process of its own that gets SIGKILL at a moment drawn over the whole duration of a run (evaluation,
rollout, update and checkpoints included); every fourth one gets it while a checkpoint is being written, and
every third one is killed once more after it was resumed. The resumed runs must then hold what the
uninterrupted one holds: the same tasks in the same order, every token, the final weights and the optimiser's
state bit for bit, and the same figures except times. A run with another seed stands beside them: it must
differ, or the comparison would be worth nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import mmap
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tiny import tiny_tokenizer
from tiny_model import tiny_llama

from steprl.config import build
from steprl.envs import Env
from steprl.tools import tool
from steprl.trainers import api, loop
from steprl.trainers.progress import Display, Phase
from steprl.trainers.recipe import Recipe
from steprl.trainers.storage.run_folder import RunFolder
from steprl.trajectory.store import read
from steprl.types import Action, Message, Task, Transition

TASKS = 5
"""An epoch, on purpose no multiple of the groups of an iteration."""

RECIPE: dict[str, Any] = {
    "threads": 1,
    "deterministic": True,
    "env": {"id": "kill_and_resume:Errand", "train": "train", "eval": "eval"},
    "engine": {"id": "torch", "slots": 4, "max_context": 512},
    "rollout": {"groups": 2, "group_size": 3, "max_steps": 2, "max_tokens": 8},
    "algorithm": {"minibatches": 2},
    "learner": {"lr": 1e-2},
    "train": {"iterations": 5, "checkpoint_every": 1, "show_every": 0},
    "evaluation": {"tasks": 2, "every": 2},
}

_chance = SystemRandom()  # no seed reaches it


@tool
def weigh(text: str) -> int:
    """How many different characters a text has; it takes its time."""
    time.sleep(_chance.uniform(0.0, 0.02))
    return len(set(text))


class Errand(Env):
    """Whatever is written is weighed, twice at once; after two rounds the weight is the reward."""

    tools = (weigh,)
    reward_range = (0.0, 100.0)

    def __init__(self) -> None:
        self._rounds = 0

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        return [Task(id=f"{source}-{n}", prompt=f"Errand {n} to {source}.") for n in range(TASKS)]

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        return [Message(role="user", content=task.prompt)]

    async def step(self, action: Action) -> Transition:
        halves = action.text[::2], action.text[1::2]
        weights = await asyncio.gather(*(weigh.run({"text": half}) for half in halves))
        self._rounds += 1
        feedback = tuple(Message(role="tool", content=weight, name="weigh") for weight in weights)
        return Transition(
            feedback=feedback,
            rewards={"outcome": float(sum(map(int, weights)))},
            terminated=self._rounds == 2,
        )


class Shown(Display):
    """A display that nobody sees, but which tells another process what the run is doing."""

    def __init__(self, memory: mmap.mmap) -> None:
        super().__init__(Console(file=io.StringIO()))
        self._memory = memory
        self._doing = ["starting"]

    @contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[Phase]:
        self._doing.append("update" if name == "training" else name.split()[0].strip(","))
        self._tell()
        with super().phase(name, total, done) as bar:
            yield bar
        self._doing.pop()
        self._tell()

    def _tell(self) -> None:
        self._memory[:] = self._doing[-1].encode().ljust(len(self._memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When to kill: so many seconds after the start, or after the checkpoint of an iteration is begun."""

    seconds: float
    saving: int | None = None

    def wait(self, run: Path, child: int) -> None:
        """Return at that moment, or when the process has ended."""
        if self.saving is not None:
            begun = run / "checkpoints" / f".step-{self.saving}.partial"
            while not begun.exists() and _runs(child):
                time.sleep(0.001)
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"{'' if self.saving is None else f'save {self.saving} + '}{self.seconds:.2f} s"


def _runs(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended, after how many seconds, and what it was doing then."""

    killed: bool
    seconds: float
    doing: str


def process(recipe: Recipe, *, resume: bool, kill_at: Moment | None = None) -> Ended:
    """Train in a forked process, which has imported everything already; kill it at that moment.

    Raises:
        RuntimeError: the run failed by itself.
    """
    folder, memory = Path(recipe.runs) / recipe.name, mmap.mmap(-1, 16)
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        try:
            api.run(recipe, resume=folder if resume else None, display=Shown(memory))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if kill_at is not None:
        kill_at.wait(folder, child)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    doing = memory[:].decode().strip(" \0") or "starting"
    if any((folder / "checkpoints").glob(".step-*")):
        doing = "saving"
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"the run in {folder} failed; see above")
    return Ended(killed=os.WIFSIGNALED(status), seconds=time.perf_counter() - started, doing=doing)


def killed_and_resumed(recipe: Recipe, moments: Sequence[Moment]) -> list[Ended]:
    """Train, be killed at each moment in turn, and resume to the end."""
    ended: list[Ended] = []
    for moment in moments:
        ended.append(process(recipe, resume=_begun(recipe), kill_at=moment))
    process(recipe, resume=_begun(recipe))
    return ended


def _begun(recipe: Recipe) -> bool:
    """Whether there is a run to resume: a kill may come before its folder is there."""
    return (Path(recipe.runs) / recipe.name).exists()


# --- what must be the same ----------------------------------------------------------------------------


def comparison(one: Path, other: Path) -> dict[str, bool]:
    """Which parts of two finished runs are the same, bit for bit."""
    return {
        "tasks": _tasks(one) == _tasks(other),
        "tokens": _tokens(one) == _tokens(other),
        "weights": _same(_weights(one), _weights(other)),
        "optimiser": _same(_optimiser(one), _optimiser(other)),
        "figures": _figures(one) == _figures(other),
        "nothing left over": _leftovers(one) == _leftovers(other) == [],
    }


def _tasks(run: Path) -> list[str]:
    return [group.task_id for group in read(run, split="train")]


def _tokens(run: Path) -> list[Any]:
    return [
        (t.uid, t.seed, s.prompt_ids.tolist(), s.action_ids.tolist(), None if s.logprobs is None else
         s.logprobs.tolist(), s.policy_versions.tolist(), s.reward)
        for group in read(run)
        for t in group.trajectories
        for s in t.steps
    ]  # fmt: skip


def _weights(run: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(RunFolder(run).checkpoints()[-1] / "model.safetensors"))


def _optimiser(run: Path) -> dict[str, Any]:
    return dict(torch.load(RunFolder(run).checkpoints()[-1] / "optimiser.pt", weights_only=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _figures(run: Path) -> list[Any]:
    """Metrics and summary without times."""
    lines = [*RunFolder(run).metrics(), RunFolder(run).summary() or {}]
    timed = ("time/", "speed/", "train_seconds")
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]


def _leftovers(run: Path) -> list[str]:
    """What should be gone: partial files and folders, and checkpoints but the newest."""
    partial = [path.name for path in run.rglob(".*") if path.name != ".lock"]
    return partial + [path.name for path in RunFolder(run).checkpoints()[:-1]]


# --- the benchmark ------------------------------------------------------------------------------------


def recipe_in(folder: Path, name: str, seed: int = 0) -> Recipe:
    """The recipe of this benchmark, its run and its policy in ``folder``."""
    table = {**RECIPE, "name": name, "seed": seed, "runs": str(folder / "runs")}
    return build(Recipe, {**table, "model": {"path": str(folder / "policy")}})


def write_policy(folder: Path) -> None:
    """A tiny random Llama and its tokenizer."""
    tokenizer = tiny_tokenizer()
    tiny_llama(len(tokenizer)).save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")


def moments_of(kills: int, seconds: float, rng: np.random.Generator) -> Iterator[list[Moment]]:
    """When to kill each run."""
    for number in range(kills):
        if number % 4 == 3:
            iteration = int(rng.integers(1, RECIPE["train"]["iterations"], endpoint=True))
            moments = [Moment(seconds=rng.uniform(0.0, 0.1), saving=iteration)]
        else:
            moments = [Moment(seconds=rng.uniform(0.0, seconds))]
        if number % 3 == 2:
            moments.append(Moment(seconds=rng.uniform(0.0, seconds / 2)))
        yield moments


def measure(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Everything, in figures: the rows of the table and what was compared with."""
    torch.set_num_threads(1)  # before any fork: a pool of threads does not survive one
    # the picture of each save takes longer than all the rest of these runs: kills are wanted elsewhere
    loop.draw = lambda *_, **__: None
    write_policy(folder)
    straight = recipe_in(folder, "straight")
    ended = [process(recipe, resume=False) for recipe in (replace(straight, name="warm"), straight)]
    seconds = min(end.seconds for end in ended)
    control = recipe_in(folder, "control", seed=1)
    process(control, resume=False)
    runs = folder / "runs"
    rows = []
    for number, moments in enumerate(moments_of(kills, seconds, np.random.default_rng(seed)), start=1):
        recipe = replace(straight, name=f"killed-{number}")
        ended = killed_and_resumed(recipe, moments)
        rows.append(
            {
                "moments": [str(moment) for moment in moments],
                "killed": [end.killed for end in ended],
                "doing": [end.doing if end.killed else "finished" for end in ended],
                "same": comparison(runs / recipe.name, runs / straight.name),
            }
        )
    return {
        "seconds": seconds,
        "tasks": _tasks(runs / "straight"),
        "control": comparison(runs / "control", runs / "straight"),
        "rows": rows,
    }


def show(found: Mapping[str, Any], console: Console) -> None:
    """The table, and the sentence it is quoted for."""
    checks = list(found["control"])
    table = Table("run", "killed after", "while", *checks)
    for number, row in enumerate(found["rows"], start=1):
        moments = ", ".join(row["moments"])
        marks = ["same" if row["same"][check] else "DIFFERS" for check in checks]
        table.add_row(str(number), moments, ", ".join(row["doing"]), *marks)
    console.print(table)
    same = sum(all(row["same"].values()) for row in found["rows"])
    differing = [check for check in checks if not found["control"][check]]
    console.print(
        f"{same} of {len(found['rows'])} killed runs ended as the uninterrupted one, which took "
        f"{found['seconds']:.1f} s; a run with another seed differs in {', '.join(differing)}",
        soft_wrap=True,
    )
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, {versions}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="how many runs are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.kills, arguments.seed)
    show(found, Console(width=110))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.exit(not all(all(row["same"].values()) for row in found["rows"]))


if __name__ == "__main__":
    main()
