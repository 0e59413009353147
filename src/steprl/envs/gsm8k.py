"""GSM8K: grade-school word problems with a calculator (Cobbe et al., arXiv:2110.14168).

The data is not part of the package: ``tasks`` reads the official file from a path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from steprl.envs.gsm8k_demos import WorkedSolution
from steprl.envs.tool_env import ToolEnv
from steprl.errors import ConfigError, TaskError, unknown
from steprl.tasks import load_jsonl
from steprl.tasks.answers import extract_gold, has_answer_line, numbers_equal
from steprl.tools.calculator import calculator
from steprl.types import Message, Task

_WHERE = (
    "The official files are grade_school_math/data/train.jsonl and test.jsonl in the repository "
    "openai/grade-school-math on GitHub. Download them and give their paths, to a recipe as "
    "env.train=PATH env.eval=PATH; .xz and .gz are read as they are."
)
_ASK = " Use the calculator."
"""Ends every question: a small model follows what stands right before its turn, little else."""
_WORKED = (
    (
        "Of 21 trees 15 are old. Each new tree costs 7 dollars. What did the new trees cost?",
        (("21 - 15", "6"), ("6 * 7", "42")),
        "42",
    ),
    (
        "A pen costs 3 dollars and a book 5. How much do 4 pens and 2 books cost?",
        (("4 * 3", "12"), ("2 * 5", "10"), ("12 + 10", "22")),
        "22",
    ),
)
"""Questions (not from GSM8K) with the calls that solve them and their results, and the answer."""


class GSM8K(ToolEnv):
    """Solve with the calculator, then answer with a last line ``#### number``.

    Reward components: ``outcome`` 1.0 for the right number, ``format`` 1.0 when the answer has a line
    ``#### number``. Both count with weight 1 unless the run gives other weights.

    Args:
        examples: worked conversations shown before the question, 0 to 2. For models that were not
            trained to call tools: these copy what they see, and follow no description.
        examples_in: the format that these are written in, "hermes" or "react"; set model.format to the same.

    Raises:
        ConfigError: there are not that many examples, or not in this format.
    """

    tools = (calculator,)
    reward_range = (0.0, 2.0)
    system_prompt = (
        "Solve math problems with the calculator, one call per message. End with a line #### number."
    )

    def __init__(self, *, examples: int = 0, examples_in: str = "hermes") -> None:
        if not 0 <= examples <= len(_WORKED):
            raise ConfigError(f"gsm8k: examples must be 0 to {len(_WORKED)}, got {examples}")
        if examples_in not in _WRITTEN:
            raise ConfigError(unknown("format of gsm8k's examples_in", examples_in, _WRITTEN))
        self._examples = examples
        self._written = _WRITTEN[examples_in]

    @classmethod
    def tasks(cls, source: str) -> Sequence[Task]:
        """The rows of an official file: the question as prompt, the number as answer, the rest as data.

        Raises:
            TaskError: there is no such file (says where it is found), or a row is not a GSM8K row.
        """
        if not source:
            raise TaskError(f"GSM8K needs the path of its task file. {_WHERE}")
        if not Path(source).is_file():
            raise TaskError(f"there is no GSM8K file {source}. {_WHERE}")
        return [_solved(row, source) for row in load_jsonl(source, prompt="question")]

    @classmethod
    def oracle(cls, task: Task) -> WorkedSolution | None:
        """The row's own calculations and answer; None for a task that was not read from an official file."""
        solution = task.data.get("solution")
        return None if solution is None else WorkedSolution(solution=str(solution))

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        """See ``Env.reset``: the system prompt, the examples, the question."""
        system, question = await super().reset(task, seed=seed)
        opening, (call, final) = [system], self._written
        for asked, calls, answer in _WORKED[: self._examples]:
            opening.append(Message(role="user", content=asked + _ASK))
            for expression, result in calls:
                opening.append(Message(role="assistant", content=call(expression)))
                opening.append(Message(role="tool", content=result, name=calculator.name))
            opening.append(Message(role="assistant", content=final(answer)))
        return [*opening, replace(question, content=question.content + _ASK)]

    def reward(self, task: Task, answer: str) -> dict[str, float]:
        """``outcome`` and ``format``, each 0.0 or 1.0."""
        return {
            "outcome": float(numbers_equal(answer, task.answer)),
            "format": float(has_answer_line(answer)),
        }


def _hermes_call(expression: str) -> str:
    """A call in the hermes format, which is also how a template writes one."""
    arguments = {"name": calculator.name, "arguments": {"expression": expression}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


def _react_call(expression: str) -> str:
    """A thought and a call in lines (ReAct, arXiv:2210.03629)."""
    arguments = json.dumps({"expression": expression})
    return f"Thought: I need {expression}.\nAction: {calculator.name}\nAction Input: {arguments}"


_WRITTEN: Mapping[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "hermes": (_hermes_call, "#### {}".format),
    "react": (_react_call, "Thought: That is the answer.\n#### {}".format),
}
"""How examples write a call and an answer, by format."""


def _solved(row: Task, source: str) -> Task:
    """The row with the gold number as answer and the worked solution moved to ``data``."""
    try:
        gold = extract_gold(str(row.answer))
    except TaskError as error:
        raise TaskError(f"{source}: row '{row.id}' ({row.prompt[:60]!r}): {error}") from error
    return replace(row, answer=str(gold), data={**row.data, "solution": row.answer})
