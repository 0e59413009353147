"""The lab: makes instances of the environment under check and their calls, and keeps a ledger of what broke.

Nothing that an environment does gets past it: what raises or hangs becomes a `Fault`, and the rest goes on.
"""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from steprl.envs.base import Env
from steprl.envs.checker.guard import Guard, Hung, Outcome
from steprl.envs.tool_env import ToolEnv
from steprl.errors import DeadlineError, EnvError, ScorerTimeout
from steprl.types import Action, Message, Observation, Task, ToolSpec, Transition, finite

HELD_TOO_LONG = 0.1
"""Seconds for which a call may keep everything else from running."""

_CHECKER = str(Path(__file__).parent)
_LIBRARIES = (str(Path(__file__).parents[2]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


class Fault(NamedTuple):
    """What went wrong: the check it counts for, in which call, and how."""

    check: str
    call: str
    problem: str


class Broken(Exception):
    """A call failed and stands in the ledger, so this episode is over. ``hung``: it did not come back."""

    def __init__(self, *, hung: bool) -> None:
        super().__init__()
        self.hung = hung


class Lab:
    """Where one environment is checked. ``faults`` counts what broke and ``first`` names the task of each.

    ``calls`` counts the calls that came back, by name; ``held`` is the longest time for which one held the
    event loop, in seconds; ``blocked`` counts those that held it longer than `HELD_TOO_LONG`.
    """

    def __init__(self, make: Callable[[], Any], deadline: float) -> None:
        self.make = make
        self.faults: Counter[Fault] = Counter()
        self.first: dict[Fault, str] = {}
        self.held: dict[str, float] = {}
        self.calls: Counter[str] = Counter()
        self.blocked: Counter[str] = Counter()
        self._guard = Guard(deadline, self._forgotten)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *raised: object) -> None:
        self._guard.close()

    def do(self, call: str, function: Callable[[], Any], task: str = "") -> Any:
        """What ``function`` returns, awaited.

        Raises:
            Broken: it raised or hung, which is in the ledger.
        """
        outcome = self.attempt(call, function, task)
        if outcome.error is not None:
            self.note(Fault(_concerns(call, outcome.error), call, told(outcome.error)), task)
            raise Broken(hung=isinstance(outcome.error, (DeadlineError, ScorerTimeout))) from None
        return outcome.value

    def attempt(self, call: str, function: Callable[[], Any], task: str = "") -> Outcome:
        """What came of a call that may raise. Only one that hangs is in the ledger.

        Raises:
            Broken: it hung.
        """
        try:
            outcome = self._guard.call(function)
        except Hung as hung:
            self.note(Fault("deadline", call, str(hung)), task)
            raise Broken(hung=True) from None
        self.held[call] = max(self.held.get(call, 0.0), outcome.held)
        self.calls[call] += 1
        self.blocked[call] += outcome.held > HELD_TOO_LONG
        return outcome

    def note(self, fault: Fault, task: str) -> None:
        """Put into the ledger what broke in an episode of ``task``."""
        self.faults[fault] += 1
        self.first.setdefault(fault, task)

    def _forgotten(self, error: BaseException) -> None:
        self.note(Fault("errors", "a task that it started itself", told(error)), "")

    def of(self, check: str) -> str:
        """The faults that count for a check, in words; empty when there are none."""
        found = [fault for fault in self.faults if fault.check == check]
        words = [f"{fault.call}: {fault.problem}{self._where(fault)}" for fault in found[:3]]
        return "; ".join([*words, *([f"and {len(found) - 3} other problems"] if len(found) > 3 else [])])

    def _where(self, fault: Fault) -> str:
        task, times = self.first[fault], self.faults[fault]
        words = [*([f"first in task '{task}'"] if task else []), *([f"{times} times"] if times > 1 else [])]
        return f" ({', '.join(words)})" if words else ""


class Instance:
    """One environment instance. Leaving the ``with`` block closes it; that it cannot is in the ledger."""

    def __init__(self, lab: Lab, task: str = "") -> None:
        self._lab = lab
        self._task = task
        self._state = " before reset"
        self.env: Env = self._do("constructor", lambda: _an_env(lab.make()))

    def __enter__(self) -> Instance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Broken:
            pass  # in the ledger, and nothing more can be done with this instance

    def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """The opening messages; Broken where ``reset`` raises or gives something else."""

        async def opening() -> tuple[Message, ...]:
            return _messages(await _coroutine(self.env.reset(task, seed=seed)))

        self._state = ""
        found: tuple[Message, ...] = self._do("reset", opening)
        return found

    def tools(self) -> tuple[ToolSpec, ...]:
        """What the agent is told about the tools; Broken where they cannot be read."""
        found: tuple[ToolSpec, ...] = self._do("tools", lambda: tuple(tool.spec for tool in self.env.tools))
        return found

    def step(self, action: Action) -> Transition:
        """The transition; Broken where ``step`` raises or gives something else."""

        async def answer() -> Transition:
            return _transition(await _coroutine(self.env.step(action)))

        found: Transition = self._do("step", answer)
        return found

    def close(self, *, after: str = "") -> None:
        """Close it, once more if it is closed already; Broken where that raises."""
        state, self._state = self._state, " a second time"
        self._do(f"close{after or state}", lambda: _coroutine(self.env.close()))

    def refuses(self, call: str, function: Callable[[Env], Any]) -> bool:
        """Whether a call that breaks the contract is answered with an exception; Broken where it hangs."""
        return self._lab.attempt(call, lambda: function(self.env), self._task).error is not None

    def do(self, call: str, function: Callable[[Env], Any]) -> Any:
        """Another call; Broken where it raises or hangs."""
        return self._do(call, lambda: function(self.env))

    def _do(self, call: str, function: Callable[[], Any]) -> Any:
        return self._lab.do(call, function, self._task)


def told(error: BaseException) -> str:
    """An exception in a line: its type, its message, and the line of the environment's code it comes from."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "its message cannot be read"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_CHECKER)]
    own = [frame for frame in theirs if not frame.filename.startswith(_LIBRARIES)] or theirs
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {message[:300]}{where}" if message else f"{type(error).__name__}{where}"


def _concerns(call: str, error: BaseException) -> str:
    """The check that a raised error counts for."""
    if isinstance(error, (DeadlineError, ScorerTimeout)):
        return "deadline"
    if call.startswith("close"):
        return "close"
    if call.startswith("oracle"):
        return "policies"
    raised_in = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return "rewards" if raised_in & _REWARD_CHECKS else "errors"


_REWARD_CHECKS: frozenset[CodeType] = frozenset({finite.__code__, ToolEnv._components.__code__})
"""What refuses a reward that is no finite number or out of range, before an environment can return it."""


def _an_env(made: Any) -> Env:
    if not isinstance(made, Env):
        raise EnvError(f"it made {made!r:.80}, which is no environment. Derive its class from steprl.Env.")
    return made


def _coroutine(given: Any) -> Awaitable[Any]:
    if not inspect.isawaitable(given):
        raise EnvError(f"it returned {given!r:.80} at once. Write it as async def.")
    return given


def _messages(given: Any) -> tuple[Message, ...]:
    if not _are_messages(given) or not given:
        raise EnvError(
            f"it returned {given!r:.80}. Return the opening as a list of at least one steprl.Message, whose "
            f"content is text."
        )
    return tuple(given)


def _are_messages(given: Any) -> bool:
    return isinstance(given, Sequence) and all(
        isinstance(message, Message) and isinstance(message.content, str) for message in given
    )


def _transition(given: Any) -> Transition:
    if not isinstance(given, Transition):
        raise EnvError(f"it returned {given!r:.80}. Return a steprl.Transition.")
    if not _are_messages(given.feedback):
        raise EnvError(f"its feedback is {given.feedback!r:.80}. Give a tuple of steprl.Message with text.")
    if not (given.anchor is None or isinstance(given.anchor, str)):
        raise EnvError(f"its anchor is {given.anchor!r:.80}. An anchor is text or None.")
    composed = given.observation
    if composed is None:
        return given
    if not isinstance(composed, Observation) or not _are_messages(composed.messages or ()):
        raise EnvError(f"its observation is {composed!r:.80}. Give a steprl.Observation.")
    return given
