"""Options of context rules, checked where a rule is made: before the first episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steprl.errors import ConfigError
from steprl.registry import load
from steprl.types import Actor


def whole(rule: str, name: str, value: object, *, least: int, meaning: str) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{rule}: {name} is {value!r}; it must be a whole number of at least {least}: {meaning}"
        )


def text(rule: str, name: str, value: object, *, meaning: str, empty: bool = False) -> None:
    """Refuse what is not text, and empty text unless ``empty``."""
    if not isinstance(value, str) or not (value or empty):
        raise ConfigError(
            f"{rule}: {name} is {value!r}; it must be {'' if empty else 'some '}text: {meaning}"
        )


def function(rule: str, name: str, value: object, *, instead: str) -> Callable[..., Any]:
    """The user's function that ``value`` is, or names as ``module:attribute``.

    ``instead`` are the other values of the option, for the message that refuses anything else.
    """
    found: Any = value
    if isinstance(value, str) and ":" in value:
        found = load(f"{rule}: {name} '{value}'", value)
    if not callable(found):
        raise ConfigError(
            f"{rule}: {name} is {value!r}; it must be {instead}, or a function of yours as module:attribute"
        )
    called: Callable[..., Any] = found
    return called


def below_context(rule: str, name: str, tokens: int, actor: Actor) -> None:
    """Refuse a limit that the context's own end comes before."""
    if tokens >= actor.max_context:
        raise ConfigError(
            f"{rule}: {name} = {tokens}, but the context holds {actor.max_context} tokens, and would be full "
            f"before the rule does anything. Set {name} to that less the tokens of an answer, or raise "
            f"engine.max_context."
        )
