"""Mixture: several rules, one per task, for a policy that is to work under any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from steprl.errors import ConfigError
from steprl.registry import make
from steprl.types import Actor, ContextRule, History, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """One of several rules, the same for a whole episode and for all that begin as it does.

    A hash of the opening messages chooses, each rule as likely as the others; one that is there twice is
    twice as likely. Episodes of a group begin alike, so their rewards can be compared. Where every task
    begins alike, every episode has the same rule.

    Args:
        rules: a table for each rule, ``{"id": "sliding_window", "args": {"rounds": 4}}``.

    Raises:
        ConfigError: fewer than two rules, or one that cannot be made.
    """

    rules: Sequence[Mapping[str, Any]]
    _made: tuple[ContextRule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.rules, str | Mapping) or len(self.rules) < 2:
            raise ConfigError(
                f"mixture: rules is {self.rules!r}; it must be a list of two rules or more, each a table "
                f'such as {{id = "sliding_window", args = {{rounds = 4}}}}'
            )
        object.__setattr__(self, "_made", tuple(_rule(table) for table in self.rules))

    async def __call__(self, history: History, actor: Actor) -> Sequence[Message]:
        """What the task's rule shows."""
        said = "\n".join(message.content for message in history.opening)
        number = int.from_bytes(sha256(said.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        return await self._made[number % len(self._made)](history, actor)


def _rule(table: object) -> ContextRule:
    """The rule of one table."""
    id, args = (table.get("id"), table.get("args", {})) if isinstance(table, Mapping) else (None, None)
    extra = sorted({*table} - {"id", "args"}) if isinstance(table, Mapping) else []
    if not isinstance(id, str) or not isinstance(args, Mapping) or extra:
        raise ConfigError(
            f"mixture: a rule is a table with its id, and its args if it takes any, such as "
            f'{{id = "sliding_window", args = {{rounds = 4}}}}; got {table!r}'
        )
    rule: ContextRule = make("context", id, args)
    if isinstance(rule, Mixture):
        raise ConfigError("mixture: a rule of it is a mixture itself; name the rules of both side by side")
    return rule
