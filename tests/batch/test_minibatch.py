"""Cuts of a batch: how many, how large, of what, and with which weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from episodes import grouped, rewarded, step, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.batch import Aggregation, micro_batches, minibatches, rows, split_trajectories
from steprl.credit import DrGrpo
from steprl.errors import ConfigError
from steprl.types import MiniBatch, Scores, StepKey, StopReason, Trajectory


def cut(*trajectories: Trajectory, merge: bool = False, **options: Any) -> list[MiniBatch]:
    """The mini-batches of a batch whose old log-probabilities are all −1."""
    old = {t.key(i): np.full(len(s.action_ids), -1.0) for t in trajectories for i, s in enumerate(t.steps)}
    options = {"count": 1, "token_budget": 64, "aggregation": Aggregation(), **options}
    return list(
        minibatches(
            rows(trajectories, merge=merge),
            DrGrpo()(grouped(*trajectories), Scores()),
            Scores(old_logprobs=old),
            rng=np.random.default_rng(0),
            **options,
        )
    )


def uids(batch: MiniBatch) -> set[str]:
    return {key.trajectory for sample in batch.samples for key in sample.row.step_keys}


@pytest.mark.parametrize("turns", [[1, 1, 1, 1, 1, 1, 1], [1, 9, 2, 8, 3, 7, 30]])
def test_the_number_of_optimiser_steps_does_not_depend_on_turns(turns: list[int]) -> None:
    batches = cut(*[rewarded(f"t{i}", i, steps=n) for i, n in enumerate(turns)], count=3, epochs=2)
    assert len(batches) == 6
    for epoch in (batches[:3], batches[3:]):
        assert sorted(len(uids(batch)) for batch in epoch) == [2, 2, 3]
        assert set().union(*map(uids, epoch)) == {f"t{i}" for i in range(7)}


def test_epochs_are_shuffled_anew_and_by_the_seed_alone() -> None:
    members = [rewarded(f"t{i}", i) for i in range(12)]
    first = [uids(batch) for batch in cut(*members, count=4, epochs=2)]
    assert first == [uids(batch) for batch in cut(*members, count=4, epochs=2)]
    assert first[:4] != first[4:]


def test_weights_are_those_of_the_whole_mini_batch() -> None:
    (batch,) = cut(rewarded("a", 1.0, steps=1), rewarded("b", 0.0, steps=4), token_budget=4)
    assert len(batch.micro_batches) == 5
    total = {uid: 0.0 for uid in "ab"}
    for sample in batch.samples:
        total[sample.row.step_keys[0].trajectory] += float(sample.weights.sum())
    assert total == pytest.approx({"a": 0.5, "b": 0.5})


def test_a_sample_carries_what_was_said_about_its_tokens() -> None:
    (batch,) = cut(rewarded("a", 1.0), rewarded("b", 0.0))
    by_uid = {sample.row.step_keys[0].trajectory: sample for sample in batch.samples}
    np.testing.assert_array_equal(by_uid["a"].advantages, [0.5, 0.5])
    np.testing.assert_array_equal(by_uid["b"].advantages, [-0.5, -0.5])
    np.testing.assert_array_equal(by_uid["a"].old_logprobs, [-1.0, -1.0])
    assert by_uid["a"].loss_mask.all()


def test_what_does_not_train_takes_no_place_in_any_mini_batch() -> None:
    late = [rewarded(f"late{i}", 1.0, stop_reason=StopReason.DEADLINE) for i in range(6)]
    batches = cut(rewarded("a", 1.0), *late, rewarded("b", 0.0), count=2)
    assert [len(uids(batch)) for batch in batches] == [1, 1]
    assert set().union(*map(uids, batches)) == {"a", "b"}
    assert cut(*late) == []


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.integers(1, 4), min_size=2, max_size=9),
    count=st.integers(1, 5),
    budget=st.integers(1, 40),
    merge=st.booleans(),
)
def test_no_row_is_repeated_to_fill_a_mini_batch_or_a_micro_batch(
    turns: list[int], count: int, budget: int, merge: bool
) -> None:
    """However badly the numbers divide: every trained token stands once, and its weight is counted once."""
    members = [rewarded(f"t{i}", i, steps=n) for i, n in enumerate(turns)]
    found: list[tuple[StepKey, int]] = []
    for batch in cut(*members, merge=merge, count=count, token_budget=budget):
        assert sum(float(s.weights.sum()) for s in batch.samples) == pytest.approx(1.0)
        for micro in batch.micro_batches:
            for row in (batch.samples[i].row for i in micro):
                keys = [row.step_keys[t] for t in row.step_index]
                found += zip(keys, row.token_index.tolist(), strict=True)
    assert sorted(found) == sorted(
        (t.key(i), j) for t in members for i in range(len(t.steps)) for j in (0, 1)
    )


def test_a_summary_counts_as_a_step_of_its_trajectory() -> None:
    summarised = trajectory("a", [step([1], [2], kind="summary"), step([3], [4, 5], reward=1.0)])
    rule = Aggregation(rule="traj_mean_step_mean")
    (batch,) = cut(summarised, rewarded("b", 0.0), aggregation=rule)
    weights = {sample.row.step_keys[0]: sample.weights.tolist() for sample in batch.samples}
    # two trajectories; two steps of one and of two tokens in the first, one of two tokens in the second
    assert weights == {StepKey("a", 0): [0.25], StepKey("a", 1): [0.125] * 2, StepKey("b", 0): [0.25] * 2}


def test_missing_rows_and_scores_are_noticed() -> None:
    members = [rewarded("a", 1.0), rewarded("b", 0.0)]
    credits = DrGrpo()(grouped(*members), Scores())
    options: dict[str, Any] = {"aggregation": Aggregation(), "count": 1, "token_budget": 64}
    old = {t.key(0): np.zeros(2) for t in members}
    with pytest.raises(ValueError, match="2 of the 4 tokens"):
        next(
            minibatches(
                rows(members[:1]), credits, Scores(old_logprobs=old), rng=np.random.default_rng(0), **options
            )
        )
    old[members[1].key(0)] = np.array([0.0, np.nan])
    with pytest.raises(ValueError, match="no finite old log-probability"):
        next(
            minibatches(
                rows(members), credits, Scores(old_logprobs=old), rng=np.random.default_rng(0), **options
            )
        )


@pytest.mark.parametrize("option", ["count", "epochs", "token_budget"])
def test_counts_below_one_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="= 0"):
        cut(rewarded("a", 1.0), rewarded("b", 0.0), **{option: 0})


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 5))
def test_parts_differ_by_at_most_one_and_lose_nobody(n: int, count: int, seed: int) -> None:
    uids = [f"t{i}" for i in range(n)]
    parts = split_trajectories(uids, count, np.random.default_rng(seed))
    assert len(parts) == min(count, n)
    assert sorted(uid for part in parts for uid in part) == sorted(uids)
    if parts:
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_micro_batches_fit_and_hold_every_row_once(lengths: list[int], budget: int) -> None:
    cuts = micro_batches(lengths, budget)
    assert sorted(i for cut in cuts for i in cut) == list(range(len(lengths)))
    for cut in cuts:
        longest = max(lengths[i] for i in cut)
        assert len(cut) * longest <= budget or len(cut) == 1


def test_rows_of_similar_length_run_together() -> None:
    assert micro_batches([2, 100, 2, 99, 2, 300], 200) == ((5,), (1, 3), (0, 2, 4))


def test_a_reference_that_lacks_a_trained_token_is_refused() -> None:
    member, other = rewarded("a", 1.0), rewarded("b", 0.0)
    old = {t.key(0): np.full(2, -1.0) for t in (member, other)}
    scores = Scores(old_logprobs=old, ref_logprobs={**old, member.key(0): np.array([-1.0, np.nan])})
    made = minibatches(
        rows([member, other]),
        DrGrpo()(grouped(member, other), Scores()),
        scores,
        aggregation=Aggregation(),
        count=1,
        token_budget=64,
        rng=np.random.default_rng(0),
    )
    with pytest.raises(ValueError, match="trajectory='a'.*log-probability of the reference"):
        next(made)
