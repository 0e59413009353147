import asyncio
import json
import os
from pathlib import Path

import pytest

from steprl.envs.gsm8k import GSM8K
from steprl.errors import ConfigError, TaskError
from steprl.renderers.hermes import HermesFormat
from steprl.tasks.answers import extract_gold, has_answer_line, numbers_equal
from steprl.tools.calculator import calculator
from steprl.types import Action, ToolCall

SHARED = Path(os.environ.get("STEPRL_SHARED", Path(__file__).parents[3] / "shared"))
ROW = {"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\n#### 4"}


def file_of(tmp_path, *rows):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_rows_become_tasks_with_the_number_as_answer(tmp_path):
    (task,) = GSM8K.tasks(file_of(tmp_path, ROW))
    assert (task.prompt, task.answer, task.data) == ("Two and two?", "4", {"solution": ROW["answer"]})


@pytest.mark.parametrize("source", ["", "absent/train.jsonl"])
def test_without_the_file_it_says_where_it_is(source):
    with pytest.raises(TaskError, match=r"grade_school_math/data/train.jsonl .*openai/grade-school-math"):
        GSM8K.tasks(source)


def test_a_row_without_gold_is_named(tmp_path):
    path = file_of(tmp_path, ROW, {"question": "Why?", "answer": "Because."})
    with pytest.raises(
        TaskError, match=r"train.jsonl: row '\w{16}' \('Why\?'\): .*must end with '#### number'"
    ):
        GSM8K.tasks(path)


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("2+2=4\n#### 4", {"outcome": 1.0, "format": 1.0}),
        ("It is 4.", {"outcome": 1.0, "format": 0.0}),
        ("#### 5", {"outcome": 0.0, "format": 1.0}),
        ("<think>\n#### 4\n</think>no idea", {"outcome": 0.0, "format": 0.0}),
    ],
)
def test_an_episode_with_the_calculator(tmp_path, text, rewards):
    async def episode():
        env = GSM8K()
        opening = await env.reset(GSM8K.tasks(file_of(tmp_path, ROW))[0], seed=0)
        call = ToolCall(name="calculator", arguments={"expression": "2+2"}, id="c")
        calculated = await env.step(Action(text="", token_ids=(1,), tool_calls=(call,)))
        return opening, calculated, await env.step(Action(text=text, token_ids=(1,)))

    opening, calculated, answered = asyncio.run(episode())
    assert [message.role for message in opening] == ["system", "user"]
    assert calculated.feedback[0].content == "4"
    assert answered.terminated and answered.rewards == rewards


def test_the_examples_show_what_the_calculator_and_the_checker_take(tmp_path):
    (task,) = GSM8K.tasks(file_of(tmp_path, ROW))
    opening = asyncio.run(GSM8K(examples=2).reset(task, seed=0))
    assert opening[0].role == "system" and opening[-1].content == "Two and two? Use the calculator."
    shown = opening[1:-1]
    assert sum(message.role == "user" for message in shown) == 2
    results = []
    for message, following in zip(shown, opening[2:], strict=True):
        calls = [parsed.call for parsed in HermesFormat().parse(message.content, "stop")]
        if calls:
            (call,) = calls
            assert (following.role, following.name) == ("tool", call.name)
            results.append(asyncio.run(calculator.run(call.arguments)))
            assert following.content == results[-1]
        elif message.role == "assistant":
            assert has_answer_line(message.content) and numbers_equal(message.content, results[-1])
    assert len(results) == 5


@pytest.mark.parametrize("examples", [-1, 3])
def test_more_examples_than_there_are_is_refused(examples):
    with pytest.raises(ConfigError, match=f"examples must be 0 to 2, got {examples}"):
        GSM8K(examples=examples)


@pytest.mark.skipif(not (SHARED / "data/gsm8k").is_dir(), reason="needs the GSM8K files (STEPRL_SHARED)")
@pytest.mark.parametrize(("name", "rows"), [("train", 7473), ("test_a", 660)])
def test_the_official_files(name, rows):
    tasks = GSM8K.tasks(str(SHARED / f"data/gsm8k/{name}.jsonl.xz"))
    assert len(tasks) == len({task.id for task in tasks}) == rows
    assert all(numbers_equal(task.data["solution"], task.answer) for task in tasks)
    assert all(extract_gold(task.data["solution"]).denominator == 1 for task in tasks)
