"""Sampling: frequencies follow probabilities, and what has none never comes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.engines.torch_sampling import distribution, sample
from steprl.types import Sampling

LOGITS = [2.0, -1.0, 0.5, 0.5, 3.0, -4.0, 1.0, -math.inf]
NEARLY_ONE = 1.0 - 2.0**-53

WAYS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(temperature=2.0),
    Sampling(top_k=3),
    Sampling(top_k=100),
    Sampling(top_p=0.7),
    Sampling(temperature=1.5, top_k=5, top_p=0.9),
]


def probabilities(way: Sampling, logits: Sequence[float] = LOGITS) -> list[float]:
    """The distribution, written out token by token: temperature, then top-k, then top-p."""
    best = max(logits)
    weights = [math.exp((x - best) / way.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -weights[i])
    kept = order[: way.top_k or None]
    total = sum(weights[i] for i in kept)
    mass, survivors = 0.0, set()
    for i in kept:
        if mass >= way.top_p:
            break
        survivors.add(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in survivors)
    return [weights[i] / total if i in survivors else 0.0 for i in range(len(logits))]


def draw(logits: Sequence[float], way: Sampling, uniforms: Sequence[float]) -> list[int]:
    rows = [way] * len(uniforms)
    logprobs = distribution(torch.tensor([list(logits)]).repeat(len(uniforms), 1), rows)
    return sample(logprobs, rows, uniforms).tolist()


def test_log_probabilities_of_a_mixed_batch() -> None:
    logits = torch.tensor([LOGITS] * len(WAYS))
    given_logits = logits.clone()
    found = distribution(logits, WAYS).double().exp()
    expected = torch.tensor([probabilities(way) for way in WAYS], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert torch.equal(logits, given_logits)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_frequencies_follow_probabilities(way: Sampling) -> None:
    count = 20_000
    tokens = draw(LOGITS, way, np.random.default_rng(0).random(count).tolist())
    observed = np.bincount(tokens, minlength=len(LOGITS))
    expected = count * np.array(probabilities(way))
    assert (observed[expected == 0] == 0).all()
    possible = expected > 0
    statistic = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = int(possible.sum()) - 1
    # mean and standard deviation of χ² are f and √2f
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 1e-9


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.just(-math.inf), st.floats(-60, 60, width=32)), min_size=1, max_size=12
    ).filter(lambda row: max(row) > -math.inf),
    uniform=st.one_of(st.sampled_from([0.0, 2.0**-60, NEARLY_ONE]), st.floats(0, NEARLY_ONE)),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 5),
    top_p=st.sampled_from([1e-9, 0.3, 0.9, 1.0]),
)
def test_what_is_sampled_is_possible(
    logits: list[float], uniform: float, temperature: float, top_k: int, top_p: float
) -> None:
    way = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    logprobs = distribution(torch.tensor([logits]), [way])
    (token,) = sample(logprobs, [way], [uniform]).tolist()
    assert math.isfinite(logprobs[0, token].item())
    assert logprobs.double().exp().sum().item() == pytest.approx(1, abs=1e-5)
    if temperature == 0:
        # log-probabilities that differ by less than a rounding are a tie
        assert logits[token] == pytest.approx(max(logits), abs=1e-5)


def test_the_ends_of_the_unit_interval() -> None:
    barred = -math.inf
    logits = [barred, 1.0, barred, 1.0, barred]
    assert draw(logits, Sampling(), [0.0, 0.4999, 0.5001, NEARLY_ONE]) == [1, 1, 3, 3]


def test_greedy_takes_one_of_the_largest_and_the_same_in_any_batch() -> None:
    tied = [0.0, 5.0, 1.0, 5.0]
    ways = [Sampling(temperature=0), Sampling(), Sampling(temperature=0)]
    logprobs = distribution(torch.tensor([tied] * 3), ways)
    mixed = sample(logprobs, ways, [0.9, 0.99, 0.1]).tolist()
    alone = sample(logprobs[:1], ways[:1], [0.5]).tolist()
    assert mixed[0] == mixed[2] == alone[0] and tied[alone[0]] == 5.0


def test_greedy_reports_the_models_own_log_probability() -> None:
    ways = [Sampling(temperature=0, top_k=1), Sampling()]
    logprobs = distribution(torch.tensor([LOGITS] * 2), ways)
    assert torch.equal(logprobs[0], logprobs[1])


@pytest.mark.parametrize("way", [Sampling(), Sampling(top_p=1 - 1e-9)], ids=str)
def test_every_token_of_a_large_vocabulary_can_come(way: Sampling) -> None:
    # equal tokens: a float32 sum would drift by many of them
    size = 150_000
    wanted = [0, 1, 74_999, 75_000, 149_000]
    logits = torch.zeros(1, size)
    rows = [way] * len(wanted)
    logprobs = distribution(logits.repeat(len(wanted), 1), rows)
    assert sample(logprobs, rows, [(i + 0.5) / size for i in wanted]).tolist() == wanted
    assert sample(logprobs[:1], rows[:1], [NEARLY_ONE]).item() == size - 1


def test_half_precision_logits_are_sampled_in_float32() -> None:
    logprobs = distribution(torch.zeros(1, 3, dtype=torch.bfloat16), [Sampling()])
    assert logprobs.dtype == torch.float32
    assert logprobs[0, 0].item() == pytest.approx(math.log(1 / 3), abs=1e-6)
