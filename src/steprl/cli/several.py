"""What the command-line library does not know: options with several values, ``--seeds 0 1 2``, and commands
of two words beside one of the first alone, ``eval diff`` beside ``eval``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from typer.core import TyperCommand, TyperGroup


def taking_several(*options: str) -> type[TyperCommand]:
    """A command whose ``options`` take all that follows them, up to the next option."""

    class Several(TyperCommand):
        """``--seeds 0 1 2`` is read as ``--seeds 0 --seeds 1 --seeds 2``."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, spread(args, options))

    return Several


def spread(args: Sequence[str], options: Sequence[str]) -> list[str]:
    """The arguments with one value for each mention of an option."""
    found: list[str] = []
    rest = list(args)
    while rest:
        first = rest.pop(0)
        values = list(takewhile(lambda word: not word.startswith("--"), rest)) if first in options else []
        del rest[: len(values)]
        # without a value it stays as it is, to be refused as an option without one
        found += [word for value in values for word in (first, value)] or [first]
    return found


class TwoWords(TyperGroup):
    """A group whose commands may have two words; ``eval diff`` comes before ``eval`` with an argument."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        both = " ".join(args[:2])
        command = self.get_command(ctx, both) if len(args) > 1 else None
        return (both, command, args[2:]) if command else super().resolve_command(ctx, args)
