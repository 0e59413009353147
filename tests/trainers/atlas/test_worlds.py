import math

import numpy as np
import pytest

from steprl.trainers.atlas.measure import atlas
from steprl.trainers.atlas.play import END, Hand, World
from steprl.trainers.atlas.worlds import WORLDS
from steprl.types import StopReason

by_world = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


def _asks(hand: Hand, task: int) -> None:
    if hand.act("task", "a" + END, most=2) == END:
        hand.reward(0.5)
    elif hand.chance(0.25, 0.75):
        hand.stop(StopReason.MAX_STEPS, worth=0.1)


def test_every_way_an_episode_can_go_is_played_once() -> None:
    episodes = World("asks", "", _asks).episodes()
    found = {
        ("".join(map(chr, e.steps[0].action_ids.tolist())), e.chance, e.stop_reason, e.worth)
        for e in episodes
    }
    assert len(episodes) == 5
    assert found == {
        (".", 1.0, StopReason.TERMINATED, 0.0),
        ("a.", 0.25, StopReason.TERMINATED, 0.0),
        ("a.", 0.75, StopReason.MAX_STEPS, 0.1),
        ("aa", 0.25, StopReason.TERMINATED, 0.0),
        ("aa", 0.75, StopReason.MAX_STEPS, 0.1),
    }


def test_forced_tokens_are_part_of_an_action_and_not_sampled() -> None:
    hand = Hand([1, 0])
    assert hand.act("task", "ab", most=2, forced={1: "#"}) == "b#a"
    (step,) = hand.episode(0).steps
    assert step.sampled_mask.tolist() == [True, False, True]
    assert [token.cell for token in hand.episode(0).tokens] == [("task", ""), ("task", "b#")]


@by_world
def test_the_probabilities_of_episodes_and_of_batches_add_up_to_one(world: World) -> None:
    played = atlas(world)
    tasks = np.array([episode.task for episode in played.episodes])
    for task in range(len(world.tasks)):
        assert played.probabilities_N[tasks == task].sum() == pytest.approx(1, abs=1e-12)
    assert played.batches.probabilities.sum() == pytest.approx(1, abs=1e-12)


@by_world
def test_what_is_said_of_a_world_is_true(world: World) -> None:
    episodes = world.episodes()
    steps = [[int(s.sampled_mask.sum()) for s in e.steps if s.sampled_mask.any()] for e in episodes]
    assert {sum(counts) for counts in steps} == {world.tokens} or world.tokens is None
    assert {len(counts) for counts in steps} == {world.steps} or world.steps is None
    assert {n for counts in steps for n in counts} == {world.tokens_of_step} or world.tokens_of_step is None
    if world.outcome:
        assert len(world.tasks) == 1
        assert {math.fsum(s.reward or 0 for s in e.steps) for e in episodes} == {0.0, 1.0}
        assert all(s.reward == 0 for e in episodes for s in e.steps[:-1])
    lost = sum(
        probability
        for probability, e in zip(atlas(world).probabilities_N, episodes, strict=True)
        if not e.stop_reason.trains
    )
    if world.fair:
        assert lost == pytest.approx(1 - world.kept)
    else:
        assert lost > 0.05


def test_a_prompt_that_shows_what_matters_is_worth_the_same_whatever_came_before() -> None:
    for world in WORLDS:
        if world.chained and not world.stale and world.fair:
            assert (
                _spread_behind_prompts(world) < 1e-12 if world.markov else _spread_behind_prompts(world) > 0.1
            )


def _spread_behind_prompts(world: World) -> float:
    """How much the mean of what is still to come depends on the tokens and prompts before, for one prompt."""
    played = atlas(world)
    passed: dict[tuple[str, ...], list[float]] = {}
    for probability, episode in zip(played.probabilities_N.tolist(), played.episodes, strict=True):
        for index, step in enumerate(episode.steps):
            if not step.sampled_mask.any():
                continue  # nobody acts on it
            seen = tuple(
                f"{bytes(before.prompt_ids.tolist())!r}{bytes(before.action_ids.tolist())!r}"
                for before in episode.steps[:index]
            )
            to_come = math.fsum(later.reward or 0 for later in episode.steps[index:]) + episode.worth
            sums = passed.setdefault((bytes(step.prompt_ids.tolist()).decode(), *seen), [0.0, 0.0])
            sums[0] += probability
            sums[1] += probability * to_come
    worth: dict[str, list[float]] = {}
    for (prompt, *_), (probability, earned) in passed.items():
        worth.setdefault(prompt, []).append(earned / probability)
    return max(max(means) - min(means) for means in worth.values())


def test_an_older_policy_differs_much() -> None:
    """Beyond the bounds of clipping and truncation, so that these show."""
    ratios = []
    for world in (world for world in WORLDS if world.stale):
        policy = atlas(world).policy
        differences_E = policy.logprobs(policy.logits_D) - policy.logprobs(policy.stale_logits_D)
        ratios += np.exp(differences_E).tolist()
    assert min(ratios) < 0.5
    assert 2 < max(ratios) < 20
