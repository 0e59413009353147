from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from steprl.credit import ReinforcePp, Rloo
from steprl.errors import ConfigError
from steprl.trainers.atlas.conformance import violations
from steprl.trainers.atlas.report import EXACT, entries
from steprl.trainers.atlas.subjects import SUBJECTS, Subject
from steprl.trainers.atlas.worlds import BY_NAME
from steprl.types import Credits, Need, Scores, TrajectoryGroup

FEW = [BY_NAME[name] for name in ("coin", "forced", "lost", "cut")]


class Broken:
    """rloo, and then something goes wrong."""

    requires: frozenset[Need] = frozenset()

    def __init__(self, wrong: Callable[[Sequence[TrajectoryGroup], Credits], Credits]) -> None:
        self._wrong = wrong

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        return self._wrong(groups, Rloo()(groups, scores))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_our_own_keep_to_the_contract(subject: Subject) -> None:
    assert violations(subject, FEW) == []


def _without_the_last_step(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    last = list(credits.loss_mask)[-1]
    kept = {key: mask for key, mask in credits.loss_mask.items() if key != last}
    return Credits(advantages={key: credits.advantages[key] for key in kept}, loss_mask=kept)


def _everything(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    """Trains on every token of every step."""
    return replace(credits, loss_mask={key: np.ones_like(m) for key, m in credits.loss_mask.items()})


def _lost(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    """Trains on trajectories that were lost."""
    sampled = {
        t.key(i): step.sampled_mask for g in groups for t in g.trajectories for i, step in enumerate(t.steps)
    }
    return replace(credits, loss_mask=sampled)


def _by_place(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    """The first of a group counts more."""
    first = {group.trajectories[0].uid for group in groups}
    more = {key: a + 1.0 * (key.trajectory in first) for key, a in credits.advantages.items()}
    return replace(credits, advantages=more)


def _by_name(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    """What a trajectory is called matters."""
    return replace(
        credits, advantages={key: a + len(key.trajectory) for key, a in credits.advantages.items()}
    )


def _by_first_name(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    """The one whose name sorts first counts more."""
    first = min(t.uid for group in groups for t in group.trajectories)
    more = {key: a + 1.0 * (key.trajectory == first) for key, a in credits.advantages.items()}
    return replace(credits, advantages=more)


def _lost_count(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    """Lost trajectories count in the statistics."""
    share = len({key.trajectory for key in credits.loss_mask})
    return replace(credits, advantages={key: a * share for key, a in credits.advantages.items()})


def _raises(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
    raise ZeroDivisionError("a group without spread")


@pytest.mark.parametrize(
    ("wrong", "world", "said"),
    [
        (_without_the_last_step, "coin", "every step given has its credits"),
        (_everything, "forced", "trains on a token that was not sampled"),
        (_lost, "lost", "trains on a trajectory that was lost (error)"),
        (_by_place, "coin", "in another order"),
        (_by_name, "coin", "with other uids"),
        (_by_first_name, "coin", "with other uids"),
        (_lost_count, "lost", "where trajectories that were lost are left out"),
        (_raises, "cut", "ZeroDivisionError: a group without spread"),
    ],
)
def test_what_is_not_kept_to_is_named(wrong: Any, world: str, said: str) -> None:
    found = violations(Subject(name="broken", estimator=Broken(wrong)), [BY_NAME[world]])
    assert any(said in violation for violation in found), found
    assert all(violation.startswith(f"world '{world}': ") for violation in found)


def test_an_estimator_with_a_memory_is_named() -> None:
    class Remembers:
        requires: frozenset[Need] = frozenset()
        calls = 0

        def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
            self.calls += 1
            credits = ReinforcePp()(groups, scores)
            drift = {key: a + self.calls for key, a in credits.advantages.items()}
            return replace(credits, advantages=drift)

    found = violations(Subject(name="remembers", estimator=Remembers()), FEW)
    assert any("another answer at the second call" in violation for violation in found)


def test_outside_the_mask_an_advantage_may_be_anything() -> None:
    def careless(groups: Sequence[TrajectoryGroup], credits: Credits) -> Credits:
        nan = {key: np.where(credits.loss_mask[key], a, np.nan) for key, a in credits.advantages.items()}
        return replace(credits, advantages=nan)

    mine = Subject(name="careless", estimator=Broken(careless))
    assert violations(mine, FEW) == []
    assert entries(mine, [BY_NAME["lost"]], rules=["traj_mean_token_sum"])[0].measured.bias < EXACT


def test_what_needs_a_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="'x' needs a reference model"):
        entries(Subject(name="x", estimator=Rloo(kl_beta=0.1)), FEW)
