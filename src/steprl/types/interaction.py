"""One round between agent and environment: observation, action, transition; and their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from steprl.types.messages import MalformedCall, Message, ToolCall, finite

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """``o_t``: what the model sees. Exactly one of ``text``, ``messages``, ``token_ids``."""

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("text", "messages", "token_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"an observation is exactly one of text, messages, token_ids; got {given or 'none'}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """``a_t``: what the model wrote, as text, as the exact ids, and as parsed tool calls.

    ``text`` leaves out the stop token; ``token_ids`` has it when it was sampled.
    """

    text: str
    token_ids: tuple[int, ...]
    tool_calls: tuple[ToolCall | MalformedCall, ...] = ()
    finish: Finish = "stop"

    def message(self) -> Message:
        """The action as the assistant message of later prompts, with its exact ids."""
        return Message(role="assistant", content=self.text, token_ids=self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What the environment returns for an action: ``e_t``, ``r_t`` and the end flags (paper eq. 5, 7).

    ``rewards`` are named components. ``anchor`` is the canonical state reached (no counters, no
    timestamps), for step-level credit. ``observation`` is set only by an environment that composes
    ``o_{t+1}`` itself; otherwise the context rule does.
    """

    feedback: tuple[Message, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    anchor: str | None = None
    observation: Observation | None = None

    def __post_init__(self) -> None:
        for name, value in self.rewards.items():
            finite(value, f"reward '{name}'")
        if self.terminated and self.truncated:
            raise ValueError("a transition is terminated or truncated, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """``z_t`` as a context rule sees it: the action and the feedback to it."""

    action: Action
    feedback: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An answer to a context rule that asked for a summary when there were ``rounds`` rounds."""

    action: Action
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``z_0 … z_t``: the opening messages of the episode and every round since, exact and complete.

    ``summaries`` are those that the context rule has asked for, in order: a rule that reads them here stays
    a function of the history.
    """

    opening: tuple[Message, ...]
    rounds: tuple[Round, ...] = ()
    summaries: tuple[Summary, ...] = ()

    def then(self, action: Action, feedback: tuple[Message, ...]) -> History:
        """This history with one more round."""
        return replace(self, rounds=(*self.rounds, Round(action=action, feedback=feedback)))

    def summarised(self, action: Action) -> History:
        """This history with a summary written now."""
        return replace(self, summaries=(*self.summaries, Summary(action=action, rounds=len(self.rounds))))
