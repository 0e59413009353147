"""The options of `[curriculum]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steprl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    """Which training task comes next. Left out: every task once per epoch, each epoch in its own order.

    ``id`` names a curriculum, or one's own as ``module:attribute``; ``args`` are its options.
    """

    id: str | None = None
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.id is None and self.args:
            raise ConfigError(
                f"curriculum.args = {self.args} without a curriculum.id: by_success and by_difficulty have "
                f"options. Name one, or remove them."
            )
