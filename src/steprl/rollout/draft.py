"""A step being written: sampled already, not yet answered by the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from steprl.rewards.compose import RewardComposer
from steprl.types import (
    Action,
    Bools,
    Completion,
    Finish,
    Floats,
    Ints,
    Sampling,
    Step,
    Task,
    Transition,
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sampled:
    """An action's tokens as a step records them, from an engine or from an earlier record."""

    ids: Ints
    mask: Bools
    logprobs: Floats | None
    policy_versions: Ints
    sampling: Sampling
    finish: Finish

    @classmethod
    def now(cls, completion: Completion, sampling: Sampling) -> Sampled:
        """What an engine has just sampled: every token of it."""
        return cls(
            ids=completion.ids,
            mask=np.ones(len(completion.ids), dtype=np.bool_),
            logprobs=completion.logprobs,
            policy_versions=completion.policy_versions,
            sampling=sampling,
            finish=completion.finish,
        )

    @classmethod
    def foreign(cls, ids: Sequence[int], version: int, sampling: Sampling) -> Sampled:
        """What somebody else than the policy wrote: none of it was sampled."""
        return cls(
            ids=np.asarray(ids, dtype=np.int32),
            mask=np.zeros(len(ids), dtype=np.bool_),
            logprobs=None,
            policy_versions=np.full(len(ids), version, dtype=np.int32),
            sampling=sampling,
            finish="stop",
        )

    @classmethod
    def then(cls, step: Step) -> Sampled:
        """What a step recorded."""
        return cls(
            ids=step.action_ids,
            mask=step.sampled_mask,
            logprobs=step.logprobs,
            policy_versions=step.policy_versions,
            sampling=step.sampling,
            finish=step.finish,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Draft:
    """All that will be a `Step`; ``extra`` are rewards that the workflow adds to the environment's, which has
    ``answered`` or not yet."""

    prompt_ids: tuple[int, ...]
    sampled: Sampled
    action: Action
    kind: Literal["act", "summary"]
    agent: str
    parent: int | None
    started: float
    engine_seconds: float
    env_seconds: float = 0.0
    transition: Transition = field(default_factory=Transition)
    answered: bool = False
    extra: dict[str, float] = field(default_factory=dict)

    def rewards(self) -> dict[str, float]:
        """Named components of environment and workflow; several of one name add up."""
        named = dict(self.transition.rewards)
        for name, value in self.extra.items():
            named[name] = named.get(name, 0.0) + value
        return named

    def step(self, task: Task, composer: RewardComposer | None) -> Step:
        """The record, with its reward composed; without a composer it is recorded unscored."""
        transition = self.transition
        if self.extra:
            transition = Transition(
                feedback=transition.feedback,
                rewards=self.rewards(),
                terminated=transition.terminated,
                truncated=transition.truncated,
                anchor=transition.anchor,
            )
        rewards: Mapping[str, float] = {}
        reward: float | None = None
        if composer is not None:
            rewards, reward = composer.compose(task, self.action, transition)
        return Step(
            prompt_ids=np.asarray(self.prompt_ids, dtype=np.int32),
            action_ids=self.sampled.ids,
            sampled_mask=self.sampled.mask,
            logprobs=self.sampled.logprobs,
            policy_versions=self.sampled.policy_versions,
            sampling=self.sampled.sampling,
            finish=self.sampled.finish,
            kind=self.kind,
            agent=self.agent,
            parent=self.parent,
            reward=reward,
            rewards=rewards,
            feedback=transition.feedback,
            anchor=transition.anchor,
            calls=self.action.tool_calls,
            timings={"engine": self.engine_seconds, "env": self.env_seconds},
        )


def charged(step: Step, amount: float) -> Step:
    """The step on which an agent broke the environment, with ``amount`` added to its reward by that name."""
    return replace(
        step, reward=(step.reward or 0.0) + amount, rewards={**step.rewards, "environment_error": amount}
    )
