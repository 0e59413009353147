"""The worlds of the atlas, each for one thing that credit assignment can get wrong.

What stands in the constants below is known beforehand and is what `claims` argue from; tests play the worlds
to see that it is true.
"""

from __future__ import annotations

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


WORLDS: tuple[World, ...] = (
    World(
        name="bandit",
        about="one token",
        play=_bandit,
        tokens=1,
        steps=1,
        tokens_of_step=1,
        lockstep=True,
    ),
    World(
        name="coin",
        about="one token, success by luck",
        play=_coin,
        tokens=1,
        steps=1,
        tokens_of_step=1,
        outcome=True,
        lockstep=True,
    ),
    World(
        name="password",
        about="one step of one or two tokens",
        play=_password,
        steps=1,
        outcome=True,
        lockstep=True,
    ),
    World(
        name="corridor",
        about="three steps, each rewarded",
        play=_corridor,
        tokens=3,
        steps=3,
        tokens_of_step=1,
        lockstep=True,
    ),
    World(
        name="lock",
        about="three steps, rewarded at the end",
        play=_lock,
        tokens=3,
        steps=3,
        tokens_of_step=1,
        outcome=True,
    ),
    World(
        name="tool",
        about="an answer by chance between two steps",
        play=_tool,
        tokens=2,
        steps=2,
        tokens_of_step=1,
        outcome=True,
    ),
    World(name="detour", about="short and long episodes, in steps and tokens", play=_detour),
    World(name="cut", about="a limit of the run ends episodes", play=_cut),
    World(
        name="window",
        about="the prompt shows the last round only",
        play=_window,
        tokens=3,
        steps=3,
        tokens_of_step=1,
        outcome=True,
        markov=False,
    ),
    World(
        name="summary",
        about="the policy's summary replaces what it read",
        play=_summary,
        tokens=2,
        steps=2,
        tokens_of_step=1,
        outcome=True,
        markov=False,
        lockstep=True,
    ),
    World(name="loop", about="states visited again", play=_loop),
    World(
        name="fork",
        about="two steps continue one",
        play=_fork,
        tokens=3,
        steps=3,
        tokens_of_step=1,
        chained=False,
    ),
    World(
        name="team",
        about="two agents, one earns what the other prepared",
        play=_team,
        tokens=3,
        steps=3,
        tokens_of_step=1,
        chained=False,
    ),
    World(name="forced", about="tokens and a step that nobody sampled", play=_forced, tokens=3, steps=2),
    World(
        name="two tasks",
        about="an easy and a hard task in a batch",
        play=_two_tasks,
        tasks=(0.5, 0.5),
        groups=2,
        group_size=4,
        tokens=1,
        steps=1,
        tokens_of_step=1,
        lockstep=True,
    ),
    World(
        name="lost",
        about="episodes lost at random",
        play=_lost,
        kept=0.75,
        tokens=1,
        steps=1,
        tokens_of_step=1,
        lockstep=True,
    ),
    World(
        name="deadline",
        about="good episodes lost more often",
        play=_deadline,
        tokens=1,
        steps=1,
        tokens_of_step=1,
        lockstep=True,
        fair=False,
    ),
    World(
        name="stale token",
        about="sampled by an older policy: one token",
        play=_bandit,
        stale=True,
        tokens=1,
        steps=1,
        tokens_of_step=1,
        lockstep=True,
    ),
    World(
        name="stale step",
        about="sampled by an older policy: one step of one or two tokens",
        play=_words,
        stale=True,
        steps=1,
        lockstep=True,
    ),
    World(
        name="stale steps",
        about="sampled by an older policy: two steps",
        play=_two_steps,
        stale=True,
        tokens=2,
        steps=2,
        tokens_of_step=1,
    ),
)

BY_NAME = {world.name: world for world in WORLDS}
