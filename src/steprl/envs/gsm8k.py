"""GSM8K: grade-school word problems with a calculator (Cobbe et al., arXiv:2110.14168).

The data is not part of the package: ``tasks`` reads the official file from a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from steprl.envs.tool_env import ToolEnv
from steprl.errors import TaskError
from steprl.tasks import load_jsonl
from steprl.tasks.answers import extract_gold, has_answer_line, numbers_equal
from steprl.tools.calculator import calculator
from steprl.types import Task

_WHERE = (
    "The official files are grade_school_math/data/train.jsonl and test.jsonl in the repository "
    "openai/grade-school-math on GitHub. Download one and name its path as the task source; "
    ".xz and .gz are read as they are."
)


class GSM8K(ToolEnv):
    """Solve with the calculator, then answer with a last line ``#### number``.

    Reward components: ``outcome`` 1.0 for the right number, ``format`` 1.0 when the answer has a line
    ``#### number``. Both count with weight 1 unless the run gives other weights.
    """

    tools = (calculator,)
    reward_range = (0.0, 2.0)
    system_prompt = (
        "Solve the math problem step by step. Use the calculator for every calculation, "
        "one expression per call. When you know the result, write the answer without a tool call. "
        "Its last line must be #### and the number alone, for example:\n#### 42"
    )

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

    def reward(self, task: Task, answer: str) -> dict[str, float]:
        """``outcome`` and ``format``, each 0.0 or 1.0."""
        return {
            "outcome": float(numbers_equal(answer, task.answer)),
            "format": float(has_answer_line(answer)),
        }


def _solved(row: Task, source: str) -> Task:
    """The row with the gold number as answer and the worked solution moved to ``data``."""
    try:
        gold = extract_gold(str(row.answer))
    except TaskError as error:
        raise TaskError(f"{source}: row '{row.id}' ({row.prompt[:60]!r}): {error}") from error
    return replace(row, answer=str(gold), data={**row.data, "solution": row.answer})
