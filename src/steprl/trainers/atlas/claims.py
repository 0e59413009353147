"""What is known beforehand: which estimators are unbiased where, up to which constant, and why.

A claim is the constant c of E[gradient] = c · ∇J, argued on paper; None claims nothing. Tests compare it with
what is measured, to 1e-9. n is how many trajectories of a group are not lost, G when none can be.

* A return to go, less any baseline that does not depend on the action, is unbiased: c = 1 (Williams 1992,
  doi:10.1007/BF00992696). The mean of the *others* is such a baseline.
* The mean of all holds the action's own return: R_i − mean_g = (n − 1)/n · (R_i − mean of the others).
* A critic is a baseline, whatever it says, when λ = 1. With λ < 1 it must be right about the state, and as it
  reads prompts, these must show all that matters (`World.markov`). Continuations play on from the state
  itself, whatever is shown of it. After a limit of the run J is what the critic says, with continuations 0.
* Steps in one state are compared with their mean, too: where every member passes the same states, each once
  (`World.lockstep`), that is (n − 1)/n again. Elsewhere how many meet depends on what they did before.
* Division by a spread does no harm where an episode earns 0 or 1 and there is one task: of G trajectories k
  succeed, these are drawn from the successful episodes and the others from the rest, so that every k pulls
  along ∇p and only the length depends on it: c = 1/G · Σ_k P(k) · (k·A₊(k)/p − (G − k)·A₋(k)/(1 − p)).
* A rule whose weight is the same number everywhere only scales. One that divides by lengths does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import comb, sqrt

import numpy as np

from steprl.trainers.atlas.play import World
from steprl.trainers.atlas.policy import TablePolicy

Claim = Callable[[World], float | None]

LONGEST = 5
"""L_max of the rule ``constant``: more tokens than an episode of any world has."""


def nothing(world: World) -> float | None:
    """No claim."""
    return None


def returns(world: World) -> float | None:
    """Returns to go along chains, or less a baseline: unbiased unless all trajectories were lost."""
    return 1 - (1 - world.kept) ** world.group_size if world.chained else None


def others(world: World) -> float | None:
    """Less the mean of the others: it takes two."""
    return sum(chance for n, chance in _members(world) if n >= 2)


def mean_of_all(world: World) -> float | None:
    """Less the mean of all: (n − 1)/n."""
    return sum(chance * (n - 1) / n for n, chance in _members(world) if n >= 1)


def states(world: World) -> float | None:
    """The same of the episode and of each step: twice (n − 1)/n."""
    return (
        2 * sum(chance * (n - 1) / n for n, chance in _members(world) if n >= 1) if world.lockstep else None
    )


def discounted(world: World) -> float | None:
    """With γ < 1 only what is not discounted is right."""
    return returns(world) if world.steps == 1 else None


def one_token(world: World) -> float | None:
    """With λ < 1 and a critic that is wrong: where nothing comes after."""
    return returns(world) if world.tokens == 1 else None


def one_step(world: World) -> float | None:
    """The same by step."""
    return returns(world) if world.steps == 1 else None


def markov(world: World) -> float | None:
    """With λ < 1 and a critic that is exact: where prompts show what matters."""
    return returns(world) if world.markov else None


def spread(world: World) -> float | None:
    """(R − mean)/(std + 1e-6) within a group, of outcomes."""
    return _outcomes(world, lambda k, size: 1 / (sqrt(k * (size - k) / (size * (size - 1))) + 1e-6))


def spread_of_states(world: World) -> float | None:
    """The same of the episode and of each step."""
    once = spread(world)
    return 2 * once if once is not None and world.lockstep else None


def whitened_tokens(world: World) -> float | None:
    """Outcomes measured by mean and spread of all tokens, of which each trajectory has as many."""
    tokens = world.tokens
    if tokens is None:
        return None
    return _outcomes(world, lambda k, size: 1 / sqrt(_variance(k, size, tokens) + 1e-8))


def whitened_steps(world: World) -> float | None:
    """The same of all steps."""
    steps = world.steps
    if steps is None:
        return None
    return _outcomes(world, lambda k, size: 1 / (sqrt(_variance(k, size, steps)) + 1e-8))


def weight(rule: str, world: World) -> float | None:
    """What a token weighs in units of ``traj_mean_token_sum``, where that is the same number for all."""
    if rule == "traj_mean_token_sum":
        return 1.0
    if rule == "constant":
        return 1 / LONGEST
    if rule in ("token_mean", "traj_mean_token_mean"):
        return _inverse(world.tokens)
    if rule == "seq_mean_token_sum":
        return _inverse(world.steps)
    if rule in ("seq_mean_token_mean", "traj_mean_step_mean"):
        return _inverse(world.steps, world.tokens_of_step)
    return None


def step_weight(rule: str, world: World) -> float | None:
    """The same for the tokens of a step together, each of which has the gradient of all under some losses."""
    if rule in ("seq_mean_token_mean", "traj_mean_step_mean"):
        return _inverse(world.steps)
    if rule == "traj_mean_token_mean" and world.steps == 1:
        return 1.0
    of_token = weight(rule, world)
    return None if of_token is None or world.tokens_of_step is None else of_token * world.tokens_of_step


def _members(world: World) -> list[tuple[int, float]]:
    """How many of a group are not lost, and how likely that is."""
    size, kept = world.group_size, world.kept
    return [(n, comb(size, n) * kept**n * (1 - kept) ** (size - n)) for n in range(size + 1)]


def _outcomes(world: World, scale: Callable[[int, int], float]) -> float | None:
    """c of advantages (R − k/G) · scale(k, G), the sum over k of the text above."""
    if not world.outcome:
        return None
    size, p = world.group_size, _success(world)
    total = 0.0
    for k in range(1, size):
        better, worse = (1 - k / size) * scale(k, size), -k / size * scale(k, size)
        chance = comb(size, k) * p**k * (1 - p) ** (size - k)
        total += chance * (k * better / p - (size - k) * worse / (1 - p))
    return total / size


@cache
def _success(world: World) -> float:
    """The probability of success under the policy that learns."""
    episodes = world.episodes()
    policy = TablePolicy(episodes)
    logprobs_E = policy.logprobs(policy.logits_D).real
    return sum(
        e.chance * float(np.exp(sum(logprobs_E[policy.event(token)] for token in e.tokens)))
        for e in episodes
        if sum(step.reward or 0.0 for step in e.steps) > 0
    )


def _variance(k: int, size: int, units: int) -> float:
    """Of k ones and size − k zeros, each ``units`` times; ddof 1."""
    return units * k * (size - k) / size / (units * size - 1)


def _inverse(*counts: int | None) -> float | None:
    product = 1.0
    for count in counts:
        if count is None:
            return None
        product /= count
    return product
