"""What a filter is: a value that keeps or drops trajectories, or groups. One's own derives from these."""

from __future__ import annotations

from abc import ABC, abstractmethod

from steprl.errors import ConfigError
from steprl.types import Trajectory, TrajectoryGroup


class TrajectoryFilter(ABC):
    """Looks at one trajectory that could train: how it came about, not only how it ended."""

    @abstractmethod
    def keeps(self, trajectory: Trajectory) -> bool:
        """Whether it may train."""


class GroupFilter(ABC):
    """Looks at a group as it is going to be compared: after trajectories were taken out.

    ``smallest_group`` is the least ``rollout.group_size`` that it can work with; ``needs_outcome`` says that
    it asks which episodes were solved, so that an environment must report the component ``outcome``.
    """

    smallest_group: int = 1
    needs_outcome: bool = False

    @abstractmethod
    def keeps(self, group: TrajectoryGroup) -> bool:
        """Whether it may train."""


def count(name: str, value: int | None, *, least: int) -> int | None:
    """``value``, a whole number from ``least`` on; None where the option is left out.

    Raises:
        ConfigError: it is none.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigError(f"a filter's {name} is {value!r}; it must be a whole number, {least} or more")
    return value


def share(name: str, value: float) -> float:
    """``value``, from 0 to 1.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"a filter's {name} is {value!r}; it must be a share from 0 to 1")
    return float(value)
