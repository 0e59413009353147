"""Cassettes: what external tools answered, recorded once and played back in tests and debugging.

Whoever replays a cassette needs no network and no key, pays nothing, and gets the same answers every time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from steprl.errors import ConfigError, EnvError, ToolError, unknown

Mode = Literal["auto", "record", "replay"]

Key = tuple[str, str]
"""A tool's name, and the canonical JSON of the arguments it was called with."""

_playing: ContextVar[tuple[Cassette, ...]] = ContextVar("cassettes", default=())


class GivenUp(ToolError):
    """A tool gave no answer in time. The agent is told so, but a cassette does not record it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a tool told the agent: its result, or with ``refused`` the text of its ToolError."""

    text: str
    refused: bool

    def give(self) -> str:
        if self.refused:
            raise ToolError(self.text)
        return self.text


class Cassette:
    """Inside ``with Cassette(path):`` the calls of function tools go through a file.

    Each different call (tool and arguments) has one answer, the first: the result as the agent reads it,
    or the error text. Tools that are methods share an episode's state and are never recorded: they are the
    environment. The file is JSON Lines, one answer a line, written at once; a line that a kill cut short is
    dropped. What runs inside may use asyncio tasks and ``asyncio.to_thread``. Inside several cassettes, the
    innermost one that takes the tool answers.

    Args:
        path: the file; made, with its folder, when there is a first answer to write.
        mode: "auto" plays what is recorded, and calls and records what is not. "replay" never calls.
            "record" forgets what the file held and records every call anew.
        tools: names of the tools it takes; None: all.

    Raises:
        ConfigError: no such mode, nothing to replay, or a line of the file is not an answer.
    """

    def __init__(
        self, path: str | PathLike[str], mode: Mode = "auto", *, tools: Collection[str] | None = None
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(unknown("cassette mode", mode, get_args(Mode)))
        if isinstance(tools, str):
            raise ConfigError(f"Cassette(tools='{tools}') is text. Give a set of names: {{'{tools}'}}")
        self.path = Path(path)
        self.mode: Mode = mode
        self._tools = tools
        self._lock = Lock()
        self._running: dict[Key, Future[GivenUp | None]] = {}
        self._answers: dict[Key, _Answer] = {}
        self._keep: int | None = 0 if mode == "record" else None
        """Bytes that stay when the next answer is written; None: all of them."""
        self._size: int | None = self.path.stat().st_size if self.path.is_file() else 0
        """Bytes of the file when it was last looked at; None: a write failed half-way."""
        self._gap = b""
        """What goes before the next answer: a line's end that a hand has left out."""
        if mode == "replay" and not self.path.is_file():
            raise ConfigError(
                f"there is no cassette '{path}' to replay. Record it first, with mode 'auto', "
                f"or give the path of one that exists."
            )
        if mode != "record" and self.path.exists():
            self._keep, self._answers, self._gap = _read(self.path)

    def __enter__(self) -> Self:
        _playing.set((*_playing.get(), self))
        return self

    def __exit__(self, *raised: object) -> None:
        _playing.set(_playing.get()[:-1])

    def __len__(self) -> int:
        """How many answers it holds."""
        return len(self._answers)

    def takes(self, tool: str) -> bool:
        """Whether calls of this tool go through it."""
        return self._tools is None or tool in self._tools

    async def through(
        self, tool: str, arguments: Mapping[str, Any], call: Callable[[], Awaitable[str]]
    ) -> str:
        """The recorded answer to a call, or that of ``call()``, which is recorded then.

        Of equal calls at the same time one is made, and the others wait for its answer. A call that was
        cancelled, was given up or broke with anything but a ToolError has no answer and leaves no trace.

        Raises:
            ToolError: that is the answer.
            ConfigError: nothing is recorded for this call, and the mode is "replay"; or the file cannot be
                written.
        """
        key = self._key(tool, arguments)
        while True:
            with self._lock:
                answer = self._answers.get(key)
                others = self._running.get(key)
                if answer is None and others is None and self.mode != "replay":
                    self._running[key] = Future()
            if answer is not None:
                return answer.give()
            if self.mode == "replay":
                # nobody's doing, and no episode's alone: whatever plays ends here
                raise ConfigError(
                    f"cassette '{self.path}' has no answer of tool '{tool}' to {key[1]}, and mode 'replay' "
                    f"never calls. Record it with mode 'auto', or look for what made the arguments differ."
                )
            if others is None:
                return (await self._called(key, call)).give()
            # shielded: who stops waiting must not cancel what everybody waits for
            late = await asyncio.shield(asyncio.wrap_future(others))
            if late is not None:
                raise GivenUp(str(late))  # it took too long for all of them

    def _key(self, tool: str, arguments: Mapping[str, Any]) -> Key:
        try:
            return tool, canonical(arguments)
        except ValueError as error:
            raise EnvError(
                f"cassette '{self.path}': the arguments of tool '{tool}' cannot be written as JSON: {error}. "
                f"Name the tools to record without it: Cassette(path, tools={{…}})"
            ) from error

    async def _called(self, key: Key, call: Callable[[], Awaitable[str]]) -> _Answer:
        late: GivenUp | None = None
        try:
            try:
                answer = _Answer(text=await call(), refused=False)
            except GivenUp as error:
                late = error
                raise
            except ToolError as error:
                answer = _Answer(text=str(error), refused=True)
            with self._lock:
                self._write(key, answer)
                self._answers[key] = answer
            return answer
        finally:
            with self._lock:
                done = self._running.pop(key)
            done.set_result(late)

    def _write(self, key: Key, answer: _Answer) -> None:
        tool, arguments = key
        told = json.dumps(answer.text, ensure_ascii=False)
        line = (
            f'{{"tool": {json.dumps(tool)}, "arguments": {arguments}, '
            f'"{"error" if answer.refused else "result"}": {told}}}\n'
        )
        # half a surrogate pair is no UTF-8, and inside JSON its escape is the very same character
        written = line.encode("utf-8", "backslashreplace")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                if self._keep is not None:
                    if self._size not in (None, file.seek(0, os.SEEK_END)):
                        raise ConfigError(
                            f"cassette '{self.path}' has been written by another since it was read, and "
                            f"this one has to cut it first. Record with one at a time."
                        )
                    file.truncate(self._keep)
                self._keep = file.seek(0, os.SEEK_END)  # should this write fail half-way
                file.write(self._gap + written)
                self._size = file.tell()
            self._keep, self._gap = None, b""
        except OSError as error:
            self._size = None
            raise ConfigError(f"cassette '{self.path}' cannot be written: {error}") from error


def playing(tool: str) -> Cassette | None:
    """The cassette that calls of this tool go through here and now."""
    return next((cassette for cassette in reversed(_playing.get()) if cassette.takes(tool)), None)


def canonical(arguments: Any) -> str:
    """One JSON text for equal arguments, whatever the order of keys and of sets."""
    return json.dumps(to_jsonable_python(_ordered(arguments)), sort_keys=True, ensure_ascii=False)


def _ordered(value: Any) -> Any:
    """``value`` without what has no order of its own; what is none of these, pydantic writes."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(_ordered, value), key=canonical)
    if isinstance(value, Mapping):
        return {name: _ordered(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_ordered(inner) for inner in value]
    if isinstance(value, BaseModel):
        return {name: _ordered(getattr(value, name)) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value):
        return {field.name: _ordered(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _read(path: Path) -> tuple[int | None, dict[Key, _Answer], bytes]:
    """How many bytes of a file whose last line was cut short are whole (None: all), its answers, and what is
    missing at its end."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cassette '{path}' cannot be read: {error}") from error
    whole, gap = content.rfind(b"\n") + 1, b""
    if tail := content[whole:]:
        with suppress(ValueError, RecursionError):  # cut short, or else only its end of line is missing
            _entry(tail)
            content, gap = content + b"\n", b"\n"
            whole = len(content)
    answers: dict[Key, _Answer] = {}
    for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
        try:
            key, answer = _entry(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"cassette '{path}', line {number} is not a recorded answer: {error}. "
                f"Remove the line, or record the cassette anew with mode 'record'."
            ) from error
        answers.setdefault(key, answer)
    return (whole if whole < len(content) else None), answers, gap


def _entry(line: bytes) -> tuple[Key, _Answer]:
    """A line read back.

    Raises:
        ValueError: it is none.
    """
    entry: Any = json.loads(line.decode("utf-8"))
    if isinstance(entry, dict):
        for kind in ("result", "error"):
            if entry.keys() == {"tool", "arguments", kind}:
                texts = (entry["tool"], entry[kind])
                if all(isinstance(text, str) for text in texts) and isinstance(entry["arguments"], dict):
                    key = (entry["tool"], canonical(entry["arguments"]))
                    return key, _Answer(text=entry[kind], refused=kind == "error")
    raise ValueError('expected {"tool": text, "arguments": object, "result" or "error": text}')
