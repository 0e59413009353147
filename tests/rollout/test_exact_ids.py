"""Whole episodes in ids that a tokenizer would not write: they are recorded, shown again and trained as they
were sampled, and steps are trained apart where template or rule rewrote what was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from playing import Recorder, call, only, play
from published import published_tokenizer, smollm2_folder
from tiny import CHATML, HEADERS, tiny_tokenizer

from steprl.batch import rows
from steprl.context import AppendOnly, ThinkStrip
from steprl.envs import Env, ToolEnv
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.tools import tool
from steprl.types import Action, ContextRule, Message, Role, Row, Task, Trajectory, Transition


@cache
def renderer(name: str) -> ChatRenderer:
    if name == "SmolLM2, its own tokenizer":
        return ChatRenderer(load_tokenizer(smollm2_folder()))
    if name in ("chatml", "headers"):
        return ChatRenderer(tiny_tokenizer({"chatml": CHATML, "headers": HEADERS}[name]))
    return ChatRenderer(published_tokenizer(name))


def sampled(shown: ChatRenderer, marked: str) -> tuple[int, ...]:
    """Ids of a text with words in two where it has a ``|``, none of them as the tokenizer would write it, and
    of the token that ends the turn."""
    pieces = marked.split("|")
    for left, right in zip(pieces, pieces[1:], strict=False):
        assert shown.encode(left) + shown.encode(right) != shown.encode(left + right), (left, right)
    return (*(i for piece in pieces for i in shown.encode(piece)), shown.stop_ids[-1])


def holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[at : at + len(part)]) == tuple(part) for at in range(len(ids) - len(part) + 1))


def check_rows(episode: Trajectory, made: Sequence[Row]) -> list[list[int]]:
    """Every sampled token is trained once, after what it was sampled after. Returns the steps of each row."""
    trained: Counter[tuple[int, int]] = Counter()
    for row in made:
        for place, key in enumerate(row.step_keys):
            step = episode.steps[key.step]
            whole = [*step.prompt_ids, *step.action_ids]
            assert row.ids[: len(whole)].tolist() == whole
            own = row.step_index == place
            positions, tokens = row.action_positions[own], row.token_index[own]
            assert positions.tolist() == (len(step.prompt_ids) + tokens).tolist()
            trained.update((key.step, int(j)) for j in tokens)
    assert trained == {
        (index, j): 1
        for index, step in enumerate(episode.steps)
        for j in np.flatnonzero(step.sampled_mask).tolist()
    }
    return [[key.step for key in row.step_keys] for row in made]


class Ask(ToolEnv):
    """A tool that keeps what it was asked, in an instance that the test makes itself."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @tool
    def look(self, word: str) -> str:
        """Look a word up."""
        self.heard.append(word)
        return f"{word}: {len(self.heard)}"

    tools = (look,)

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == task.answer)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("SmolLM2, its own tokenizer", "he|llo"),
        ("chatml", "inhabi|tants"),
        ("headers", "inhabi|tants"),
        ("qwen2.5", "inhabi|tants"),
        ("qwen3", "inhabi|tants"),
        ("llama3.1", "inhabi|tants"),
    ],
)
def test_split_words_stay_split_through_a_whole_tool_episode(name: str, word: str) -> None:
    shown, env, plain = renderer(name), Ask(), word.replace("|", "")
    marked = (
        f"I look {word} up.\n" + call("look", word=word),
        f"And more {word}.\n" + call("look", word=f"the {word}"),
        call("look", word=plain),  # the tokenizer's own way to write it
        f"The word is {word}",
    )
    texts = [text.replace("|", "") for text in marked]
    said = [sampled(shown, text) for text in marked]
    engine = Recorder(said)
    t = only(
        play(lambda: env, engine, [Task(id="t", prompt=f"Find {plain}.", answer=texts[-1])], renderer=shown)
    )

    assert env.heard == [plain, f"the {plain}", plain] and t.reward == 1.0
    assert engine.answered == said == [tuple(step.action_ids.tolist()) for step in t.steps]
    assert [prompt for _, prompt, _ in engine.asked] == [tuple(step.prompt_ids.tolist()) for step in t.steps]
    for step, ids, text in zip(t.steps, said, texts, strict=True):
        assert step.sampled_mask.all() and shown.decode(ids[:-1]) == text
        for made in step.calls:
            assert shown.decode(ids[slice(*made.span)]).strip() == text[text.index("<tool_call>") :]
    for index, later in enumerate(t.steps):
        for before, ids, text in zip(t.steps[:index], said, texts, strict=False):
            at = len(before.prompt_ids)
            assert later.prompt_ids[: at + len(ids)].tolist() == [*before.prompt_ids, *ids]
            if before is not t.steps[2]:
                assert not holds(later.prompt_ids.tolist(), shown.encode(text))
    made = rows([t])
    assert check_rows(t, made) == [[0, 1, 2, 3]]
    (row,) = made
    assert row.ids[row.action_positions].tolist() == [i for ids in said for i in ids]
    end = shown.decode(shown.stop_ids[-1:])
    assert shown.decode(row.ids[row.action_positions].tolist()) == "".join(f"{text}{end}" for text in texts)
    assert check_rows(t, rows([t], merge=False)) == [[0], [1], [2], [3]]


class Talk(Env):
    """Two messages of one role come back, then it is over."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._left = 2

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        return [Message(role="user", content=task.prompt)]

    async def step(self, action: Action) -> Transition:
        self._left -= 1
        if self._left < 0:
            return Transition(rewards={"outcome": 1.0}, terminated=True)
        return Transition(feedback=(Message(role=self._role, content="709000"),))


THOUGHT = "<think>\nI compare the inhabitants.\n</think>\n\nThe answer is Rome."


WHOLE, SPLIT = "inhabitants", "inhabi|tants"


@pytest.mark.parametrize(
    ("rule", "role", "word", "merged", "remembered"),
    [
        # Qwen3 shows thoughts after the last user message, and a tool's result is none
        (AppendOnly(), "tool", WHOLE, [[0, 1, 2]], [1, 2]),
        (AppendOnly(), "tool", SPLIT, [[0, 1, 2]], [1, 2]),
        (ThinkStrip(), "tool", WHOLE, [[0], [1, 2]], []),
        (ThinkStrip(), "tool", SPLIT, [[0], [1, 2]], []),
        (ThinkStrip(keep_last=1), "tool", WHOLE, [[0, 1], [2]], [1]),
        (ThinkStrip(keep_last=1), "tool", SPLIT, [[0, 1], [2]], [1]),
        # once a user speaks it strips them itself: that action is its text, those after it are as sampled
        (AppendOnly(), "user", WHOLE, [[0], [1, 2]], []),
        (AppendOnly(), "user", SPLIT, [[0], [1, 2]], []),
        # what the rule has stripped, the template need not
        (ThinkStrip(), "user", WHOLE, [[0], [1, 2]], []),
        (ThinkStrip(), "user", SPLIT, [[0], [1, 2]], []),
    ],
)
def test_steps_share_a_row_as_far_as_no_thought_was_taken_out_of_it(
    rule: ContextRule, role: Role, word: str, merged: list[list[int]], remembered: list[int]
) -> None:
    shown = renderer("qwen3")
    marked = (THOUGHT.replace("inhabitants", word), f"More {word} in Rome.", "Rome")
    said = [sampled(shown, text) for text in marked]
    t = only(play(lambda: Talk(role), Recorder(said), renderer=shown, context=rule))
    assert t.reward == 1.0 and [tuple(step.action_ids.tolist()) for step in t.steps] == said
    prompts = [shown.decode(step.prompt_ids.tolist()) for step in t.steps]
    assert [index for index, text in enumerate(prompts) if "I compare" in text] == remembered
    assert ["The answer is Rome." in text for text in prompts] == [False, True, True]
    assert check_rows(t, rows([t])) == merged
    assert check_rows(t, rows([t], merge=False)) == [[0], [1], [2]]
    for row in rows([t]):  # the thought itself is trained, where it was sampled and nowhere else
        text = shown.decode(row.ids[row.action_positions].tolist())
        assert ("I compare" in text) == (row.step_keys[0].step == 0)
