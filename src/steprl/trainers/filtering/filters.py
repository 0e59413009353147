"""The filters that come with steprl: one for groups, the others for what happens on the way to an outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from steprl.credit import scored, states
from steprl.errors import ConfigError, unknown
from steprl.trainers.filtering.base import GroupFilter, TrajectoryFilter, count, share
from steprl.trajectory import same_action, success
from steprl.types import Step, ToolCall, Trajectory, TrajectoryGroup, equal_rewards

REFUSED = "Error: "
"""How a `ToolEnv` begins its answer to a call that it refused, or that raised."""


class Informative(GroupFilter):
    """Keeps groups with a difference: dynamic sampling of DAPO (arXiv:2503.14476, section 3.2).

    Args:
        by: ``reward`` drops groups in which all rewards are equal, ``success`` those in which all solve the
            task or none does, whatever else is rewarded.
    """

    smallest_group = 2

    def __init__(self, by: Literal["reward", "success"] = "reward") -> None:
        if by not in ("reward", "success"):
            raise ConfigError(unknown("by of the filter 'informative':", str(by), ("reward", "success")))
        self.by = by
        self.needs_outcome = by == "success"

    def keeps(self, group: TrajectoryGroup) -> bool:
        counted = [t for t in group.trajectories if scored(t)]
        if len(counted) < self.smallest_group:
            return False
        if self.by == "success":
            return 0 < sum(bool(success(t)) for t in counted) < len(counted)
        return not equal_rewards([t.reward for t in counted if t.reward is not None])


class UsefulCalls(TrajectoryFilter):
    """Keeps trajectories in which at least a share of the tool calls was neither malformed nor refused.

    A call was refused where its answer begins with "Error: ", which is how a `ToolEnv` tells of wrong
    arguments, of a tool that does not exist, and of what a tool raised. Without a call there is no share, and
    the trajectory is kept.
    """

    def __init__(self, least: float) -> None:
        self.least = share("least", least)

    def keeps(self, trajectory: Trajectory) -> bool:
        found = [useful for step in trajectory.steps for useful in _useful(step)]
        return not found or sum(found) >= self.least * len(found)


class ToolCalls(TrajectoryFilter):
    """Keeps trajectories with at least so many well-formed tool calls, and at most so many.

    Raises:
        ConfigError: neither bound is given, or the upper is below the lower.
    """

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self.least, self.most = count("least", least, least=0) or 0, count("most", most, least=0)
        if self.most is None and self.least == 0:
            raise ConfigError("the filter 'tool_calls' keeps all: give it least, most, or both")
        if self.most is not None and self.most < self.least:
            raise ConfigError(f"the filter 'tool_calls' keeps none: most = {most} is below least = {least}")

    def keeps(self, trajectory: Trajectory) -> bool:
        made = sum(isinstance(call, ToolCall) for step in trajectory.steps for call in step.calls)
        return self.least <= made and (self.most is None or made <= self.most)


class NoRepeats(TrajectoryFilter):
    """Keeps trajectories in which the agent does not do again what it has done in the same state.

    Where the environment names its states (anchors), an action is repeated when the same agent has taken it
    in that very state before, however long ago; where it does not, when it is the agent's action just before.
    The same action is the same calls with the same arguments, whatever is said around them; without calls,
    the same tokens.

    Args:
        most: so many repetitions are let pass.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = count("most", most, least=0) or 0

    def keeps(self, trajectory: Trajectory) -> bool:
        return sum(_repeated(trajectory)) <= self.most


class Length(TrajectoryFilter):
    """Keeps trajectories with at most so many actions (summaries not counted) and sampled tokens.

    Raises:
        ConfigError: neither is given.
    """

    def __init__(self, most_steps: int | None = None, most_tokens: int | None = None) -> None:
        self.most_steps = count("most_steps", most_steps, least=1)
        self.most_tokens = count("most_tokens", most_tokens, least=1)
        if most_steps is None and most_tokens is None:
            raise ConfigError("the filter 'length' keeps all: give it most_steps, most_tokens, or both")

    def keeps(self, trajectory: Trajectory) -> bool:
        steps = sum(step.kind == "act" for step in trajectory.steps)
        tokens = sum(int(step.sampled_mask.sum()) for step in trajectory.steps)
        return (self.most_steps is None or steps <= self.most_steps) and (
            self.most_tokens is None or tokens <= self.most_tokens
        )


def _useful(step: Step) -> Iterator[bool]:
    """For every call of a step, malformed ones too: was it useful?"""
    refused = {
        message.tool_call_id
        for message in step.feedback
        if message.role == "tool" and message.tool_call_id and message.content.startswith(REFUSED)
    }
    for call in step.calls:
        yield isinstance(call, ToolCall) and call.id not in refused


def _repeated(trajectory: Trajectory) -> Iterator[bool]:
    """For every action: has its agent done so in this state before?"""
    before: dict[str, list[tuple[object, Step]]] = {}
    for step, state in zip(trajectory.steps, states(trajectory), strict=True):
        if step.kind != "act":
            continue
        earlier = before.setdefault(step.agent, [])
        alike = earlier[-1:] if state is None else [(s, other) for s, other in earlier if s == state]
        yield any(same_action(other, step) for _, other in alike)
        earlier.append((state, step))
