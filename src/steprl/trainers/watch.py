"""Watching for collapse: after each iteration, the figures that tell of it are held against thresholds.

A figure on the wrong side for several iterations in a row is an alarm: a line with the number, what it
usually means and what to do, a mark in the metrics, and, if asked for, the end of the run or a step back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from steprl.errors import ConfigError, StepRLError

Metrics = Mapping[str, float | None]
"""One line of ``metrics.jsonl``: None stands for a figure that was not finite."""

Verdict = Literal["go on", "stop", "roll back"]
"""What is done about the alarms of an iteration."""

ROLLED_BACK = "watch/rolled_back"
"""The mark of an iteration whose weights were given up."""

_SOLVED = 0.9
"""From this success on, equal rewards in a group are the aim and no collapse."""


class Collapsed(StepRLError):
    """A watched figure ended the run. It was saved and can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """What counts as collapse, and what is done then. A threshold of 0 turns that figure off.

    Args:
        repeated_actions: share of actions that repeat the action before them.
        without_calls: share of episodes without a tool call, in a run that began with fewer than half.
        entropy_floor: mean entropy of trained tokens, in nats; an alarm below it.
        zero_variance: share of groups (that filters keep) with equal rewards, while success is below 0.9.
        missing_groups: share of the groups asked for that filters leave missing, while success is below 0.9.
        engine_gap: mean difference of the engine's and the learner's log-probabilities of sampled tokens.
        failed_episodes: share of episodes that broke or met a deadline.
        skipped_steps: share of optimiser steps that a loss or gradient which was not finite made impossible.
        patience: iterations in a row until it is an alarm.
        action: ``warn``; ``stop`` saves and ends the run; ``rollback`` goes on from the last checkpoint's
            weights with the next tasks.
        rollbacks: how often, before it stops all the same.
    """

    repeated_actions: float = 0.5
    without_calls: float = 0.95
    entropy_floor: float = 0.001
    zero_variance: float = 0.95
    missing_groups: float = 0.75
    engine_gap: float = 0.1
    failed_episodes: float = 0.25
    skipped_steps: float = 0.5
    patience: int = 3
    action: Literal["warn", "stop", "rollback"] = "warn"
    rollbacks: int = 1

    def __post_init__(self) -> None:
        for signal in SIGNALS:
            value = getattr(self, signal.option)
            greatest = 1.0 if signal.is_share else math.inf
            if not 0 <= value <= greatest or math.isinf(value):
                allowed = "a share between 0 and 1" if signal.is_share else "a number above 0"
                raise ConfigError(f"watch.{signal.option} must be 0 (off) or {allowed}, got {value}")
        if self.patience < 1:
            raise ConfigError(f"watch.patience must be at least 1 iteration, got {self.patience}")
        if self.rollbacks < 0:
            raise ConfigError(f"watch.rollbacks must be 0 or above, got {self.rollbacks}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A figure that tells of collapse: how to read it, and what to say about it.

    ``read`` gives None when an iteration has no such figure; ``told`` has a place for the number.
    """

    option: str
    read: Callable[[Metrics], float | None]
    told: str
    means: str
    advice: str
    below: bool = False
    is_share: bool = True

    def wrong(self, value: float, threshold: float) -> bool:
        """Whether the figure is on the wrong side of a threshold that is not 0."""
        return value < threshold if self.below else value >= threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A figure that has been on the wrong side for ``patience`` iterations in a row, or more: ``streak``."""

    signal: Signal
    value: float
    threshold: float
    streak: int

    @property
    def finding(self) -> str:
        """The number, the threshold and since when."""
        side = "below" if self.signal.below else "at or above"
        return (
            f"{self.signal.told.format(self.value)}, {side} watch.{self.signal.option} = {self.threshold:g} "
            f"for {self.streak} iteration{'s' if self.streak > 1 else ''} in a row"
        )

    @property
    def message(self) -> str:
        """The finding, what it usually means, what to do."""
        return f"watch: {self.finding}. {self.signal.means} {self.signal.advice}"


class Watch:
    """Remembers since when which figure is on the wrong side. Fed the same metrics, it says the same."""

    def __init__(self, config: WatchConfig) -> None:
        self.config = config
        self.rollbacks = 0
        """Rollbacks so far."""
        self._streaks = {signal.option: 0 for signal in SIGNALS}
        self._began_with_calls: bool | None = None

    @property
    def uneasy(self) -> bool:
        """Whether a figure is on the wrong side at this moment, alarm or not yet."""
        return any(self._streaks.values())

    def look(self, metrics: Metrics) -> list[Alarm]:
        """Take in one iteration; returns the alarms that hold now. An iteration without a figure neither
        lengthens nor ends a streak of it."""
        without = _figure(metrics, "calls/none_share")
        if self._began_with_calls is None and without is not None:
            self._began_with_calls = without < 0.5
        alarms = []
        for signal in SIGNALS:
            value, threshold = signal.read(metrics), float(getattr(self.config, signal.option))
            if value is None or threshold == 0:
                continue
            if signal.option == "without_calls" and not self._began_with_calls:
                continue  # nothing to call, or never called: no change for the worse
            streak = self._streaks[signal.option] + 1 if signal.wrong(value, threshold) else 0
            self._streaks[signal.option] = streak
            if streak >= self.config.patience:
                alarms.append(Alarm(signal=signal, value=value, threshold=threshold, streak=streak))
        return alarms

    def is_new(self, alarm: Alarm) -> bool:
        """Whether it began with the last iteration, and so has not been told yet."""
        return alarm.streak == self.config.patience

    def verdict(self, alarms: Iterable[Alarm]) -> Verdict:
        """What the recipe wants done about these alarms."""
        if not list(alarms) or self.config.action == "warn":
            return "go on"
        if self.config.action == "rollback" and self.rollbacks < self.config.rollbacks:
            return "roll back"
        return "stop"

    def rolled_back(self) -> None:
        """The weights are older ones: what was held against the newer is forgotten."""
        self.rollbacks += 1
        self._streaks = dict.fromkeys(self._streaks, 0)

    def recall(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take in the recorded metrics of a run that is resumed, so that it goes on as if never stopped."""
        for line in lines:
            alarms = self.look(line)
            if ROLLED_BACK in line:
                self.rolled_back()
            elif self.verdict(alarms) == "stop":
                self._streaks = dict.fromkeys(self._streaks, 0)  # whoever goes on has done something about it


def marks(alarms: Iterable[Alarm], verdict: Verdict) -> dict[str, float]:
    """What the metrics of an iteration say of its alarms: ``watch/<option>`` is 1.0 for each."""
    found = {f"watch/{alarm.signal.option}": 1.0 for alarm in alarms}
    return found | ({ROLLED_BACK: 1.0} if verdict == "roll back" else {})


def collapsed(alarms: Iterable[Alarm], iteration: int, config: Path, command: str) -> Collapsed:
    """The error that ends a run: what was found, and how to go on."""
    findings = "; ".join(alarm.finding for alarm in alarms)
    return Collapsed(
        f"stopped after iteration {iteration}: {findings}. Everything is saved. Do what is advised above in "
        f'{config} (watch.action = "warn" goes on regardless), then: {command}'
    )


def _figure(metrics: Metrics, name: str) -> float | None:
    """A figure, or None when there is none or it is not finite: on disk the two look the same."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def _named(name: str) -> Callable[[Metrics], float | None]:
    return lambda metrics: _figure(metrics, name)


def _unless_solved(metrics: Metrics, name: str) -> float | None:
    share, solved = _figure(metrics, name), _figure(metrics, "reward/success_share")
    return 0.0 if share is not None and solved is not None and solved >= _SOLVED else share


def _zero_variance(metrics: Metrics) -> float | None:
    of = "filter" if "filter/rounds" in metrics else "groups"  # what filters drop shows as missing groups
    return _unless_solved(metrics, f"{of}/zero_variance_share")


def _failed(metrics: Metrics) -> float | None:
    broken, late = _figure(metrics, "stop/error"), _figure(metrics, "stop/deadline")
    return broken + late if broken is not None and late is not None else None


def _skipped(metrics: Metrics) -> float | None:
    skipped, updates = _figure(metrics, "learner/skipped_steps"), _figure(metrics, "learner/updates")
    return skipped / updates if skipped is not None and updates else None


SIGNALS = (
    Signal(
        option="repeated_actions",
        read=_named("calls/repeated_share"),
        told="{:.2f} of the actions repeat the action before them",
        means="Usually the policy is stuck in a loop: what it reads after an action does not tell it what to "
        "do next, or a reward per step pays for doing something again.",
        advice="Look at episodes (steprl show), make the tool's answer say what was wrong, and give no "
        "reward for a step that changes nothing.",
    ),
    Signal(
        option="without_calls",
        read=_named("calls/none_share"),
        told="{:.2f} of the episodes call no tool any more",
        means="Usually guessing at once pays as well as working: the reward can be had without the tools, or "
        "malformed calls are punished so hard that not calling is safest.",
        advice="Lower the penalty on malformed calls, use tasks that cannot be guessed, and go back to a "
        "checkpoint from before.",
    ),
    Signal(
        option="entropy_floor",
        read=_named("learner/entropy"),
        told="the entropy of trained tokens is {:.2g} nats",
        means="The policy has become certain: episodes of a group hardly differ, so there is nothing left to "
        "compare.",
        advice="Lower learner.lr, raise rollout.temperature or learner.clip_high; if the tasks are solved, "
        "the run is simply done.",
        below=True,
        is_share=False,
    ),
    Signal(
        option="zero_variance",
        read=_zero_variance,
        told="in {:.2f} of the groups all rewards are equal",
        means="There is nothing to learn from a group without a difference: the tasks are too hard or too "
        "easy for this policy, or the reward is too coarse.",
        advice="Raise rollout.group_size or rollout.temperature, mix in other tasks, or reward a part of the "
        "way.",
    ),
    Signal(
        option="missing_groups",
        read=lambda metrics: _unless_solved(metrics, "filter/missing_share"),
        told="after all further rounds {:.2f} of the groups are missing",
        means="Filters drop almost all: tasks too hard or too easy for this policy, or a filter too strict.",
        advice="See filter/… in metrics.jsonl for which; loosen it, mix in other tasks, use by_success.",
    ),
    Signal(
        option="engine_gap",
        read=_named("learner/engine_gap"),
        told="engine and learner differ by {:.2g} in the log-probability of a sampled token",
        means="What samples is not what learns: another precision, a model that the engine serves wrongly, "
        "or weights that did not arrive. (A scripted engine samples from no model at all: turn this off.)",
        advice="Set engine.dtype to the learner's, and compare the two token by token: steprl replay RUN.",
        is_share=False,
    ),
    Signal(
        option="failed_episodes",
        read=_failed,
        told="{:.2f} of the episodes broke or met a deadline",
        means="The environment, a tool or the machine fails; what is left to train on is a biased rest.",
        advice="Read the lines 'episode failed' above and errors/… in metrics.jsonl; run steprl env check.",
    ),
    Signal(
        option="skipped_steps",
        read=_skipped,
        told="{:.2f} of the optimiser steps were skipped because a loss or gradient was not finite",
        means="The numbers overflow: the step size is too large, or a reward or advantage is huge.",
        advice="Lower learner.lr and learner.max_grad_norm, check reward magnitudes, and use "
        'learner.dtype = "float32".',
    ),
)
"""Every figure that is watched, in the order in which alarms are told."""
