"""Short ways to play episodes in a test: a real tokenizer, engines that need no model, a small environment.

Recipes of tests name some of these as ``playing:...``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cache
from random import random
from typing import Any

import numpy as np
from tiny import tiny_tokenizer

from steprl.context import AppendOnly
from steprl.engines.scripted import ScriptedEngine
from steprl.envs import Env, ToolEnv
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.rewards import RewardComposer
from steprl.rollout import EnvWorkflow, FailurePolicy, Pool
from steprl.tools import tool
from steprl.types import (
    Action,
    Completion,
    ContextRule,
    Observation,
    Prompt,
    Sampling,
    Session,
    Task,
    Trajectory,
    TrajectoryGroup,
    Transition,
    WeightSource,
    Workflow,
)


@cache
def renderer() -> ChatRenderer:
    """The tiny tokenizer with the ChatML template."""
    return ChatRenderer(tiny_tokenizer())


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Recorder(ScriptedEngine):
    """The scripted engine, which also keeps what it was asked, what it answered, and whom it released."""

    def __init__(self, script: Any, **options: Any) -> None:
        super().__init__(script, encode=renderer().encode, decode=renderer().decode, **options)
        self.asked: list[tuple[str, tuple[int, ...], int]] = []
        self.answered: list[tuple[int, ...]] = []
        self.released: list[str] = []

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        self.asked.append((session_id, tuple(prompt.ids.tolist()), seed))
        completion = await super().generate(prompt, sampling, session_id=session_id, seed=seed)
        self.answered.append(tuple(completion.ids.tolist()))
        return completion

    def release(self, session_id: str) -> None:
        self.released.append(session_id)
        super().release(session_id)


class Dice:
    """An engine that draws each reply with the seed it is given: all that it says follows from seeds,
    whatever the order in which requests arrive. ``delay`` is the longest it takes to answer."""

    def __init__(
        self, *, replies: Sequence[str], model: str | None = None, max_context: int = 4096, delay: float = 0.0
    ) -> None:
        self.version = 0
        self.max_context = max_context
        self._replies = replies
        self._delay = delay
        self._encode = renderer().encode if model is None else ChatRenderer(load_tokenizer(model)).encode

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        reply = self._replies[int(np.random.default_rng(seed).integers(len(self._replies)))]
        await asyncio.sleep(self._delay * random())
        ids = [*self._encode(reply), sampling.stop_ids[0]]
        return Completion(
            ids=np.asarray(ids, dtype=np.int32),
            logprobs=np.zeros(len(ids), dtype=np.float32),
            policy_versions=np.full(len(ids), self.version, dtype=np.int32),
            finish="stop",
        )

    async def abort(self, session_id: str) -> None:
        """Nothing waits long enough to be aborted."""

    def release(self, session_id: str) -> None:
        """Nothing is kept."""

    async def sync(self, source: WeightSource, version: int) -> None:
        self.version = version


class Guess(ToolEnv):
    """Guess a digit; asking for a hint is a round more."""

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        return guesses(0) if source == "none" else guesses(6) if source == "train" else guesses(4, first=90)

    @tool
    def hint(self) -> str:
        """A hint."""
        return "small"

    tools = (hint,)

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == str(task.answer))


REPLIES = ("0", "1", "2", call("hint"))
"""What ``Dice`` may say in ``Guess``."""


def guesses(count: int, *, first: int = 0) -> list[Task]:
    """Tasks of ``Guess``. Those for evaluation begin at 90: they must not be those trained on."""
    return [
        Task(id=f"task-{n}", prompt=f"Which digit? No. {n}", answer=n % 3)
        for n in range(first, first + count)
    ]


def letters(task: Task, action: Action, transition: Transition) -> float:
    """A reward component that differs between almost any two actions: distinct characters written."""
    return float(len(set(action.text)))


def play(
    what: Callable[[], Env] | Workflow,
    engine: Any,
    tasks: Sequence[Task] | None = None,
    *,
    group_size: int = 1,
    concurrency: int = 16,
    max_steps: int = 8,
    max_tokens: int = 256,
    weights: dict[str, float] | None = None,
    context: ContextRule | None = None,
    label: str = "batch",
    seed: int = 0,
    progress: Callable[[Trajectory], None] | None = None,
    beside_a_good_one: bool = False,
    **options: Any,
) -> list[TrajectoryGroup]:
    """Play one batch with a fresh pool: of an environment class, or of a workflow.

    ``beside_a_good_one`` adds a last episode that ends at once and cannot break, so that not all fail.
    ``options`` are the pool's.
    """
    options.setdefault("failures", FailurePolicy(backoff=0.0))
    options.setdefault("renderer", renderer())
    tasks = [Task(id="task", prompt="Begin.")] if tasks is None else tasks
    if beside_a_good_one:
        tasks = [*tasks, Task(id="good", prompt="Begin.")]
    workflow: Any = what if hasattr(what, "run") else EnvWorkflow(what, context or AppendOnly())  # type: ignore[arg-type]
    if beside_a_good_one:
        workflow = _Beside(workflow)
    pool = Pool(
        workflow=workflow,
        engine=engine,
        rewards=RewardComposer(weights or {}),
        concurrency=concurrency,
        **options,
    )
    return asyncio.run(
        pool.collect(
            tasks,
            label=label,
            seed=seed,
            group_size=group_size,
            sampling=Sampling(max_tokens=max_tokens, stop_ids=options["renderer"].stop_ids),
            max_steps=max_steps,
            progress=progress,
        )
    )


class _Beside:
    """A workflow that plays the task "good" as one action that is worth nothing."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow

    async def run(self, task: Task, session: Session) -> None:
        if task.id != "good":
            return await self._workflow.run(task, session)
        await session.act(Observation(text="Begin."))
        session.reward(0.0, "outcome")


def members(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """All trajectories, in order."""
    return [trajectory for group in groups for trajectory in group.trajectories]


def only(groups: Sequence[TrajectoryGroup]) -> Trajectory:
    """The one trajectory there is."""
    (trajectory,) = members(groups)
    return trajectory
