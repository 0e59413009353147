"""What ``gae`` means: values worked out by hand, and a slow reading of the definition beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from episodes import chained, grouped, step, trajectory
from hypothesis import given
from hypothesis import strategies as st

from steprl.credit import Gae, ReinforcePp
from steprl.errors import ConfigError
from steprl.types import Credits, Need, Scores, StepKey, StopReason, Trajectory


def values_of(*rows: list[float]) -> dict[StepKey, np.ndarray]:
    """A critic's values before each token of the steps of trajectory ``a``."""
    return {StepKey("a", t): np.array(row) for t, row in enumerate(rows)}


def of(credits: Credits, uid: str, index: int) -> tuple[list[float], list[float]]:
    assert credits.returns is not None
    key = StepKey(uid, index)
    return credits.advantages[key].tolist(), credits.returns[key].tolist()


STEPS = chained(step([1], [5, 6], reward=1.0), step([1], [7, 8, 9], sampled=[True, False, True], reward=2.0))
VALUES = values_of([1.0, 2.0], [3.0, math.nan, 4.0])


def test_token_credit_crosses_environment_tokens_and_steps() -> None:
    scores = Scores(values=VALUES)
    gae = Gae(gamma=0.5, lam=0.5, whiten=False)
    credits = gae(grouped(trajectory("a", STEPS)), scores)
    # backwards: 2 − 4 = −2;  ½·4 − 3 + ¼·−2 = −1.5;  1 + ½·3 − 2 + ¼·−1.5 = 0.125;  ½·2 − 1 + ¼·0.125
    assert of(credits, "a", 1) == ([-1.5, 0.0, -2.0], [1.5, 0.0, 2.0])
    assert of(credits, "a", 0) == ([0.03125, 0.125], [1.03125, 2.125])


def test_step_credit_reads_one_value_per_step() -> None:
    scores = Scores(values=VALUES)
    credits = Gae(credit="step", gamma=0.5, lam=0.5, whiten=False)(grouped(trajectory("a", STEPS)), scores)
    # backwards: 2 − 3 = −1;  1 + ½·3 − 1 + ¼·−1 = 1.25; the target of V(o_t) stands at every action token
    assert of(credits, "a", 1) == ([-1.0, 0.0, -1.0], [2.0, 2.0, 2.0])
    assert of(credits, "a", 0) == ([1.25, 1.25], [2.25, 2.25])


@pytest.mark.parametrize("reason", [StopReason.MAX_STEPS, StopReason.CONTEXT_FULL])
def test_a_truncated_trajectory_goes_on_with_the_value_of_what_comes_after(reason: StopReason) -> None:
    scores = Scores(values=VALUES, bootstrap_values={"a": 8.0})
    groups = grouped(trajectory("a", STEPS, stop_reason=reason))
    assert of(Gae(gamma=0.5, lam=0.5, whiten=False)(groups, scores), "a", 1)[0] == [-0.5, 0.0, 2.0]
    by_step = Gae(credit="step", gamma=0.5, lam=0.5, whiten=False)(groups, scores)
    assert of(by_step, "a", 1) == ([3.0, 0.0, 3.0], [6.0, 6.0, 6.0])
    with pytest.raises(ConfigError, match=f"a was truncated .{reason}.*final prompt"):
        Gae()(groups, Scores(values=VALUES))


def test_the_tasks_own_end_has_no_bootstrap() -> None:
    scores = Scores(values=VALUES, bootstrap_values={"a": 8.0})
    credits = Gae(gamma=0.5, lam=0.5, whiten=False)(grouped(trajectory("a", STEPS)), scores)
    assert of(credits, "a", 1)[0] == [-1.5, 0.0, -2.0]


def test_whitening_leaves_returns_as_they_are() -> None:
    groups = grouped(trajectory("a", STEPS))
    by_token, raw = (Gae(whiten=w)(groups, Scores(values=VALUES)) for w in (True, False))
    for index in range(2):
        assert of(by_token, "a", index)[1] == of(raw, "a", index)[1]
    found = np.concatenate([by_token.advantages[StepKey("a", t)][STEPS[t].sampled_mask] for t in range(2)])
    assert found.mean() == pytest.approx(0.0, abs=1e-12) and found.std(ddof=1) == pytest.approx(1.0)
    by_step = Gae(credit="step")(groups, Scores(values=VALUES))
    # of two numbers, each is half their distance from the mean: 1/√2 of the spread
    assert by_step.advantages[StepKey("a", 0)][0] == pytest.approx(math.sqrt(0.5), rel=1e-7)


def test_vine_ppo_is_step_credit_with_lambda_0() -> None:
    credits = Gae(credit="step", lam=0.0, whiten=False)(
        grouped(trajectory("a", STEPS)), Scores(values=VALUES)
    )
    assert of(credits, "a", 0)[0] == [1.0 + 3.0 - 1.0] * 2
    assert of(credits, "a", 1)[0] == [2.0 - 3.0, 0.0, 2.0 - 3.0]


def test_who_makes_the_values_decides_what_is_needed() -> None:
    assert Gae(credit="step", values="rollout").requires == {Need.SNAPSHOTS}
    with pytest.raises(ConfigError, match='"rollout" need credit = "step", gamma = 1'):
        Gae(values="rollout")
    with pytest.raises(ConfigError, match="unknown values.*'crtic'.*Did you mean 'critic'"):
        Gae(values="crtic")


def test_no_values_is_refused_by_name() -> None:
    assert Gae().requires == {Need.CRITIC} and Gae(kl_beta=0.1).requires == {Need.CRITIC, Need.REFERENCE}
    for scores in (Scores(), Scores(values=values_of([1.0, 2.0]))):
        with pytest.raises(ConfigError, match="gae needs a value of every step.*critic"):
            Gae()(grouped(trajectory("a", STEPS)), scores)
    with pytest.raises(ConfigError, match="lam is 2"):
        Gae(lam=2)


def test_a_trajectory_without_sampled_tokens_needs_and_gets_nothing() -> None:
    forced = trajectory("a", [step([1], [4], sampled=[False])], stop_reason=StopReason.MAX_STEPS)
    for unit in ("token", "step"):
        credits = Gae(credit=unit)(grouped(forced, trajectory("empty", [])), Scores())
        assert of(credits, "a", 0) == ([0.0], [0.0]) and not credits.loss_mask[StepKey("a", 0)].any()


def test_what_does_not_train_needs_no_values() -> None:
    late = trajectory("late", STEPS, stop_reason=StopReason.DEADLINE)
    alone = Gae()(grouped(trajectory("a", STEPS)), Scores(values=VALUES))
    credits = Gae()(grouped(trajectory("a", STEPS), late), Scores(values=VALUES))
    assert of(credits, "a", 0) == of(alone, "a", 0)
    assert of(credits, "late", 1) == ([0.0] * 3, [0.0] * 3)


# --- the definition, read literally -------------------------------------------------------------------

numbers = st.floats(-5, 5).map(lambda x: round(x, 3))


@st.composite
def recorded(draw: st.DrawFn) -> tuple[Trajectory, Scores]:
    """Any trajectory: branches, agents, summaries, steps without sampled tokens; and what a critic says."""
    steps, values = [], {}
    for t in range(draw(st.integers(1, 6))):
        mask = draw(st.lists(st.booleans(), max_size=3))
        steps.append(
            step(
                [1],
                [2] * len(mask),
                sampled=mask,
                reward=draw(numbers),
                parent=draw(st.none() | st.integers(0, t - 1)) if t else None,
                agent=draw(st.sampled_from(["policy", "policy", "other"])),
                kind=draw(st.sampled_from(["act", "act", "summary"])),
            )
        )
        said = [draw(numbers) if j == 0 or mask[j] else math.nan for j in range(len(mask))]
        values[StepKey("a", t)] = np.array(said)
    reason = draw(st.sampled_from([StopReason.TERMINATED, StopReason.MAX_STEPS]))
    return trajectory("a", steps, stop_reason=reason), Scores(
        values=values, bootstrap_values={"a": draw(numbers)}
    )


def paths(recorded: Trajectory, start: int) -> Iterator[tuple[float, list[int]]]:
    """Every way on from a step along its agent's chain, with its probability: children are equally likely."""

    def before(t: int) -> int | None:
        at = recorded.steps[t].parent
        while at is not None and recorded.steps[at].agent != recorded.steps[t].agent:
            at = recorded.steps[at].parent
        return at

    children = [t for t in range(len(recorded.steps)) if before(t) == start]
    if not children:
        yield 1.0, [start]
    for child in children:
        for weight, rest in paths(recorded, child):
            yield weight / len(children), [start, *rest]


def literal(
    recorded: Trajectory, scores: Scores, start: int, unit: str, gamma: float, lam: float
) -> list[float]:
    """The advantages of one step's units: Σ over ways on, Σ over what follows, δ by δ."""
    assert scores.values is not None and scores.bootstrap_values is not None
    found: list[float] = []
    for weight, path in paths(recorded, start):
        units: list[list[float]] = []  # reward, value, discount
        for t in path:
            each, said = recorded.steps[t], scores.values[StepKey("a", t)]
            places = np.flatnonzero(each.sampled_mask).tolist()
            if unit == "step":
                places = places and [0]
            units += [[0.0, said[j], 1.0 if each.kind == "summary" else gamma] for j in places]
            if units:
                units[-1][0] += each.reward
        open_end = recorded.stop_reason.bootstraps and path[-1] == len(recorded.steps) - 1
        end = [0.0, scores.bootstrap_values["a"] if open_end else 0.0, 0.0]
        deltas = [r + g * after[1] - v for (r, v, g), after in pairwise([*units, end])]
        own = recorded.steps[start].sampled_mask.sum()
        for u in range(min(own, 1) if unit == "step" else own):
            total, factor = 0.0, 1.0
            for k in range(u, len(units)):
                total += factor * deltas[k]
                factor *= units[k][2] * lam
            found += [0.0] * (u + 1 - len(found))
            found[u] += weight * total
    return found


@pytest.mark.parametrize("unit", ["token", "step"])
@given(drawn=recorded(), gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]), lam=st.sampled_from([0.0, 0.7, 1.0]))
def test_gae_is_its_definition(unit: str, drawn: tuple[Trajectory, Scores], gamma: float, lam: float) -> None:
    made, scores = drawn
    credits = Gae(credit=unit, gamma=gamma, lam=lam, whiten=False)(grouped(made), scores)
    assert scores.values is not None and credits.returns is not None
    for t, each in enumerate(made.steps):
        key = StepKey("a", t)
        np.testing.assert_array_equal(credits.loss_mask[key], each.sampled_mask)
        expected = np.zeros(len(each.action_ids))
        expected[each.sampled_mask] = literal(made, scores, t, unit, gamma, lam)
        np.testing.assert_allclose(credits.advantages[key], expected, rtol=1e-9, atol=1e-9)
        if each.sampled_mask.any():
            base = scores.values[key][0] if unit == "step" else scores.values[key][each.sampled_mask]
            targets = credits.returns[key][each.sampled_mask]
            np.testing.assert_allclose(targets, expected[each.sampled_mask] + base, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", ["token", "step"])
@given(drawn=recorded(), gamma=st.sampled_from([0.5, 1.0]))
def test_without_values_it_is_the_return_to_go(
    unit: str, drawn: tuple[Trajectory, Scores], gamma: float
) -> None:
    made, _ = drawn
    nothing = {made.key(t): np.zeros(len(s.action_ids)) for t, s in enumerate(made.steps)}
    scores = Scores(values=nothing, bootstrap_values={"a": 0.0})
    ours = Gae(credit=unit, gamma=gamma, whiten=False)(grouped(made), scores)
    plain = ReinforcePp(credit=unit, gamma=gamma, whiten=False)(grouped(made), Scores())
    for key, expected in plain.advantages.items():
        np.testing.assert_array_equal(ours.advantages[key], expected)


@given(drawn=recorded())
def test_token_and_step_are_one_for_steps_of_one_token(drawn: tuple[Trajectory, Scores]) -> None:
    single = [
        step([1], [2], reward=s.reward, parent=s.parent, agent=s.agent, kind=s.kind) for s in drawn[0].steps
    ]
    by_token, by_step = (
        ReinforcePp(credit=unit, gamma=0.9, whiten=False)(grouped(trajectory("a", single)), Scores())
        for unit in ("token", "step")
    )
    for key, expected in by_token.advantages.items():
        np.testing.assert_array_equal(by_step.advantages[key], expected)
