"""Reward components that any environment can be given: ``(task, action, transition) -> float``, per step.

They are counts and flags; the sign and the size of what they are worth is their weight.
"""

from __future__ import annotations

from steprl.types import Action, MalformedCall, Task, ToolCall, Transition


def malformed_calls(task: Task, action: Action, transition: Transition) -> float:
    """How many tool calls of the action could not be read."""
    return float(sum(isinstance(call, MalformedCall) for call in action.tool_calls))


def tool_calls(task: Task, action: Action, transition: Transition) -> float:
    """How many well-formed tool calls the action holds, known tools or not."""
    return float(sum(isinstance(call, ToolCall) for call in action.tool_calls))


def action_tokens(task: Task, action: Action, transition: Transition) -> float:
    """How many tokens the action has."""
    return float(len(action.token_ids))


def answer_format(task: Task, action: Action, transition: Transition) -> float:
    """1.0 for a final answer whose last line is ``#### `` and something; 0.0 for every other step."""
    if not transition.terminated or action.tool_calls:
        return 0.0
    lines = action.text.strip().splitlines()
    last = lines[-1].strip() if lines else ""
    return float(last.startswith("####") and bool(last.strip("# ")))
