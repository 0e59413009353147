"""Reading what OpenAI-compatible servers answer: token ids in the shapes that they come in, and refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import httpx2

from steprl.errors import EngineError

_SHOWN = 400


def tokens(choice: Mapping[str, Any]) -> tuple[list[int] | None, list[float] | None]:
    """Token ids and their log-probabilities, as far as they are given: vLLM's and SGLang's way, or
    llama.cpp's."""
    told = choice.get("logprobs") or {}
    if (ids := choice.get("token_ids")) is not None:
        values = told.get("token_logprobs")
    elif content := told.get("content"):
        if any("id" not in entry for entry in content):
            return None, None
        ids, values = [entry["id"] for entry in content], [entry["logprob"] for entry in content]
    else:
        return None, None
    if values is None or len(values) != len(ids) or not all(map(_finite, values)):
        return list(ids), None
    return list(ids), list(values)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def whole_text(choice: Mapping[str, Any]) -> str:
    """The text, and the stop string that ended it and belongs to it, where the server says which.

    Raises:
        KeyError, ValueError: there is no text.
    """
    text, stop = choice["text"], choice.get("stop_reason")
    if not isinstance(text, str):
        raise ValueError(f"text is {text!r}")
    return text + stop if isinstance(stop, str) and not text.endswith(stop) else text


def parsed(response: httpx2.Response, url: str) -> Any:
    """The JSON of an answer.

    Raises:
        EngineError: it is none.
    """
    try:
        return response.json()
    except ValueError:
        raise EngineError(f"{url} answered with what is no JSON: {short(response.text)}") from None


def message(response: httpx2.Response) -> str:
    """What a server says about a refusal, in whichever shape."""
    try:
        body = response.json()
    except ValueError:
        return short(response.text)
    told = body.get("error", body) if isinstance(body, dict) else body
    return short(str(told.get("message", told) if isinstance(told, dict) else told)).rstrip(".")


def short(text: str) -> str:
    """On one line, and not endlessly."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _SHOWN else one_line[:_SHOWN] + "…"
