"""`check_env`: every question that can be asked of an environment without a model, in one report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from steprl.envs.base import Env
from steprl.envs.checker.contract import call_order, close, closing, determinism
from steprl.envs.checker.lab import Broken, Instance, Lab
from steprl.envs.checker.leaks import anchor_leak, answer_leak
from steprl.envs.checker.players import action
from steprl.envs.checker.report import Check, CheckReport, failed, passed
from steprl.envs.checker.resources import FIFTHS, event_loop, resources
from steprl.envs.checker.scores import play_policies, policies, range_of, rewards, score, stop_flags
from steprl.errors import ConfigError, TaskError
from steprl.types import Task

_OPENINGS = 100
"""Tasks whose openings are searched for answers."""
_RESET_TASKS = 8
"""Tasks that the resets go through: few, so that what is cached by task is cached in the first fifth."""


def check_env(
    env: type[Env] | Callable[[], Env],
    tasks: Sequence[Task],
    *,
    resets: int = 500,
    episodes: int = 20,
    max_steps: int = 32,
    seed: int = 0,
    deadline: float = 30.0,
) -> CheckReport:
    """Play an environment with scripted policies and report what would go wrong in training.

    Nothing that the environment does is raised here: an exception or a call that never comes back is a failed
    check, and the others are made all the same. `docs/checking.md` has a section for each check.

    Args:
        env: the class, or a function that makes an instance.
        tasks: what to play; a sample is drawn from it.
        resets: short episodes played to see whether memory, threads, files and processes stay flat.
        episodes: episodes of each policy, and a quarter as many are played twice for determinism.
        max_steps: steps after which an episode is cut, as in training.
        seed: draws the sample and the random policy; the episodes get the seeds from it upwards.
        deadline: seconds that a single call may take.

    Raises:
        ConfigError: a number that is too small.
        TaskError: no tasks, or something else than tasks.
    """
    _refuse(resets=(resets, FIFTHS), episodes=(episodes, 1), max_steps=(max_steps, 1))
    if not deadline > 0:
        raise ConfigError(f"check_env: deadline must be above 0 seconds, got {deadline}")
    _check_tasks(tasks)
    with Lab(env, deadline) as lab:
        try:
            with Instance(lab) as instance:
                kind = type(instance.env)
        except Broken:
            maker = env.func if isinstance(env, partial) else env
            name = getattr(maker, "__name__", repr(maker))
            return CheckReport(
                env=name, checks=tuple(c for c in _ledger(lab) if c.status == "failed"), scores={}
            )
        return _checked(lab, kind, _Plan(tasks, resets, episodes, max_steps, seed))


class _Plan:
    """What is played: samples of the tasks, and the numbers that the user gave."""

    def __init__(self, tasks: Sequence[Task], resets: int, episodes: int, max_steps: int, seed: int) -> None:
        order = Random(seed).sample(range(len(tasks)), min(len(tasks), max(_OPENINGS, episodes)))
        sample = [tasks[index] for index in order]
        self.openings = sample[:_OPENINGS]
        self.episodes = [sample[index % len(sample)] for index in range(episodes)]
        self.resets = sample[:_RESET_TASKS]
        self.count = resets
        self.max_steps = max_steps
        self.seed = seed


def _checked(lab: Lab, kind: type[Env], plan: _Plan) -> CheckReport:
    played = play_policies(lab, kind, plan.episodes, max_steps=plan.max_steps, seed=plan.seed)
    scores = score(played)
    bounds = range_of(lab)
    everything = [episode for several in played.values() for episode in several]
    unaware = [episode for policy, several in played.items() if policy != "oracle" for episode in several]
    twice = max(1, len(plan.episodes) // 4)
    again = determinism(lab, [episode for several in played.values() for episode in several[:twice]])

    task = plan.episodes[0]
    firsts = [episode for policy in ("repeat", "null") for episode in played[policy][:1]]
    moves = [episode.actions[0] for episode in firsts if episode.actions] or [action("Hello?")]
    order = call_order(lab, task, plan.seed, moves[0], everything)
    close(lab, task, plan.seed, moves[0])
    given_away = answer_leak(lab, plan.openings, plan.seed)
    flat = resources(lab, plan.resets, moves, resets=plan.count, seed=plan.seed)
    sound = rewards(lab, played, bounds)
    worth = policies(lab, scores, bounds)
    return CheckReport(
        env=kind.__name__,
        checks=(
            *_ledger(lab),
            again,
            order,
            closing(lab),
            sound,
            stop_flags(played, plan.max_steps),
            worth,
            given_away,
            anchor_leak(unaware),
            event_loop(lab),
            *flat,
        ),
        scores=scores,
    )


def _ledger(lab: Lab) -> Iterable[Check]:
    """What raised and what hung, anywhere in the check: it comes last, and is told first."""
    broke = lab.of("errors")
    yield (
        failed("errors", f"{broke}. What the agent does wrong is feedback; only a broken environment raises.")
        if broke
        else passed("errors", "no call raised")
    )
    hung = lab.of("deadline")
    yield (
        failed("deadline", f"{hung}. A call that never ends holds up a whole batch: give it a time limit.")
        if hung
        else passed("deadline", "every call came back in time")
    )


def _refuse(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if value < least:
            raise ConfigError(f"check_env: {name} must be at least {least}, got {value}")


def _check_tasks(tasks: Sequence[Task]) -> None:
    if not len(tasks):
        raise TaskError("check_env: there are no tasks to play. Give at least one.")
    for index in range(len(tasks)):
        if not isinstance(tasks[index], Task):
            raise TaskError(f"check_env: task {index} is {tasks[index]!r:.80}, not a steprl.Task")
