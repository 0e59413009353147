"""Does an environment keep the contract of `Env`: repeatable by seed, calls in order, always closable?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from steprl.envs.base import Env
from steprl.envs.checker.episodes import Episode, in_turn, playing, whole
from steprl.envs.checker.lab import Broken, Instance, Lab
from steprl.envs.checker.players import RecordedPlayer
from steprl.envs.checker.report import Check, failed, passed, warned
from steprl.types import Action, Task, Transition

_SHOWN = 60
"""Characters shown of two values that differ."""


# --- determinism --------------------------------------------------------------------------------------


def determinism(lab: Lab, played: Sequence[Episode]) -> Check:
    """Play recorded actions again, alone and in turn with another episode, and compare everything."""
    episodes = whole(played)
    compared = 0
    for index, episode in enumerate(episodes):
        again = _again(lab, episode)
        beside, _ = in_turn(_repeat(lab, episode), _repeat(lab, episodes[index - 1]))
        if again.hung or beside.hung:
            break
        for second, how in ((again, "played again"), (beside, "played again beside another episode")):
            if second.broken:
                continue  # an error is an error, and stands in the ledger
            compared += 1
            found = difference(episode, second)
            if found:
                return failed(
                    "determinism",
                    f"task '{episode.task.id}', seed {episode.seed}, {how} with the same actions: {found}. "
                    f"Draw everything random from reset's seed, keep the state on self and not on the class "
                    f"or the module, and leave out clocks and the order of sets.",
                )
    if not compared:
        return warned("determinism", "not checked: no episode could be played twice")
    return passed(
        "determinism",
        f"{compared} episodes played again, half of them beside another one: the same openings, tools, "
        f"feedback, rewards, flags and anchors",
    )


def difference(first: Episode, second: Episode) -> str:
    """The first difference between two episodes of the same task, seed and actions; empty: none."""
    found = _apart(first.opening, second.opening) or _apart(first.tools, second.tools)
    if found:
        return f"{'tools' if first.opening == second.opening else 'opening'}: {found}"
    for step, ((_, a), (_, b)) in enumerate(zip(first.rounds, second.rounds, strict=False)):
        for name in Transition.__dataclass_fields__:
            found = _apart(getattr(a, name), getattr(b, name))
            if found:
                return f"{name} of step {step}: {found}"
    if len(first.rounds) != len(second.rounds):
        return f"it ended after {len(first.rounds)} steps and then after {len(second.rounds)}"
    return ""


def _apart(first: Any, second: Any) -> str:
    if first == second:
        return ""
    a, b = repr(first), repr(second)
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, at - 20)
    return f"first …{a[start : start + _SHOWN]}… then …{b[start : start + _SHOWN]}…"


def _repeat(lab: Lab, episode: Episode) -> Any:
    actions = episode.actions
    return playing(lab, episode.task, episode.seed, RecordedPlayer(actions), len(actions), name="replay")


def _again(lab: Lab, episode: Episode) -> Episode:
    return in_turn(_repeat(lab, episode))[0]


# --- the order of calls -------------------------------------------------------------------------------


def call_order(lab: Lab, task: Task, seed: int, action: Action, played: Sequence[Episode]) -> Check:
    """What must not be called must be refused with an exception."""
    answered: list[str] = []
    tried: list[str] = []

    def refused(name: str, instance: Instance, call: Callable[[Env], Any]) -> None:
        tried.append(name)
        if not instance.refuses(name, call):
            answered.append(name)

    def step(env: Env) -> Any:
        return env.step(action)

    def early(instance: Instance) -> None:
        refused("step before reset", instance, step)

    def twice(instance: Instance) -> None:
        instance.reset(task, seed)
        refused("a second reset", instance, lambda env: env.reset(task, seed=seed))

    def closed(instance: Instance) -> None:
        instance.reset(task, seed)
        instance.close()
        refused("step after close", instance, step)

    def late(instance: Instance) -> None:
        episode = next(found for found in whole(played) if found.ended)
        instance.reset(episode.task, episode.seed)
        ends = [instance.step(past) for past in episode.actions][-1]
        if ends.terminated or ends.truncated:
            refused("step after the end", instance, step)

    ends_known = any(episode.ended for episode in whole(played))
    for case in (early, twice, *([late] if ends_known else []), closed):
        try:
            with Instance(lab, task.id) as instance:
                case(instance)
        except Broken as broken:
            if broken.hung:
                break
    if answered:
        return failed(
            "call_order",
            f"{', '.join(answered)}: answered as if nothing were wrong. Raise an EnvError: one instance is "
            f"one episode, and a call out of order is a mistake that must not look like a result.",
        )
    if not tried:
        return warned("call_order", "not checked: no instance could be made and reset")
    return passed("call_order", f"refused: {', '.join(tried)}")


# --- closing ------------------------------------------------------------------------------------------


def close(lab: Lab, task: Task, seed: int, action: Action) -> None:
    """Close in every state that rollout can leave an environment in; what fails is in the ledger.

    Leaving the ``with`` block closes once more, so each is also closed twice.
    """

    async def cancelled(env: Env) -> None:
        stepping = asyncio.ensure_future(env.step(action))
        await asyncio.sleep(0)
        stepping.cancel()
        await asyncio.wait([stepping])
        if not stepping.cancelled():
            stepping.exception()  # looked at, so that nobody reports it as forgotten

    def in_the_middle(instance: Instance) -> None:
        instance.reset(task, seed)
        instance.do("step that is cancelled", cancelled)
        instance.close(after=" after a cancelled step")

    for case in (Instance.close, in_the_middle):
        try:
            with Instance(lab, task.id) as instance:
                case(instance)
        except Broken as broken:
            if broken.hung:
                return


def closing(lab: Lab) -> Check:
    """How closing went in the whole check."""
    faults = lab.of("close")
    if faults:
        return failed(
            "close",
            f"{faults}. Rollout closes in any case: before reset, twice, after an error, after a cancelled "
            f"step. Set what close frees in __init__, and let it be freed once.",
        )
    return passed("close", "before reset, twice, after a cancelled step and after every episode")
