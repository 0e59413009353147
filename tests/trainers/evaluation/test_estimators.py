"""Estimates against brute-force enumeration, and intervals that hold what they say, by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.trainers.evaluation.estimators import (
    Interval,
    counts_of_k,
    mean,
    paired,
    pass_at_k,
    pass_hat_k,
    share,
    sign_test,
)

COUNTS = [(n, c, k) for n in range(1, 8) for c in range(n + 1) for k in range(1, n + 1)]


@pytest.mark.parametrize(("n", "c", "k"), COUNTS)
def test_both_are_what_drawing_k_of_the_n_attempts_gives(n: int, c: int, k: int) -> None:
    drawn = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(d) for d in drawn) / len(drawn), abs=1e-12)
    assert pass_hat_k(n, c, k) == pytest.approx(sum(all(d) for d in drawn) / len(drawn), abs=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_both_are_unbiased(p: float, k: int) -> None:
    """Over all outcomes of n attempts that each succeed with p."""
    n = 6
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    expected = sum(w * pass_at_k(n, c, k) for c, w in enumerate(chance))
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    expected = sum(w * pass_hat_k(n, c, k) for c, w in enumerate(chance))
    assert expected == pytest.approx(p**k, abs=1e-12)


def test_large_numbers_of_attempts_stay_finite() -> None:
    n, c, k = 100_000, 3, 1000
    exact = 1 - math.exp(sum(math.log(n - c - i) for i in range(k)) - sum(math.log(n - i) for i in range(k)))
    assert pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-6)
    assert pass_hat_k(n, n - 3, k) == pytest.approx((1 - k / n) ** 3, rel=1e-3)


@given(st.data())
def test_more_tries_help_one_and_hurt_all(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 60))
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n - 1))
    assert pass_at_k(n, c, 1) == pytest.approx(c / n) == pass_hat_k(n, c, 1)
    assert 0 <= pass_hat_k(n, c, k + 1) <= pass_hat_k(n, c, k) + 1e-12
    assert pass_at_k(n, c, k) - 1e-12 <= pass_at_k(n, c, k + 1) <= 1
    # one fails at least where not all are solved: the two mirror each other
    assert pass_at_k(n, c, k) == pytest.approx(1 - pass_hat_k(n, n - c, k), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_what_cannot_be_is_refused(n: int, c: int, k: int) -> None:
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match=f"{c} of {n} attempts solved and k = {k}"):
            estimate(n, c, k)


def test_k_doubles_up_to_the_number_of_attempts() -> None:
    assert [counts_of_k(n) for n in (1, 2, 3, 8, 10)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 10],
    ]


# --- intervals ----------------------------------------------------------------------------------------


def test_one_attempt_per_task_gives_wilsons_interval() -> None:
    """8 of 10; the published Wilson interval at z = 1.96 is 0.490 to 0.943, and t with 9 is wider."""
    found = share([1.0] * 8 + [0.0] * 2, most=10)
    assert found is not None and found.mean == 0.8 and found.low is not None and found.high is not None
    t = 2.2621571627409915
    centre, half = (
        (0.8 + t * t / 20) / (1 + t * t / 10),
        t / (1 + t * t / 10) * math.sqrt(0.016 + t * t / 400),
    )
    assert (found.low, found.high) == (pytest.approx(centre - half), pytest.approx(centre + half))
    assert found.low < 0.490 and found.high > 0.943


def test_attempts_are_not_taken_for_tasks() -> None:
    """Ten tasks that are always or never solved: eight attempts each tell no more than one."""
    certain = [1.0] * 5 + [0.0] * 5
    assert share(certain, most=80) == share(certain, most=10)
    # where tasks are alike, attempts do count, up to so many independent ones
    alike, once = share([0.5] * 10, most=80), share(certain, most=10)
    assert alike is not None and once is not None and alike.low is not None and once.low is not None
    assert alike.low > once.low


def test_one_task_says_nothing_of_others_and_none_nothing_at_all() -> None:
    assert share([0.5], most=2) == mean([0.5]) == paired([0.5], seed=0)
    assert mean([0.5]) == Interval(mean=0.5, low=None, high=None, tasks=1)
    assert share([], most=0) is None and mean([]) is None and paired([], seed=0) is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), st.integers(1, 16))
def test_an_interval_of_shares_lies_in_the_unit_interval_and_holds_its_mean(
    values: list[float], attempts: int
) -> None:
    found = share(values, most=len(values) * attempts)
    assert found is not None and found.low is not None and found.high is not None
    assert 0 <= found.low <= found.mean + 1e-12 and found.mean - 1e-12 <= found.high <= 1
    assert found.high - found.low > 0


SETTINGS = [
    # tasks, attempts, the two parameters of the Beta that a task's chance is drawn from
    (20, 1, 1.0, 1.0),
    (40, 8, 0.3, 0.3),
    (40, 8, 8.0, 2.0),
    (100, 4, 0.2, 3.0),
    (60, 8, 1.0, 30.0),
]


@pytest.mark.parametrize(("tasks", "attempts", "alpha", "beta"), SETTINGS)
def test_intervals_of_shares_cover_the_truth(tasks: int, attempts: int, alpha: float, beta: float) -> None:
    """Of tasks drawn from a world of tasks, about 95 % of the intervals hold the world's own figures."""
    rng = np.random.default_rng(0)
    world = rng.beta(alpha, beta, size=1_000_000)
    for k in sorted({1, min(2, attempts), attempts}):
        truths = {pass_at_k: float((1 - (1 - world) ** k).mean()), pass_hat_k: float((world**k).mean())}
        for estimate, truth in truths.items():
            table = np.array([estimate(attempts, c, k) for c in range(attempts + 1)])
            hits, rounds = 0, 400
            for _ in range(rounds):
                solved = rng.binomial(attempts, rng.beta(alpha, beta, size=tasks))
                found = share(table[solved].tolist(), most=tasks * attempts)
                assert found is not None and found.low is not None and found.high is not None
                hits += found.low <= truth <= found.high
            assert hits / rounds > 0.92, (estimate.__name__, k, truth)


def test_treating_attempts_as_independent_would_not_cover() -> None:
    """The mistake that the clustered interval avoids: the plain Wilson interval over all attempts."""
    rng = np.random.default_rng(1)
    tasks, attempts = 40, 8
    plain = clustered = 0
    for _ in range(400):
        chances = rng.beta(0.3, 0.3, size=tasks)
        shares = rng.binomial(attempts, chances) / attempts
        total = tasks * attempts
        flat = [1.0] * int(shares.sum() * attempts) + [0.0] * (total - int(shares.sum() * attempts))
        wrong, right = share(flat, most=total), share(shares.tolist(), most=total)
        assert wrong is not None and right is not None and right.low is not None and right.high is not None
        assert wrong.low is not None and wrong.high is not None
        plain += wrong.low <= 0.5 <= wrong.high
        clustered += right.low <= 0.5 <= right.high
    assert plain / 400 < 0.65 and clustered / 400 > 0.92


@pytest.mark.parametrize("interval", [mean, lambda values: paired(values, seed=0, resamples=1000)])
def test_intervals_of_means_and_differences_cover_the_truth(interval: object) -> None:
    rng = np.random.default_rng(2)
    hits, rounds = 0, 300
    for _ in range(rounds):
        both = rng.beta(0.5, 0.5, size=80)
        one, other = rng.binomial(4, both) / 4, rng.binomial(4, np.clip(both + 0.05, 0, 1)) / 4
        found = interval((other - one).tolist())  # type: ignore[operator]
        assert found is not None
        truth = 0.0446  # E[min(1, X + 0.05) - X] for X ~ Beta(0.5, 0.5), below
        hits += found.low <= truth <= found.high
    assert 0.90 < hits / rounds <= 1.0
    drawn = rng.beta(0.5, 0.5, size=2_000_000)
    assert float((np.clip(drawn + 0.05, 0, 1) - drawn).mean()) == pytest.approx(truth, abs=3e-3)


def test_a_paired_interval_follows_from_its_seed() -> None:
    values = [0.0, 1.0, 0.5, -1.0, 0.25]
    assert paired(values, seed=3) == paired(values, seed=3) != paired(values, seed=4)


@settings(max_examples=50)
@given(st.integers(0, 9), st.integers(0, 9))
def test_the_sign_test_is_what_counting_all_outcomes_gives(more: int, less: int) -> None:
    total = more + less
    outcomes = [sum(flips) for flips in itertools.product((0, 1), repeat=min(total, 12))]
    if total <= 12:
        extreme = [o for o in outcomes if abs(2 * o - total) >= abs(more - less)]
        assert sign_test(more, less) == pytest.approx(len(extreme) / len(outcomes))
    assert sign_test(more, less) == sign_test(less, more) <= 1.0


def test_mcnemar_against_a_published_value() -> None:
    """Discordant pairs 1 and 9: the two-sided exact p is 0.0215."""
    assert sign_test(1, 9) == pytest.approx(0.021484375) and sign_test(0, 0) == 1.0
