"""Whether rows train what was sampled: every sampled token once, after exactly the ids it was sampled after,
and no control token that only a text spelled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from steprl.renderers import ChatRenderer
from steprl.trainers.doctor.play import Play
from steprl.types import Message, Row, Trajectory


def misplaced(trajectory: Trajectory, rows: Sequence[Row]) -> Iterator[str]:
    """What rows would train otherwise than it was sampled, a line for each token."""
    trained: Counter[tuple[int, int]] = Counter()
    for row in rows:
        for position, place, token in zip(row.action_positions, row.step_index, row.token_index, strict=True):
            key = row.step_keys[int(place)]
            step, j = trajectory.steps[key.step], int(token)
            trained[key.step, j] += 1
            told = f"step {key.step}, action token {j}"
            if not step.sampled_mask[j]:
                yield f"{told} was not sampled and is trained"
            if row.ids[position] != step.action_ids[j]:
                yield f"{told} is trained as id {row.ids[position]}, and was sampled as {step.action_ids[j]}"
            if not np.array_equal(row.ids[:position], np.concatenate([step.prompt_ids, step.action_ids[:j]])):
                yield f"{told} is trained after other ids than it was sampled after"
    for index, step in enumerate(trajectory.steps):
        for j in np.flatnonzero(step.sampled_mask).tolist():
            if trained[index, j] != 1:
                yield f"step {index}, action token {j} is trained {trained[index, j]} times"


def changed(play: Play) -> Iterator[str]:
    """Steps whose ids are not those that the engine said."""
    for number, (index, said) in enumerate(zip(play.acts, play.replies, strict=True)):
        step = play.trajectory.steps[index]
        if tuple(step.action_ids[step.sampled_mask].tolist()) != said:
            yield f"action {number} is recorded with other ids than the engine said"


def exposed(play: Play, renderer: ChatRenderer) -> int:
    """Control tokens in prompts that neither the template wrote nor the policy sampled: more of them than the
    same prompt has when none is spelled in it."""
    if not renderer.control_ids:
        return 0
    spelled = re.compile("|".join(map(re.escape, sorted(renderer.control_ids, key=len, reverse=True))))
    control = {*renderer.control_ids.values()}

    def plain(message: Message) -> Message:
        if message.token_ids is not None:
            return message  # its ids are the policy's own
        return replace(message, content=spelled.sub("control", message.content))

    found = 0
    for index, shown in zip(play.acts, play.shown, strict=True):
        prompt = play.trajectory.steps[index].prompt_ids.tolist()
        clean = renderer.render([plain(message) for message in shown], play.tools)
        found += sum(i in control for i in prompt) - sum(i in control for i in clean)
    return found
