"""The options of `[filter]`: which filters there are, and how often what they drop is made up for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steprl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """What of a rollout batch is kept to train on; without a filter, all of it.

    ``keep`` has an entry per filter, by its name or ``module:attribute``: its options, true for none, or
    false to leave it out. Where groups were dropped, up to ``max_rounds`` further rollouts play as many new
    tasks as groups are missing. A trajectory that a filter takes out leaves its group altogether; with
    ``in_statistics`` it is not trained on, and the others are still compared with it.
    """

    keep: dict[str, bool | dict[str, Any]] = field(default_factory=dict)
    max_rounds: int = 3
    in_statistics: bool = False

    def __post_init__(self) -> None:
        if self.max_rounds < 0:
            raise ConfigError(f"filter.max_rounds must be 0 (none) or above, got {self.max_rounds}")
        for name, options in self.keep.items():
            if options == {}:
                raise ConfigError(f"filter.keep.{name} has no options: write true (or false to leave it out)")
        if self.in_statistics and not any(self.keep.values()):
            raise ConfigError("filter.in_statistics has no effect without a filter. Remove it, or name one.")

    @property
    def named(self) -> dict[str, dict[str, Any]]:
        """The filters in use and their options, in the order of the recipe."""
        return {
            name: {} if options is True else options
            for name, options in self.keep.items()
            if not isinstance(options, bool) or options
        }
