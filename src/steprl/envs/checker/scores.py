"""What the scripted policies got: are rewards sound, do episodes end, and does doing it right pay?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from steprl.envs.base import Env
from steprl.envs.checker.episodes import Episode, play, whole
from steprl.envs.checker.lab import Broken, Instance, Lab
from steprl.envs.checker.players import (
    NullPlayer,
    Player,
    RandomPlayer,
    RepeatPlayer,
    ScriptedPlayer,
)
from steprl.envs.checker.report import Check, PolicyScore, failed, passed, warned
from steprl.types import Task

Played = Mapping[str, Sequence[Episode]]
"""Episodes by the name of the policy that played them; all policies play the same tasks and seeds."""

_ROUNDING = 1e-9


def play_policies(lab: Lab, kind: type[Env], tasks: Sequence[Task], *, max_steps: int, seed: int) -> Played:
    """Every policy on every task, the oracle of ``kind`` included; one whose episode hangs stops there."""
    makers: dict[str, Callable[[Task, int], Player | None]] = {
        "null": lambda task, seed: NullPlayer(),
        "random": lambda task, seed: RandomPlayer(seed),
        "repeat": lambda task, seed: RepeatPlayer(),
        "oracle": lambda task, seed: _oracle(lab, kind, task),
    }
    played: dict[str, Sequence[Episode]] = {}
    for name, make in makers.items():
        episodes: list[Episode] = []
        for index, task in enumerate(tasks):
            player = make(task, seed + index)
            if player is None:
                continue
            call = f"{name} policy"
            episodes.append(play(lab, task, seed + index, player, max_steps, name=call))
            if episodes[-1].hung:
                break
        played[name] = episodes
    return played


def _oracle(lab: Lab, kind: type[Env], task: Task) -> Player | None:
    try:
        policy = lab.do("oracle", lambda: kind.oracle(task), task.id)
    except Broken:
        return None
    return None if policy is None else ScriptedPlayer(policy)


def score(played: Played) -> dict[str, PolicyScore]:
    """The scores of the policies that finished at least one episode."""
    scores = {}
    for name, episodes in played.items():
        finished = whole(episodes)
        if not finished:
            continue
        returns = [episode.total for episode in finished]
        count = len(finished)
        scores[name] = PolicyScore(
            episodes=count,
            mean=math.fsum(returns) / count,
            minimum=min(returns),
            maximum=max(returns),
            steps=sum(len(episode.rounds) for episode in finished) / count,
            ended=sum(episode.ended for episode in finished) / count,
        )
    return scores


def range_of(lab: Lab) -> tuple[float, float] | str:
    """The environment's ``reward_range``, or what is wrong with it."""
    try:
        with Instance(lab) as instance:
            given = instance.do("reward_range", lambda env: env.reward_range)
    except Broken:
        return "it could not be read"
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        return f"it is {given!r:.80}; declare reward_range = (least, greatest)"
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return f"it is {given!r:.80}; it must be two finite numbers, the least and the greatest"
    return low, high


def rewards(lab: Lab, played: Played, bounds: tuple[float, float] | str) -> Check:
    """Every reward is finite and every episode's total lies in the declared range."""
    faults = lab.of("rewards")
    if faults:
        return failed("rewards", faults)
    if isinstance(bounds, str):
        return failed("rewards", f"reward_range: {bounds}")
    low, high = bounds
    episodes = whole([episode for several in played.values() for episode in several])
    if not episodes:
        return warned("rewards", "not checked: no episode came to an end")
    for episode in episodes:
        if not low - _ROUNDING <= episode.total <= high + _ROUNDING:
            return failed(
                "rewards",
                f"task '{episode.task.id}': an episode's rewards add up to {episode.total:g}, outside "
                f"reward_range {low:g} to {high:g}. Declare the range in which the total of an episode lies, "
                f"before weights; where it depends on the number of steps, end the episode yourself.",
            )
    totals = [episode.total for episode in episodes]
    return passed(
        "rewards", f"finite; totals {min(totals):g} to {max(totals):g}, declared {low:g} to {high:g}"
    )


def stop_flags(played: Played, max_steps: int) -> Check:
    """Episodes end by themselves; those that never do are left to the run's own limit."""
    finished = {name: whole(episodes) for name, episodes in played.items()}
    if not any(finished.values()):
        return warned("stop_flags", "not checked: no episode was played without an error")
    flags = {
        flag: sum(
            getattr(e.rounds[-1][1], flag) for several in finished.values() for e in several if e.rounds
        )
        for flag in ("terminated", "truncated")
    }
    if not any(flags.values()):
        return failed(
            "stop_flags",
            f"no episode of any policy ended within {max_steps} steps. Return Transition(terminated=True) "
            f"when the task is over, truncated=True at a limit that is not the task's.",
        )
    endless = [
        name for name in ("null", "repeat") if finished[name] and not any(e.ended for e in finished[name])
    ]
    ends = f"{flags['terminated']} episodes terminated, {flags['truncated']} truncated"
    if endless:
        return warned(
            "stop_flags",
            f"{ends}; the policy {' and '.join(endless)} was never ended in {max_steps} steps. In training "
            f"rollout.max_steps ends such episodes and they cost that many steps; a horizon of the task's "
            f"own would be terminated.",
        )
    return passed("stop_flags", ends)


def policies(lab: Lab, scores: Mapping[str, PolicyScore], bounds: tuple[float, float] | str) -> Check:
    """Doing it right must pay more than doing nothing or anything."""
    faults = lab.of("policies")
    if faults:
        return failed("policies", faults)
    null, random, oracle = (scores.get(name) for name in ("null", "random", "oracle"))
    high = math.inf if isinstance(bounds, str) else bounds[1]
    if null is not None and null.mean >= high - _ROUNDING:
        return failed(
            "policies",
            f"null: saying nothing has a mean return of {null.mean:g}, the most there is. "
            f"Reward what is said.",
        )
    if oracle is None:
        return passed(
            "policies", f"{_means(scores)}; no oracle: Env.oracle would show that tasks can be solved"
        )
    for rival in ("random", "null"):
        other = random if rival == "random" else null
        if other is not None and oracle.mean <= other.mean:
            return failed(
                "policies",
                f"the oracle's mean return {oracle.mean:g} is not above {rival}'s, {other.mean:g}. Either "
                f"the oracle does not solve the tasks, or the reward does not tell a solution from none.",
            )
    if isinstance(bounds, str):
        return passed("policies", f"{_means(scores)}; how good that is depends on reward_range")
    if oracle.minimum < high - _ROUNDING:
        cut = "" if oracle.ended == 1 else f" {1 - oracle.ended:.0%} of its episodes were cut at max_steps."
        return warned(
            "policies",
            f"the oracle's returns go from {oracle.minimum:g} to {oracle.maximum:g}, with a mean of "
            f"{oracle.mean:g}; the most there is is {high:g}. See which tasks it fails, or "
            f"narrow reward_range.{cut}",
        )
    return passed("policies", f"{_means(scores)}; the oracle always got the most there is")


def _means(scores: Mapping[str, PolicyScore]) -> str:
    return "mean return " + ", ".join(f"{name} {score.mean:g}" for name, score in scores.items())
