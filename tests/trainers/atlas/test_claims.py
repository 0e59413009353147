"""Which combinations are unbiased is written down in `claims`; here it is compared with all there is."""

import pytest

from steprl.trainers.atlas.report import EXACT, entries
from steprl.trainers.atlas.subjects import AGGREGATIONS, LOSSES, ON_POLICY, SUBJECTS, Subject, claimed
from steprl.trainers.atlas.worlds import BY_NAME, WORLDS

SUBJECT = {subject.name: subject for subject in SUBJECTS}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_what_is_claimed_of_an_estimator_is_measured(subject: Subject) -> None:
    found = entries(subject, WORLDS)
    assert [entry.measured for entry in found if entry.broken] == []
    claims = [entry for entry in found if entry.claim is not None]
    assert claims or subject.name in ("gae, exact critic", "gae step, exact critic")
    assert all(entry.measured.bias < EXACT for entry in claims)


@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "reinforce_pp step, plain"])
def test_what_is_claimed_of_a_loss_is_measured(name: str) -> None:
    stale = [world for world in WORLDS if world.stale]
    found = entries(SUBJECT[name], [*stale, BY_NAME["password"], BY_NAME["lock"]], losses=LOSSES)
    assert [entry.measured for entry in found if entry.broken] == []
    by_loss = {
        entry.measured.loss for entry in found if entry.claim is not None and "stale" in entry.measured.world
    }
    assert by_loss == {
        "ppo_clip to μ, never clipped",
        "step_product to μ, never clipped",
        "ppo_clip, full by token (decoupled PPO)",
        "ppo_clip, full by step",
    }


@pytest.mark.parametrize(
    ("name", "rule", "world", "constant"),
    [
        ("rloo", "traj_mean_token_sum", "detour", 1),
        ("dr_grpo", "traj_mean_token_sum", "detour", 2 / 3),
        ("dr_grpo", "constant", "detour", 2 / 15),
        ("dr_grpo", "traj_mean_token_sum", "two tasks", 3 / 4),
        ("rloo", "traj_mean_token_mean", "detour", None),
        ("rloo", "traj_mean_token_mean", "corridor", 1 / 3),
        ("rloo", "traj_mean_token_sum", "lost", 0.75**3 + 3 * 0.75**2 * 0.25),
        ("reinforce_pp, plain", "traj_mean_token_sum", "lost", 1 - 0.25**3),
        ("reinforce_pp, plain", "traj_mean_token_sum", "fork", None),
        ("gigpo", "traj_mean_token_sum", "corridor", 4 / 3),
        ("grpo", "traj_mean_token_sum", "bandit", None),
        ("gae, plain, lam 0.9, exact critic", "traj_mean_token_sum", "tool", 1),
        ("gae, plain, lam 0.9, exact critic", "traj_mean_token_sum", "window", None),
        ("gae step, plain, lam 0, exact critic", "traj_mean_token_sum", "window", None),
        ("gae step, plain, lam 0, continuations (VinePPO)", "traj_mean_token_sum", "window", 1),
        ("rloo", "traj_mean_token_sum", "deadline", None),
        ("rloo", "traj_mean_token_sum", "stale token", None),
    ],
)
def test_constants(name: str, rule: str, world: str, constant: float | None) -> None:
    assert claimed(SUBJECT[name], rule, ON_POLICY, BY_NAME[world]) == (
        None if constant is None else pytest.approx(constant)
    )


def test_division_by_the_spread_of_outcomes_by_hand() -> None:
    """G = 3: one or two of three succeed, and the spread is 1/√3 both times, so c = √3 · (G − 1)/G."""
    world = BY_NAME["coin"]
    found = claimed(SUBJECT["grpo"], "traj_mean_token_sum", ON_POLICY, world)
    assert found == pytest.approx(3**0.5 * 2 / 3, rel=1e-5)  # ε is 1e-6


def test_every_rule_is_measured() -> None:
    found = entries(SUBJECT["rloo"], [BY_NAME["lock"]])
    assert [entry.measured.rule for entry in found] == list(AGGREGATIONS)
