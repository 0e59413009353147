"""What a check found: one `Check` for each question asked, one `PolicyScore` for each policy played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from steprl.errors import EnvError

Status = Literal["passed", "warned", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer. ``detail`` has the values found, and what to do about them."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScore:
    """How a scripted policy did over ``episodes`` episodes.

    ``mean``, ``minimum`` and ``maximum`` are of the return: the sum of an episode's rewards, before weights.
    ``steps`` is the mean length, ``ended`` the share of episodes that the environment itself ended.
    """

    episodes: int
    mean: float
    minimum: float
    maximum: float
    steps: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All checks of one environment, called ``env``, and the scores of the policies that were played."""

    env: str
    checks: tuple[Check, ...]
    scores: Mapping[str, PolicyScore]

    @property
    def ok(self) -> bool:
        """True when nothing failed; warnings are for a person to judge."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    def raise_for_failures(self) -> None:
        """Do nothing when all is well: the last line of a test.

        Raises:
            EnvError: checks failed; the message lists them with their details.
        """
        if self.failures:
            listing = "".join(f"\n- {check.name}: {check.detail}" for check in self.failures)
            raise EnvError(f"{self.env}: {len(self.failures)} of {len(self.checks)} checks failed{listing}")


def passed(name: str, detail: str) -> Check:
    """A check that found nothing wrong."""
    return Check(name=name, status="passed", detail=detail)


def warned(name: str, detail: str) -> Check:
    """A check that found what may be meant, or could not be made."""
    return Check(name=name, status="warned", detail=detail)


def failed(name: str, detail: str) -> Check:
    """A check that found what would spoil training."""
    return Check(name=name, status="failed", detail=detail)
