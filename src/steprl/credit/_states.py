"""In which state of the environment each step acted, by the anchors that stand in the record."""

from __future__ import annotations

from steprl.types import Trajectory

State = tuple[str, ...]
"""A state of the environment: its anchor, or () for the task as it begins, the same for a whole group."""


def states(trajectory: Trajectory) -> list[State | None]:
    """The state in which each step acted; None where the environment did not name it.

    ``Step.anchor`` is the state that a step *reached*, so a step acted in the anchor of its parent, or of
    another agent's newest step since: the environment is one, whoever acts. A summary leaves it as it is.
    """
    acted: list[State | None] = []
    reached: list[State | None] = []
    for index, step in enumerate(trajectory.steps):
        since = -1 if step.parent is None else step.parent
        others = (i for i in range(index - 1, since, -1) if trajectory.steps[i].agent != step.agent)
        last = next(others, step.parent)
        state = () if last is None else reached[last]
        acted.append(state)
        if step.kind != "summary":
            state = None if step.anchor is None else (step.anchor,)
        reached.append(state)
    return acted
