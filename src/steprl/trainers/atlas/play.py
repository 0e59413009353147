"""Playing every episode of a small world: each choice, of the policy or of chance, is taken once each way.

A world is a plain function that plays one episode with a `Hand`. It is called again and again with other
choices prescribed, until all have been made, and what comes out are ordinary trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from steprl.types import EpisodeError, Sampling, Step, StopReason, Trajectory

Cell = tuple[str, str]
"""Where a token is sampled: what the policy sees of the episode, and the action so far."""

END = "."
_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token: one of the ``options`` of its cell."""

    step: int
    cell: Cell
    options: str
    option: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One way an episode can go.

    ``chance`` is the probability of what was not the policy's doing, given its task. ``states`` are all
    choices before each step, hidden ones included: where in the world it acts. ``worth`` is what would still
    come on average where a limit of the run cut it.
    """

    task: int
    chance: float
    tokens: tuple[Token, ...]
    steps: tuple[Step, ...]
    states: tuple[tuple[int, ...], ...]
    stop_reason: StopReason
    worth: float

    def trajectory(self, group_uid: str, uid: str) -> Trajectory:
        """The record of it."""
        error = None
        if self.stop_reason is StopReason.ERROR:
            error = EpisodeError(kind="lost", message="the environment broke")
        return Trajectory(
            uid=uid,
            group_uid=group_uid,
            task_id=str(self.task),
            task_hash=str(self.task),
            seed=0,
            steps=self.steps,
            stop_reason=self.stop_reason,
            error=error,
        )


class Hand:
    """What a world plays with. It takes the choices prescribed, and the first option of every other one."""

    def __init__(self, prescribed: Sequence[int] = ()) -> None:
        self._prescribed = prescribed
        self._choices: list[tuple[int, int]] = []
        self._tokens: list[Token] = []
        self._steps: list[dict[str, object]] = []
        self._states: list[tuple[int, ...]] = []
        self._newest: dict[str, int] = {}
        self._chance = 1.0
        self._stop = StopReason.TERMINATED
        self._worth = 0.0

    def act(
        self,
        context: str,
        options: str,
        *,
        most: int = 1,
        forced: Mapping[int, str] | None = None,
        kind: str = "act",
        agent: str = "policy",
        parent: int | None = None,
    ) -> str:
        """A step: the policy sees ``context`` and samples tokens, one of ``options`` each; returns them.

        An action ends after ``most`` sampled tokens, or with ``END`` where that is an option. ``forced`` are
        tokens that are put before the sampled token of that place and are not sampled; with ``most`` 0 they
        are all there is. ``parent`` is the step it continues, the agent's newest if left out.
        """
        forced = forced or {}
        self._states.append(tuple(choice for choice, _ in self._choices))
        text, sampled = "", []
        for place in range(most + 1):
            if place in forced:
                text += forced[place]
                sampled += [False] * len(forced[place])
            if place == most or text.endswith(END):
                break
            option = self._choose(len(options))
            token = Token(step=len(self._steps), cell=(context, text), options=options, option=option)
            self._tokens.append(token)
            text += options[option]
            sampled.append(True)
        before = self._newest.get(agent) if parent is None else parent
        self._newest[agent] = len(self._steps)
        self._steps.append(
            {
                "prompt_ids": np.array([ord(letter) for letter in f"{agent}:{context}"]),
                "action_ids": np.array([ord(letter) for letter in text]),
                "sampled_mask": np.array(sampled, dtype=bool),
                "logprobs": None,
                "policy_versions": np.zeros(len(text), dtype=int),
                "sampling": _SAMPLING,
                "kind": kind,
                "agent": agent,
                "parent": before,
                "reward": 0.0,
            }
        )
        return text

    def chance(self, *probabilities: float) -> int:
        """Something that is not the policy's doing: which of these happens, each with a chance above 0."""
        happened = self._choose(len(probabilities))
        self._chance *= probabilities[happened]
        return happened

    def reward(self, amount: float) -> None:
        """For the newest step."""
        self._steps[-1]["reward"] = amount

    def reach(self, state: str) -> None:
        """The state that the newest step reached: its anchor."""
        self._steps[-1]["anchor"] = state

    def stop(self, reason: StopReason, *, worth: float = 0.0) -> None:
        """The episode did not end by itself; ``worth`` is the mean of what would have come."""
        self._stop, self._worth = reason, worth

    def episode(self, task: int) -> Episode:
        """What was played."""
        return Episode(
            task=task,
            chance=self._chance,
            tokens=tuple(self._tokens),
            steps=tuple(Step(**made) for made in self._steps),  # type: ignore[arg-type]
            states=tuple(self._states),
            stop_reason=self._stop,
            worth=self._worth,
        )

    def others(self) -> Iterator[list[int]]:
        """Where else to go: each choice that was not prescribed, taken otherwise, those before it as here."""
        made = [choice for choice, _ in self._choices]
        for place in range(len(self._prescribed), len(made)):
            for choice in range(1, self._choices[place][1]):
                yield [*made[:place], choice]

    def _choose(self, width: int) -> int:
        place = len(self._choices)
        choice = self._prescribed[place] if place < len(self._prescribed) else 0
        self._choices.append((choice, width))
        return choice


@dataclass(frozen=True, slots=True)
class World:
    """A small task, how it is sampled, and what is known of it beforehand.

    Args:
        name: what it is called.
        about: what it has that others lack.
        play: one episode of one task.
        tasks: probability of each task; a group shares one.
        groups: groups of a batch.
        group_size: trajectories of a group.
        stale: the episodes are sampled by another policy than the one that learns.
        kept: probability that an episode is not lost, whatever happens in it.
        tokens: sampled tokens of every episode, where they are always as many.
        steps: the same for steps that have a sampled token.
        tokens_of_step: the same for the sampled tokens of a step.
        outcome: rewards are 0 or 1, one for an episode, and there is one task.
        markov: what a prompt shows is all that matters for what comes.
        lockstep: every episode passes the same anchors, each once.
        chained: the return along a chain is what an action can change, and each step has one successor.
        fair: whether an episode is lost does not depend on what happens in it.
    """

    name: str
    about: str
    play: Callable[[Hand, int], None] = field(repr=False)
    _: KW_ONLY
    tasks: tuple[float, ...] = (1.0,)
    groups: int = 1
    group_size: int = 3
    stale: bool = False
    kept: float = 1.0
    tokens: int | None = None
    steps: int | None = None
    tokens_of_step: int | None = None
    outcome: bool = False
    markov: bool = True
    lockstep: bool = False
    chained: bool = True
    fair: bool = True

    def episodes(self) -> tuple[Episode, ...]:
        """Every way an episode can go, by task."""
        found = []
        for task in range(len(self.tasks)):
            waiting: list[list[int]] = [[]]
            while waiting:
                hand = Hand(waiting.pop())
                self.play(hand, task)
                waiting.extend(hand.others())
                found.append(hand.episode(task))
        return tuple(found)
