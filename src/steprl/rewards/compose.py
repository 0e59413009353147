"""``RewardComposer``: the step's named components and their weighted sum, composed once.

What is recorded is each component as it is; what trains is ``r_t = Σ weight · component``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from steprl.errors import ConfigError, ScorerError
from steprl.registry import addresses, resolve
from steprl.types import Action, Task, Transition, finite

Component = Callable[[Task, Action, Transition], float]
"""A reward component: a finite number for one step. Rollout calls it in threads, several episodes at once."""


@dataclass(frozen=True, slots=True)
class RewardComposer:
    """Weights by component name.

    A name that is registered (or ``module:attribute``) is computed for every step. Any other name must
    be a component that the environment reports; those weigh 1 unless given here. Where an environment
    reports a component of a registered name itself, its value is the one that counts. That a name is
    neither cannot be known before the environment has run: see ``missing``.

    Raises:
        ConfigError: a weight is not a finite number, or a ``module:attribute`` is not a function.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    computed: Mapping[str, Component] = field(init=False)

    def __post_init__(self) -> None:
        registered = addresses("reward")
        computed: dict[str, Component] = {}
        for name, weight in self.weights.items():
            try:
                finite(weight, f"the weight of reward component '{name}'")
            except (TypeError, ValueError) as error:
                raise ConfigError(str(error)) from error
            if name in registered or ":" in name:
                computed[name] = resolve("reward", name)
                if not callable(computed[name]):
                    raise ConfigError(
                        f"reward component '{name}' is {computed[name]!r}: "
                        f"a function (task, action, transition) -> float is expected"
                    )
        object.__setattr__(self, "computed", computed)

    def compose(
        self, task: Task, action: Action, transition: Transition
    ) -> tuple[Mapping[str, float], float]:
        """All components of the step, unweighted, and the step's reward.

        Raises:
            ScorerError: a component raised, is not a finite number, or the sum overflows.
        """
        rewards: dict[str, float] = {}
        for name, component in self.computed.items():
            if name not in transition.rewards:
                rewards[name] = _number(name, _computed(name, component, task, action, transition))
        for name, value in transition.rewards.items():
            rewards[name] = _number(name, value)
        reward = sum((self.weights.get(name, 1.0) * value for name, value in rewards.items()), 0.0)
        if not math.isfinite(reward):
            raise ScorerError(f"the weighted sum of the reward components {rewards} is {reward}")
        return rewards, reward

    def least(self, declared: float) -> float:
        """What an episode is worth at worst, given the least total that an environment declares before
        weights: no weight of its components makes failing cheaper than that."""
        weights = [1.0, *(w for name, w in self.weights.items() if name not in self.computed)]
        return declared * (max(weights) if declared < 0 else min(weights))

    def missing(self, seen: set[str]) -> tuple[str, ...]:
        """Weights that matched nothing: not computed, and not among the component names ``seen``."""
        return tuple(sorted(name for name in self.weights if name not in self.computed and name not in seen))


def _computed(name: str, component: Component, task: Task, action: Action, transition: Transition) -> object:
    try:
        return component(task, action, transition)
    except (ConfigError, ScorerError):
        raise
    except (Exception, SystemExit) as error:
        told = ScorerError(f"reward component '{name}' raised {type(error).__name__}: {error}")
        raise told.with_traceback(error.__traceback__) from error


def _number(name: str, value: object) -> float:
    try:
        return finite(value, f"reward component '{name}'")
    except (TypeError, ValueError) as error:
        raise ScorerError(str(error)) from None
