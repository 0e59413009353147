"""The worlds of the atlas, each for one thing that credit assignment can get wrong.

What stands in the constants below is known beforehand and is what `claims` argue from; tests play the worlds
to see that it is true.
"""

from __future__ import annotations

from typing import Any

from steprl.trainers.atlas.play import END, Hand, World
from steprl.types import StopReason


def _bandit(hand: Hand, task: int) -> None:
    hand.reward({"a": 1.0, "b": 0.2, "c": 0.0}[hand.act("task", "abc")])


def _coin(hand: Hand, task: int) -> None:
    luck = {"a": 0.8, "b": 0.5, "c": 0.1}[hand.act("task", "abc")]
    hand.reward([1.0, 0.0][hand.chance(luck, 1 - luck)])


def _password(hand: Hand, task: int) -> None:
    hand.reward(float(hand.act("task", "ab" + END, most=2) in ("ab", "b.")))


def _words(hand: Hand, task: int) -> None:
    hand.reward({"ab": 1.0, "b.": 0.6, "ba": 0.3}.get(hand.act("task", "ab" + END, most=2), 0.0))


def _corridor(hand: Hand, task: int) -> None:
    for room, right in enumerate("aba"):
        hand.reward(0.5 * (hand.act(f"room {room}", "ab") == right))
        hand.reach(f"room {room + 1}")


def _lock(hand: Hand, task: int) -> None:
    entered = ""
    for _ in range(3):
        entered += hand.act(f"lock {entered}", "ab")
        hand.reach(entered)
    hand.reward(float(entered in ("aba", "bba", "bbb")))


def _tool(hand: Hand, task: int) -> None:
    """One of two questions is worth asking: its answer is the truth, that of the other a coin."""
    truth = hand.chance(0.6, 0.4)
    asked = hand.act("task", "ab")
    answer = truth if asked == "a" else hand.chance(0.5, 0.5)
    hand.reach(f"{asked}{answer}")
    hand.reward(float(hand.act(f"task {asked} {answer}", "01") == str(truth)))


def _detour(hand: Hand, task: int) -> None:
    """Giving up is quick and pays a little; going on takes more steps and more tokens."""
    for round_ in range(2):
        if hand.act(f"road {round_}", "g" + END, most=2) == END:
            hand.reward(0.4)
            return
        hand.reach(f"road {round_ + 1}")
    hand.reward([1.0, 0.0][hand.chance(0.6, 0.4)])


def _cut(hand: Hand, task: int) -> None:
    """Two steps, then a limit of the run; what would have come depends on the last action."""
    if hand.act("road 0", "gq") == "q":
        hand.reward(0.4)
        return
    hand.reward(0.1)
    hand.reach("road 1")
    last = hand.act("road 1", "ghq")
    if last == "q":
        hand.reward(0.5)
    else:
        hand.stop(StopReason.MAX_STEPS, worth={"g": 0.9, "h": 0.2}[last])


def _window(hand: Hand, task: int) -> None:
    """The prompt shows the last round only, and the reward asks for the first."""
    first = hand.act("begin", "ab")
    second = hand.act(f"last {first}", "ab")
    hand.reward(float(hand.act(f"last {second}", "ab") == first))


def _summary(hand: Hand, task: int) -> None:
    """A page is read, and only the policy's own note of it is there when the question comes."""
    fact = hand.chance(0.6, 0.4)
    note = hand.act(f"page {fact}", "xy", kind="summary")
    hand.reward(float(hand.act(f"note {note}", "01") == str(fact)))


def _loop(hand: Hand, task: int) -> None:
    """Waiting leads back to where one was."""
    for waited in range(3):
        if hand.act("hall" + " again" * waited, "dw") == "d":
            hand.reward([1.0, 0.0][hand.chance(0.5, 0.5)])
            return
        hand.reward(-0.1)
        hand.reach("hall")


def _fork(hand: Hand, task: int) -> None:
    """Two steps continue the first one."""
    first = hand.act("root", "ab")
    hand.reach(first)
    for _ in range(2):
        hand.reward(1.0 if hand.act(f"root {first}", "ab", parent=0) == first else 0.3)


def _team(hand: Hand, task: int) -> None:
    """What the worker earns depends on the planner's plan."""
    plan = hand.act("plan", "ab", agent="planner")
    work = hand.act(f"work {plan}", "ab", agent="worker")
    hand.reward({"aa": 1.0, "ab": 0.0, "ba": 0.2, "bb": 0.5}[plan + work])
    hand.reward(0.5 * (hand.act(f"review {plan}{work}", "ab", agent="planner") == work))


def _forced(hand: Hand, task: int) -> None:
    """Tokens that nobody sampled, within an action and as a whole step, which has a reward."""
    first = hand.act("task", "ab", most=2, forced={1: "#"})
    hand.act("look", "", most=0, forced={0: "!"})
    hand.reward({"a#a": 1.0, "a#b": 0.0, "b#a": 0.3, "b#b": 0.6}[first])
    hand.reward(0.5 * (hand.act(f"end {first}", "ab") == "b"))


def _two_tasks(hand: Hand, task: int) -> None:
    """Two answers of three are right, or one."""
    hand.reward(float(hand.act(f"task {task}", "abc") in ("ab", "a")[task]))


def _lost(hand: Hand, task: int) -> None:
    """An episode in four is lost, whatever the agent does."""
    hand.reward({"a": 1.0, "b": 0.3, "c": 0.0}[hand.act("task", "abc")])
    if hand.chance(0.75, 0.25):
        hand.stop(StopReason.ERROR)


def _deadline(hand: Hand, task: int) -> None:
    """The better way takes longer, and more of those episodes meet a deadline."""
    way = hand.act("task", "abc")
    hand.reward({"a": 1.0, "b": 0.6, "c": 0.0}[way])
    late = {"a": 0.5, "b": 0.2, "c": 0.1}[way]
    if hand.chance(1 - late, late):
        hand.stop(StopReason.DEADLINE)


def _two_steps(hand: Hand, task: int) -> None:
    first = hand.act("lock", "ab")
    hand.reach(first)
    both = first + hand.act(f"lock {first}", "ab")
    hand.reward({"aa": 0.1, "ab": 1.0, "ba": 0.4, "bb": 0.0}[both])


_ONE: Any = {"tokens": 1, "steps": 1, "tokens_of_step": 1}
_TWO: Any = {"tokens": 2, "steps": 2, "tokens_of_step": 1}
_THREE: Any = {"tokens": 3, "steps": 3, "tokens_of_step": 1}

WORLDS: tuple[World, ...] = (
    World("bandit", "one token", _bandit, **_ONE, lockstep=True),
    World("coin", "one token, success by luck", _coin, **_ONE, outcome=True, lockstep=True),
    World("password", "one step of one or two tokens", _password, steps=1, outcome=True, lockstep=True),
    World("corridor", "three steps, each rewarded", _corridor, **_THREE, lockstep=True),
    World("lock", "three steps, rewarded at the end", _lock, **_THREE, outcome=True),
    World("tool", "an answer by chance between two steps", _tool, **_TWO, outcome=True),
    World("detour", "short and long episodes, in steps and tokens", _detour),
    World("cut", "a limit of the run ends episodes", _cut),
    World("window", "the prompt shows the last round only", _window, **_THREE, outcome=True, markov=False),
    World(
        "summary",
        "the policy's summary replaces what it read",
        _summary,
        **_TWO,
        outcome=True,
        markov=False,
        lockstep=True,
    ),
    World("loop", "states visited again", _loop),
    World("fork", "two steps continue one", _fork, **_THREE, chained=False),
    World("team", "two agents, one earns what the other prepared", _team, **_THREE, chained=False),
    World("forced", "tokens and a step that nobody sampled", _forced, tokens=3, steps=2),
    World(
        "two tasks",
        "an easy and a hard task in a batch",
        _two_tasks,
        **_ONE,
        tasks=(0.5, 0.5),
        groups=2,
        group_size=4,
        lockstep=True,
    ),
    World("lost", "episodes lost at random", _lost, **_ONE, kept=0.75, lockstep=True),
    World("deadline", "good episodes lost more often", _deadline, **_ONE, lockstep=True, fair=False),
    World("stale token", "sampled by an older policy: one token", _bandit, **_ONE, stale=True, lockstep=True),
    World(
        "stale step",
        "sampled by an older policy: one step of one or two tokens",
        _words,
        steps=1,
        stale=True,
        lockstep=True,
    ),
    World("stale steps", "sampled by an older policy: two steps", _two_steps, **_TWO, stale=True),
)

BY_NAME = {world.name: world for world in WORLDS}
