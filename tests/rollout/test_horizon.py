"""A horizon that grows: where it begins, where it ends, and that it never shrinks on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.rollout import Horizon, RolloutConfig


def test_it_grows_evenly_or_in_stages() -> None:
    evenly = RolloutConfig(max_steps=10, horizon=Horizon(start=2, iterations=4))
    assert [evenly.limit(iteration) for iteration in range(1, 8)] == [2, 4, 6, 8, 10, 10, 10]
    stages = RolloutConfig(max_steps=10, horizon=Horizon(start=2, iterations=4, every=2))
    assert [stages.limit(iteration) for iteration in range(1, 8)] == [2, 2, 6, 6, 10, 10, 10]
    assert RolloutConfig(max_steps=10).limit(1) == 10


@given(
    start=st.integers(1, 20),
    more=st.integers(0, 40),
    iterations=st.integers(1, 30),
    every=st.integers(1, 30),
)
def test_it_never_shrinks_and_is_whole_in_the_end(start: int, more: int, iterations: int, every: int) -> None:
    every = min(every, iterations)
    config = RolloutConfig(
        max_steps=start + more, horizon=Horizon(start=start, iterations=iterations, every=every)
    )
    limits = [config.limit(iteration) for iteration in range(1, iterations + every + 2)]
    assert limits[iterations] == start + more
    assert limits[0] == start and limits == sorted(limits) and max(limits) == config.max_steps
    assert limits[-1] == config.max_steps
    changes = [n for n, (a, b) in enumerate(zip(limits, limits[1:], strict=False), start=1) if a != b]
    assert all(n % every == 0 or n == iterations for n in changes)


@pytest.mark.parametrize(
    ("horizon", "message"),
    [
        ({"start": 2}, "rollout.horizon.start = 2 and rollout.horizon.iterations = 0: a horizon that grows"),
        ({"iterations": 2}, "rollout.horizon.start = 0 and rollout.horizon.iterations = 2: a horizon"),
        ({"start": -1, "iterations": 1}, "rollout.horizon.start = -1"),
        (
            {"start": 2, "iterations": 4, "every": 5},
            "every must be 1 to rollout.horizon.iterations = 4, got 5",
        ),
        ({"start": 2, "iterations": 4, "every": 0}, "got 0"),
        ({"start": 17, "iterations": 4}, "start = 17 is more than rollout.max_steps = 16, to which it grows"),
    ],
)
def test_what_cannot_grow_is_refused(horizon: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RolloutConfig(horizon=Horizon(**horizon))
    assert message in str(caught.value)
