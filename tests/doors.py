"""An environment that a policy of a few thousand parameters learns by imitation in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from steprl.envs import ToolEnv
from steprl.envs.policy import Move
from steprl.tools import tool
from steprl.types import Message, Task


class Opener:
    """Opens, then says what was behind the door; ``says`` something else instead, if it is given."""

    def __init__(self, says: str | None = None) -> None:
        self.says = says

    def act(self, messages: Sequence[Message]) -> Move:
        if messages[-1].role == "tool":
            return Move(text=self.says or messages[-1].content)
        return Move(calls=(("open", {}),))


class Sometimes(Opener):
    """Forgets what was behind the doors whose number ends in 0; opens those that end in 5 for ever."""

    def act(self, messages: Sequence[Message]) -> Move:
        if messages[0].content.endswith("5."):
            return Move(calls=(("open", {}),))
        move = super().act(messages)
        return Move(text="nothing") if move.text and messages[0].content.endswith("0.") else move


class Mute:
    """No policy: it has nothing to say."""

    def act(self, messages: Sequence[Message]) -> str:
        return "key"


class Doors(ToolEnv):
    """Behind every door is a key. ``locked`` doors cannot be opened."""

    def __init__(self, locked: bool = False) -> None:
        self.locked = locked

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        count = 0 if source == "none" else 30
        return [Task(id=f"door-{n}", prompt=f"Door {n}.", answer="key") for n in range(count)]

    @classmethod
    def oracle(cls, task: Task) -> Opener | None:
        return None if task.id in ("door-3", "door-4") else Opener()

    @tool
    def open(self) -> str:
        """Open the door."""
        return "nothing" if self.locked else "key"

    tools = (open,)

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == task.answer)


class Unknown(Doors):
    """Doors that nobody knows."""

    @classmethod
    def oracle(cls, task: Task) -> None:
        return None


opener = Opener()
