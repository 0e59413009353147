"""The seams: what one room may expect of another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from steprl.types._arrays import Floats
from steprl.types.interaction import Action, History, Observation, Transition
from steprl.types.messages import Message, Task, ToolSpec
from steprl.types.records import TrajectoryGroup
from steprl.types.tokens import Completion, Prompt, Sampling
from steprl.types.training import Credits, MiniBatch, Need, Row, Scores


class Renderer(Protocol):
    """Messages ↔ token ids for one tokenizer, chat template and tool-call format."""

    stop_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """Ids of the prompt, ending where the assistant begins to write."""
        ...

    def encode(self, text: str, *, literal: bool = False) -> tuple[int, ...]:
        """Ids of a text, nothing added; control tokens that are spelled in a ``literal`` one are text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        ...

    def parse(self, action_ids: Sequence[int], finish: str, tools: Sequence[ToolSpec] = ()) -> Action:
        """Read an action: its text and its tool calls with their token spans.

        ``tools`` are those of its prompt: some formats need their schemas to tell a number from text.
        """
        ...


Writer = Callable[[], Awaitable[str]]
"""Somebody who writes an action in the policy's place, such as a frozen model."""


class Actor(Protocol):
    """What a context rule may use: it may measure prompts, and ask the policy (for a summary, say).

    ``max_context`` is the longest prompt plus action, in tokens.
    """

    @property
    def max_context(self) -> int: ...

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that these messages would make, descriptions of tools included."""
        ...

    async def act(
        self,
        observation: Observation,
        *,
        kind: Literal["act", "summary"] = "summary",
        writer: Writer | None = None,
    ) -> Action:
        """Ask the policy, which is shown the tools as ever, or ``writer``. The answer is a step; a summary
        stands in the history from then on."""
        ...


class ContextRule(Protocol):
    """``o_{t+1} = C(z_0 … z_t)`` (paper eq. 6, 13): a pure function of the history."""

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]: ...


class Session(Protocol):
    """Through which a workflow acts. It records every action as a step, exactly.

    ``reward_range`` is for the workflow to declare: the least and the greatest total reward of an episode
    before weights. An agent that breaks the environment gets the least; None leaves its episode out.
    """

    uid: str
    seed: int
    reward_range: tuple[float, float] | None

    @property
    def max_context(self) -> int:
        """The longest prompt plus action, in tokens."""
        ...

    def count(self, observation: Observation, *, tools: Sequence[ToolSpec] = ()) -> int:
        """Tokens of the prompt that this observation would make."""
        ...

    async def act(
        self,
        observation: Observation,
        *,
        tools: Sequence[ToolSpec] = (),
        agent: str = "policy",
        kind: Literal["act", "summary"] = "act",
        writer: Writer | None = None,
    ) -> Action:
        """Ask the policy for an action, or ``writer`` in its place, of whose tokens none is sampled.

        Raises the session's own stop when a limit is reached.
        """
        ...

    def observe(self, transition: Transition) -> None:
        """Record what the environment answered to the last action."""
        ...

    def reward(self, value: float, name: str) -> None:
        """Add a named reward component to the last step."""
        ...

    def metric(self, value: float, name: str) -> None:
        """Record a figure of the episode; statistics average it as ``episode/<name>``."""
        ...

    def end(self, *, truncated: bool = False) -> None:
        """Say that the episode is over: the task's end, or a limit that is not the task's."""
        ...


class Workflow(Protocol):
    """The freest layer: any control flow that acts through the session."""

    async def run(self, task: Task, session: Session) -> None: ...


class WeightSource(Protocol):
    """Where an engine finds new weights. ``kind`` says whether they are whole or an adapter."""

    kind: Literal["full", "adapter"]

    def tensors(self) -> Iterator[tuple[str, Any]]: ...


class Engine(Protocol):
    """Tokens in, completion out."""

    version: int
    max_context: int

    async def generate(
        self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int
    ) -> Completion: ...

    async def abort(self, session_id: str) -> None: ...

    def release(self, session_id: str) -> None:
        """The session is over: whatever is kept for its next prompt may go."""
        ...

    async def sync(self, source: WeightSource, version: int) -> None: ...


@runtime_checkable
class Estimator(Protocol):
    """Credit assignment: a pure function from recorded groups and scores to credits."""

    requires: frozenset[Need]

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits: ...


class Learner(Protocol):
    """Scores rows and takes optimiser steps. It does not know which estimator made the advantages."""

    def score(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities f32[N] of each row's action tokens under the current weights."""
        ...

    def update(self, batch: MiniBatch) -> Mapping[str, float]:
        """One optimiser step over the whole mini-batch."""
        ...

    def source(self) -> WeightSource:
        """The current weights, for engines to take."""
        ...

    def save(self, folder: str) -> None: ...

    def load(self, folder: str) -> None: ...
