import numpy as np
import pytest

from steprl.trainers.atlas.measure import atlas
from steprl.trainers.atlas.policy import gradient
from steprl.trainers.atlas.subjects import SUBJECTS
from steprl.trainers.atlas.worlds import BY_NAME, WORLDS
from steprl.types import Doubles

RLOO = next(subject for subject in SUBJECTS if subject.name == "rloo")


@pytest.mark.parametrize("name", ["bandit", "detour", "window", "two tasks", "stale step"])
def test_the_true_gradient_is_that_of_scores_and_of_small_differences(name: str) -> None:
    played = atlas(BY_NAME[name])
    policy, episodes = played.policy, played.episodes
    counts_NE = np.stack(
        [np.bincount([policy.event(t) for t in e.tokens], minlength=len(policy.events)) for e in episodes]
    )
    chances_N = np.array([e.chance * played.world.tasks[e.task] for e in episodes])
    earned_N = np.array([sum(step.reward or 0 for step in e.steps) for e in episodes])

    def objective(logits_D: Doubles) -> float:
        return float(chances_N * np.exp(counts_NE @ policy.logprobs(logits_D)) @ earned_N)

    truth_D = gradient(policy, counts_NE, chances_N, earned_N)
    probabilities_N = chances_N * np.exp(counts_NE @ policy.logprobs(policy.logits_D))
    by_scores_D = (probabilities_N * earned_N) @ counts_NE @ policy.scores()
    shifts_DD = np.eye(len(truth_D)) * 1e-5
    by_differences_D = [
        (objective(policy.logits_D + shift) - objective(policy.logits_D - shift)) / 2e-5
        for shift in shifts_DD
    ]
    np.testing.assert_allclose(truth_D, by_scores_D, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(truth_D, by_differences_D, atol=1e-9)
    np.testing.assert_array_equal(truth_D, played.truth(RLOO))


def test_no_world_is_without_a_gradient() -> None:
    for world in WORLDS:
        assert np.linalg.norm(atlas(world).truth(RLOO)) > 0.01
