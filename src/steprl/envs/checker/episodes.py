"""Episodes of the check: played step by step, alone or several in turn, and kept whole to be compared."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import fsum

from steprl.envs.checker.lab import Broken, Instance, Lab
from steprl.envs.checker.players import Player
from steprl.types import Action, Message, Task, ToolSpec, Transition


@dataclass(slots=True, kw_only=True)
class Episode:
    """What happened so far. ``broken``: a call failed, and the episode ended there; ``hung``: it never came
    back."""

    task: Task
    seed: int
    opening: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    rounds: list[tuple[Action, Transition]] = field(default_factory=list)
    broken: bool = False
    hung: bool = False

    @property
    def actions(self) -> list[Action]:
        """What the agent did, in order."""
        return [action for action, _ in self.rounds]

    @property
    def ended(self) -> bool:
        """Whether the environment said that it is over."""
        return bool(self.rounds) and (self.rounds[-1][1].terminated or self.rounds[-1][1].truncated)

    @property
    def total(self) -> float:
        """The sum of all rewards, before weights."""
        return fsum(value for _, transition in self.rounds for value in transition.rewards.values())


Playing = Generator[None, None, Episode]
"""An episode being played: it pauses after ``reset`` and after every step, and returns the whole."""


def playing(lab: Lab, task: Task, seed: int, player: Player, max_steps: int, *, name: str) -> Playing:
    """Play an episode of at most ``max_steps`` with ``player``, called ``name`` where it fails itself."""
    episode = Episode(task=task, seed=seed)
    try:
        with Instance(lab, task.id) as instance:
            episode.opening = instance.reset(task, seed)
            episode.tools = instance.tools()
            messages = list(episode.opening)
            yield
            while not episode.ended and len(episode.rounds) < max_steps:
                action = lab.do(name, partial(player.act, messages, episode.tools), task.id)
                transition = instance.step(action)
                episode.rounds.append((action, transition))
                messages = _seen(messages, action, transition)
                yield
    except Broken as broken:
        episode.broken, episode.hung = True, broken.hung
    return episode


def play(lab: Lab, task: Task, seed: int, player: Player, max_steps: int, *, name: str) -> Episode:
    """A whole episode at once; see `playing`."""
    return in_turn(playing(lab, task, seed, player, max_steps, name=name))[0]


def in_turn(*episodes: Playing) -> list[Episode]:
    """Play several episodes, a step of each in turn, until all are over."""
    over: dict[int, Episode] = {}
    while len(over) < len(episodes):
        for index, episode in enumerate(episodes):
            if index in over:
                continue
            try:
                next(episode)
            except StopIteration as end:
                over[index] = end.value
    return [over[index] for index in range(len(episodes))]


def whole(episodes: Sequence[Episode]) -> list[Episode]:
    """Those that did not break."""
    return [episode for episode in episodes if not episode.broken]


def _seen(messages: list[Message], action: Action, transition: Transition) -> list[Message]:
    """What the agent reads next: all so far, unless the environment composes the observation itself."""
    return composed(transition) or [*messages, action.message(), *transition.feedback]


def composed(transition: Transition) -> list[Message]:
    """The messages of an observation that the environment made itself; none where a context rule does."""
    observation = transition.observation
    if observation is None:
        return []
    if observation.text is not None:
        return [Message(role="user", content=observation.text)]
    return list(observation.messages or ())
