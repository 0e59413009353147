"""The policies that the checker plays: a silent one, a random one, one that repeats itself, an oracle.

They act as a model does, after the renderer has read what it wrote: with text, tool calls and their ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

from steprl.envs.checker.draw import draw_arguments
from steprl.envs.policy import Move, ScriptedPolicy
from steprl.errors import EnvError
from steprl.types import Action, Finish, MalformedCall, Message, ToolCall, ToolSpec

Calls = Sequence[tuple[str, Mapping[str, Any]]]


class Player(Protocol):
    """Chooses the next action from what the agent has read and said so far, and from the tools."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action: ...


class NullPlayer:
    """Says nothing, as a broken model would."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        return action("")


class RandomPlayer:
    """Calls tools at random and answers at random; now and then an unknown tool, an unreadable call, a
    message cut at the length limit. A function of its seed and the messages."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        rng = Random(f"{self._seed}\n" + "\n".join(message.content for message in messages))
        words = _words(messages)
        kind = rng.random()
        if kind < 0.04:
            return action("", [("no_such_tool", {})])
        if kind < 0.08:
            return malformed()
        if kind < 0.12:
            return action(" ".join(rng.choices(words, k=5)), finish="length")
        if kind < 0.3 or not tools:
            return action(rng.choice([*words, str(rng.randint(0, 100)), "yes", "no", "A"]))
        return action("", [_call(rng.choice(tools), rng, words)])


class RepeatPlayer:
    """Makes the same first move for ever: a call of the first tool, or the same words."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        if not tools:
            return action("Hello?")
        rng = Random(0)  # the same arguments in every episode and at every step
        return action("", [_call(tools[0], rng, ["Hello?"])])


class ScriptedPlayer:
    """An environment's own policy, such as its oracle."""

    def __init__(self, policy: ScriptedPolicy) -> None:
        self._policy = policy

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        move = self._policy.act(messages)
        if not isinstance(move, Move):
            raise EnvError(f"it returned {move!r:.80}. Return a steprl.envs.policy.Move.")
        return action(move.text, move.calls)


class RecordedPlayer:
    """Does again what was done in another episode."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._left = iter(actions)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        return next(self._left)


def action(text: str, calls: Calls = (), *, finish: Finish = "stop") -> Action:
    """What a renderer would make of this text and these calls, with a token for each byte."""
    made = tuple(
        ToolCall(name=name, arguments=dict(arguments), id=f"call_{index}")
        for index, (name, arguments) in enumerate(calls)
    )
    written = [
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
        for call in made
    ]
    whole = "\n".join([*([text] if text else []), *written])
    return Action(text=whole, token_ids=_tokens(whole), tool_calls=made, finish=finish)


def malformed() -> Action:
    """An action whose only call cannot be read."""
    text = '<tool_call>\n{"name": \n</tool_call>'
    call = MalformedCall(raw=text, reason="the JSON is not finished before </tool_call>")
    return Action(text=text, token_ids=_tokens(text), tool_calls=(call,))


def _tokens(text: str) -> tuple[int, ...]:
    return (*text.encode("utf-8", "replace"), 0)


def _call(tool: ToolSpec, rng: Random, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    return tool.name, draw_arguments(tool.parameters, rng, words)


def _words(messages: Sequence[Message]) -> list[str]:
    """The words that the agent has read last, without the punctuation around them."""
    read = " ".join(message.content for message in messages[-4:] if message.role != "assistant")
    return [bare for word in read[-2000:].split() if (bare := word.strip(".,;:!?()[]\"'"))] or ["hello"]
