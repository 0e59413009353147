"""What the framework itself costs per step of a rollout, and how much memory many episodes take.

    python benchmarks/rollout_overhead.py --episodes 10 100 1000 10000

All episodes run at once, five steps each, with an engine that answers from a script and an environment that
answers at once, so that nothing but the framework works. Rendering and parsing (the chat template, the
tokenizer, the tool-call format) are measured by themselves and taken off. Each count has a process of its
own. Times are of the processor, so that other work beside it does not count. One line per count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from steprl.context.append_only import AppendOnly
from steprl.engines.scripted import ScriptedEngine
from steprl.envs import ToolEnv
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.rewards.compose import RewardComposer
from steprl.rollout import EnvWorkflow, Pool
from steprl.tools import tool
from steprl.trainers.parts import model_path
from steprl.types import Action, Message, Sampling, Task, ToolSpec

CALL = '<tool_call>\n{"name": "note", "arguments": {"text": "five"}}\n</tool_call>'


class Notes(ToolEnv):
    """Four notes, then an answer."""

    system_prompt = "Take notes, then answer."

    @tool
    async def note(self, text: str) -> str:
        """Take a note.

        Args:
            text: what to write down
        """
        return "noted"

    tools = (note,)

    def reward(self, task: Task, answer: str) -> float:
        return 1.0


class Noting(ChatRenderer):
    """A renderer that notes what it is asked."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        self.asked.append(("render", (messages, tools)))
        return super().render(messages, tools)

    def parse(self, action_ids: Sequence[int], finish: str) -> Action:
        self.asked.append(("parse", (action_ids, finish)))
        return super().parse(action_ids, finish)


def peak_mib() -> float:
    """The greatest resident size so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def play(renderer: ChatRenderer, episodes: int, steps: int) -> float:
    """Play ``episodes`` at once; processor seconds."""
    stop = renderer.stop_ids[:1]
    call, answer = ([*renderer.encode(text), *stop] for text in (CALL, "done"))
    pool = Pool(
        workflow=EnvWorkflow(Notes, AppendOnly()),
        engine=ScriptedEngine(
            [call] * (steps - 1) + [answer], encode=renderer.encode, decode=renderer.decode
        ),
        renderer=renderer,
        rewards=RewardComposer({}),
        concurrency=episodes,
    )
    tasks = [Task(id=str(n), prompt=f"Number {n}.") for n in range(episodes)]
    sampling = Sampling(max_tokens=64, stop_ids=renderer.stop_ids)
    started = time.process_time()
    groups = asyncio.run(
        pool.collect(tasks, label="batch", seed=0, group_size=1, sampling=sampling, max_steps=steps)
    )
    seconds = time.process_time() - started
    assert sum(len(t.steps) for group in groups for t in group.trajectories) == episodes * steps
    return seconds


def rendering(asked: Sequence[tuple[str, tuple[Any, ...]]]) -> float:
    """Processor seconds that a fresh renderer needs for the same requests, in the same order."""
    renderer = ChatRenderer(load_tokenizer(model_path("quickstart")))
    started = time.process_time()
    for method, arguments in asked:
        getattr(renderer, method)(*arguments)
    return time.process_time() - started


def measure(episodes: int, steps: int) -> dict[str, float]:
    """What a step costs with so many episodes at once."""
    tokenizer = load_tokenizer(model_path("quickstart"))
    play(ChatRenderer(tokenizer), 10, steps)  # imports and first calls
    before = peak_mib()
    seconds = play(ChatRenderer(tokenizer), episodes, steps)
    peak = peak_mib()
    noting = Noting(tokenizer)
    play(noting, episodes, steps)
    rendered = rendering(noting.asked)
    played = episodes * steps
    return {
        "episodes": episodes,
        "seconds": seconds,
        "framework_ms_per_step": (seconds - rendered) / played * 1e3,
        "renderer_ms_per_step": rendered / played * 1e3,
        "peak_mib": peak,
        "kib_per_episode": (peak - before) * 1024 / episodes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.episodes[0], args.steps)))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, {args.steps} steps per episode")
    print("episodes   seconds   framework ms/step   rendering ms/step   peak MiB   KiB per episode")
    for episodes in args.episodes:
        command = [sys.executable, __file__, "--one", "--episodes", str(episodes), "--steps", str(args.steps)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{episodes:>8} {found['seconds']:>9.2f} {found['framework_ms_per_step']:>19.3f} "
            f"{found['renderer_ms_per_step']:>19.3f} {found['peak_mib']:>10.0f} "
            f"{found['kib_per_episode']:>17.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
