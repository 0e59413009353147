"""KL to the reference in the reward: where it enters, what it needs, and who refuses it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from episodes import chained, grouped, rewarded, step, trajectory

from steprl.credit import DrGrpo, Gae, Gigpo, Grpo, ReinforcePp, ReinforcePpBaseline, Rloo
from steprl.errors import ConfigError
from steprl.types import Need, Scores, StepKey

STEPS = chained(
    step([1], [5, 6], reward=1.0),
    step([1], [7, 8, 9], sampled=[True, False, True], reward=2.0, kind="summary"),
)
# k1 = old − ref at the sampled tokens: 1, −2 and 3, 4; nothing is known of the token that was not sampled
OLD = {StepKey("a", 0): np.array([-1.0, -3.0]), StepKey("a", 1): np.array([-1.0, math.nan, -1.0])}
REF = {StepKey("a", 0): np.array([-2.0, -1.0]), StepKey("a", 1): np.array([-4.0, math.nan, -5.0])}
SCORES = Scores(old_logprobs=OLD, ref_logprobs=REF, values={key: np.zeros(len(x)) for key, x in OLD.items()})


@pytest.mark.parametrize("make", [ReinforcePp, Gae])
def test_token_by_token(make: type[ReinforcePp] | type[Gae]) -> None:
    estimator = make(gamma=0.0, kl_beta=0.5, whiten=False)
    credits = estimator(grouped(trajectory("a", [STEPS[0]])), SCORES)
    assert credits.advantages[StepKey("a", 0)].tolist() == [-0.5, 1.0 + 1.0]
    # and returns run over it
    credits = make(kl_beta=0.5, whiten=False)(grouped(trajectory("a", STEPS)), SCORES)
    assert credits.advantages[StepKey("a", 1)].tolist() == [2.0 - 3.5, 0.0, 2.0 - 2.0]
    assert credits.advantages[StepKey("a", 0)].tolist() == [3.0 - 3.0, 3.0 - 2.5]


@pytest.mark.parametrize("make", [ReinforcePp, Gae])
def test_with_step_credit_the_sum_of_the_steps_tokens(make: type[ReinforcePp] | type[Gae]) -> None:
    estimator = make(credit="step", gamma=0.5, kl_beta=0.5, whiten=False)
    credits = estimator(grouped(trajectory("a", STEPS)), SCORES)
    assert credits.advantages[StepKey("a", 1)].tolist() == [2.0 - 3.5, 0.0, 2.0 - 3.5]
    assert credits.advantages[StepKey("a", 0)].tolist() == [1.0 + 0.5 - 0.75] * 2


def test_rloo_takes_the_sum_over_the_trajectory_off_its_reward() -> None:
    made, other = trajectory("a", STEPS), rewarded("b", 0.0)
    same = {StepKey("b", 0): np.array([-1.0, -1.0])}
    scores = Scores(old_logprobs=OLD | same, ref_logprobs=REF | same)
    credits = Rloo(kl_beta=0.5)(grouped(made, other), scores)
    assert credits.advantages[StepKey("a", 0)].tolist() == [3.0 - 0.5 * 6.0] * 2
    credits = Rloo(kl_beta=0.25)(grouped(made, other), scores)
    assert credits.advantages[StepKey("b", 0)].tolist() == [-1.5, -1.5]


@pytest.mark.parametrize("make", [Rloo, ReinforcePp, Gae])
def test_it_needs_a_reference(make: type[Rloo] | type[ReinforcePp] | type[Gae]) -> None:
    assert make(kl_beta=0.1).requires == make().requires | {Need.REFERENCE}
    assert Need.REFERENCE not in make(kl_beta=0).requires
    made = grouped(trajectory("a", STEPS), trajectory("b", STEPS[:1]))
    for scores in (Scores(values=SCORES.values), Scores(old_logprobs=OLD, values=SCORES.values)):
        with pytest.raises(ConfigError, match="reference log-probabilities.*step 0 of a"):
            make(kl_beta=0.1)(made, scores)


@pytest.mark.parametrize("make", [Grpo, DrGrpo, Gigpo, ReinforcePpBaseline])
def test_elsewhere_it_is_refused_with_a_way_out(make: type[Grpo]) -> None:
    make(kl_beta=0.0)
    with pytest.raises(ConfigError, match=rf"kl_beta = 0.1, but {make.__name__} .*KL term of the loss"):
        make(kl_beta=0.1)
