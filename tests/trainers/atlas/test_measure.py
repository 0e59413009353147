"""The exact means and variances against sums over ordered batches, written out again in plain numpy."""

from itertools import product

import numpy as np
import pytest

from steprl.trainers.atlas.measure import Measured, atlas
from steprl.trainers.atlas.subjects import AGGREGATIONS, LOSSES, SUBJECTS
from steprl.trainers.atlas.worlds import BY_NAME

SUBJECT = {subject.name: subject for subject in SUBJECTS}
LOSS = {loss.name: loss for loss in LOSSES}


def _measured(world: str, subject: str, rule: str, loss: str = "ppo_clip") -> Measured:
    (found,) = atlas(BY_NAME[world]).measure(
        SUBJECT[subject], rules={rule: AGGREGATIONS[rule]}, losses=[LOSS[loss]]
    )
    return found


def test_rloo_in_the_bandit() -> None:
    policy = atlas(BY_NAME["bandit"]).policy
    pi = np.exp(policy.logits_D) / np.exp(policy.logits_D).sum()
    rewards = np.array([1.0, 0.2, 0.0])
    mean, square = np.zeros(3), 0.0
    for batch in product(range(3), repeat=3):
        drawn = list(batch)
        gradient = np.zeros(3)
        for member in drawn:
            others = (rewards[drawn].sum() - rewards[member]) / 2
            gradient += (rewards[member] - others) * (np.eye(3)[member] - pi) / 3
        mean += pi[drawn].prod() * gradient
        square += pi[drawn].prod() * gradient @ gradient
    found = _measured("bandit", "rloo", "traj_mean_token_sum")
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    assert found.variance == pytest.approx(square - mean @ mean, rel=1e-12)
    np.testing.assert_allclose(found.truth, pi * (rewards - pi @ rewards), rtol=1e-12)
    assert found.constant == pytest.approx(1)
    assert found.noise == pytest.approx(np.sqrt(found.variance) / np.linalg.norm(found.truth))


def test_weights_by_length_in_the_detour() -> None:
    """``traj_mean_token_mean`` divides by each trajectory's own tokens: 1, 3 or 4 of them."""
    played = atlas(BY_NAME["detour"])
    policy = played.policy
    scores, lengths, rewards = [], [], []
    for episode in played.episodes:
        scores.append(sum(policy.scores()[policy.event(token)] for token in episode.tokens))
        lengths.append(len(episode.tokens))
        rewards.append(sum(step.reward or 0 for step in episode.steps))
    mean = np.zeros(len(policy.events))
    for batch in product(range(len(scores)), repeat=3):
        probability = np.prod([played.probabilities_N[n] for n in batch])
        average = np.mean([rewards[n] for n in batch])
        for n in batch:
            mean += probability * (rewards[n] - average) * scores[n] / lengths[n] / 3
    assert set(lengths) == {1, 3, 4}
    np.testing.assert_allclose(
        _measured("detour", "dr_grpo", "traj_mean_token_mean").mean, mean, rtol=1e-10, atol=1e-15
    )


def test_the_ratio_of_a_whole_step_where_another_policy_sampled() -> None:
    played = atlas(BY_NAME["stale step"])
    policy = played.policy
    learning, sampling = policy.logprobs(policy.logits_D), policy.logprobs(policy.stale_logits_D)
    mean = np.zeros(len(policy.events))
    for episode in played.episodes:
        events = [policy.event(token) for token in episode.tokens]
        chance = np.exp(sampling[events].sum())
        ratio = np.exp(learning[events].sum()) / chance
        mean += chance * ratio * (episode.steps[0].reward or 0) * policy.scores()[events].sum(0)
    found = _measured("stale step", "reinforce_pp, plain", "traj_mean_token_sum", "ppo_clip, full by step")
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.truth, mean, rtol=1e-12)


def test_the_objective_of_a_critic_goes_on_beyond_a_limit() -> None:
    played = atlas(BY_NAME["cut"])
    critic, none = SUBJECT["gae, plain, exact critic"], SUBJECT["rloo"]
    worth = {"g": 0.9, "h": 0.2}
    pi = np.exp(played.policy.logprobs(played.policy.logits_D))
    after = {option: pi[i] for i, (cell, option) in enumerate(played.policy.events) if cell[0] == "road 1"}
    onwards = next(pi[i] for i, event in enumerate(played.policy.events) if event == (("road 0", ""), "g"))
    index = next(i for i, event in enumerate(played.policy.events) if event == (("road 1", ""), "g"))
    expected = sum(after[o] * worth[o] for o in worth)
    more = onwards * after["g"] * (0.9 - expected)
    assert played.truth(critic)[index] - played.truth(none)[index] == pytest.approx(more, rel=1e-12)


def test_at_a_right_angle_or_beyond_the_bias_is_infinite() -> None:
    away = Measured(
        world="w",
        subject="s",
        rule="r",
        loss="l",
        mean=np.array([-1.0, 0.5]),
        truth=np.array([1.0, 0.0]),
        variance=1.0,
    )
    assert away.constant == -1
    assert away.bias == away.noise == float("inf")
