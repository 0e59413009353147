"""Who writes a summary in the policy's place: a component by name, or a function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeGuard

from steprl.errors import ConfigError, EngineError, EnvError, StepRLError
from steprl.registry import addresses, call, resolve
from steprl.types import Message, Writer

Write = Callable[[Sequence[Message]], Awaitable[str]]
"""Writes the summary that the last of these messages asks for."""

POLICY = "policy"


def made(writer: str | Write, args: Mapping[str, Any]) -> Write | None:
    """What ``writer`` is or names, made with ``args`` if it is a class; None for the policy.

    Raises:
        ConfigError: it is or names nothing that writes, or there are options that nothing takes.
    """
    write: Any = None
    is_made = False
    if writer != POLICY:
        write = resolve("writer", writer) if _is_name(writer) else writer
        is_made = isinstance(write, type)
        if is_made:
            write = call("writer", str(writer), write, args)
        _check(writer, write)
    if args and not is_made:
        raise ConfigError(
            f"llm_summary: writer_args are options of a writer that is made with them, such as "
            f"frozen_model; {writer!r} takes none, and they are {dict(args)}"
        )
    found: Write | None = write
    return found


def asked(write: Write, request: Sequence[Message], where: str) -> Writer:
    """``write`` with its request, whose errors are told as those of ``where``."""

    async def ask() -> str:
        try:
            written = await write(request)
        except (EnvError, ConfigError, EngineError) as error:
            raise type(error)(f"{where}: {error}") from error
        except StepRLError:
            raise
        except Exception as error:
            raise EnvError(
                f"{where}, asked with {len(request)} messages: it raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(written, str):
            raise EnvError(f"{where}: it returned {written!r}, which is not text")
        if not written.strip():
            raise EnvError(
                f"{where}: it returned {written!r}, and with it all that it stands for would be lost"
            )
        try:
            written.encode("utf-8")
        except UnicodeEncodeError as error:
            raise EnvError(f"{where}: {written!r:.200} cannot be written as UTF-8: {error.reason}") from None
        return written

    return ask


def _is_name(writer: str | Write) -> TypeGuard[str]:
    return isinstance(writer, str) and (":" in writer or writer in addresses("writer"))


def _check(writer: object, write: object) -> None:
    """Refuse what cannot be called, and what would hold up all episodes while it waits."""
    if not callable(write):
        known = ", ".join(f'"{name}"' for name in (POLICY, *addresses("writer")))
        raise ConfigError(
            f"llm_summary: writer is {writer!r}; it must be one of {known}, or an async function of yours as "
            f"module:attribute"
        )
    if not inspect.iscoroutinefunction(write) and not inspect.iscoroutinefunction(type(write).__call__):
        raise ConfigError(
            f"llm_summary: writer is {writer!r}, which is no async function; a plain one would hold up all "
            f"episodes while it waits"
        )
