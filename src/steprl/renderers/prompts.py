"""Prompts of any renderer: from an observation to ids, and whether one prompt continues another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steprl.types import Message, Observation, Renderer, ToolSpec


def prompt_ids(
    renderer: Renderer, observation: Observation, tools: Sequence[ToolSpec] = ()
) -> tuple[int, ...]:
    """Ids of the prompt for an observation: text as one user message, messages rendered, ids as they are."""
    if observation.token_ids is not None:
        return observation.token_ids
    if observation.messages is not None:
        return renderer.render(observation.messages, tools)
    assert observation.text is not None  # an observation is exactly one of the three
    return renderer.render((Message(role="user", content=observation.text),), tools)


def extends(
    prompt_ids: Sequence[int] | NDArray[Any],
    action_ids: Sequence[int] | NDArray[Any],
    next_prompt_ids: Sequence[int] | NDArray[Any],
) -> bool:
    """Whether the next prompt starts with prompt + action, token for token (ids i[P], i[A], i[P']).

    Where it holds, the two steps can be merged into one row (append-only context).
    """
    prompt, action, following = (
        np.asarray(ids, dtype=np.int64) for ids in (prompt_ids, action_ids, next_prompt_ids)
    )
    start, end = len(prompt), len(prompt) + len(action)
    return np.array_equal(following[:start], prompt) and np.array_equal(following[start:end], action)
