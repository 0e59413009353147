"""The ReAct baseline: an untrained model, the plain-text prompt, the same environment and reward as in
training. Here a script stands in for the model; the prompt that it is shown is the one a model would be."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from training import quiet, recipe_of

from steprl.envs.courier import Courier
from steprl.envs.gsm8k import GSM8K
from steprl.renderers import HermesFormat, ReactFormat
from steprl.trainers.api import Attempted, evaluate_attempts
from steprl.trainers.given import Given
from steprl.types import Task, ToolCall

ROW = {"question": "A pen costs 3 dollars. What do 4 pens cost?", "answer": "4*3=<<4*3=12>>12\n#### 12"}

REACT: dict[str, Any] = {
    "model": {"format": "react"},
    "rollout": {"max_steps": 9, "max_tokens": 400, "stop": ["Observation:"]},
    "evaluation": {"tasks": 5},
}


def baseline(recipe: Any, script: Any) -> Attempted:
    return evaluate_attempts(recipe, given=Given(script=script), display=quiet())


def act(name: str, **arguments: Any) -> str:
    return f"Thought: next.\nAction: {name}\nAction Input: {json.dumps(arguments)}"


def courier(prompt: str, turn: int) -> str:
    """Looks places up one after the other, as the observations say, adds up what they say, and answers."""
    question = prompt.rindex("The parcel starts at ")
    seen = re.findall(
        r"Observation: (?:fee (\d+)|no fee), (?:forwarded to (\w+)|delivered)", prompt[question:]
    )
    if not seen:
        return act("lookup", place=re.match(r"The parcel starts at (\w+)", prompt[question:])[1])  # type: ignore[index]
    if seen[-1][1]:
        return act("lookup", place=seen[-1][1])
    total = re.search(r"Observation: (\d+)", prompt[question:])
    if total is None:
        return act("calculator", expression=" + ".join(fee or "0" for fee, _ in seen))
    return f"Thought: I have it.\nThe total is {total[1]}."


def test_courier_is_solved_in_react_lines(tiny_policy: str, tmp_path: Path) -> None:
    table = {**REACT, "env": {"id": "courier", "eval": "eval"}}
    found = baseline(recipe_of(table, tiny_policy, tmp_path), courier)
    assert found.report["success"] == 1.0 and found.report["per_attempt"]["malformed_calls"] == 0
    steps = [t.steps for group in found.groups for t in group.trajectories]
    depths = [task.data["depth"] for task in Courier.tasks("eval")[:5]]
    assert [len(of_one) - 2 for of_one in steps] == depths
    assert isinstance(steps[0][0].calls[0], ToolCall) and steps[0][0].calls[0].name == "lookup"


def test_the_prompt_describes_the_tools_and_how_to_call_them(tiny_policy: str, tmp_path: Path) -> None:
    prompts: list[str] = []

    def look(prompt: str, turn: int) -> str:
        prompts.append(prompt)
        return "no idea"

    table = {**REACT, "env": {"id": "courier", "eval": "eval"}, "evaluation": {"tasks": 1}}
    assert baseline(recipe_of(table, tiny_policy, tmp_path), look).report["success"] == 0.0
    assert Courier.system_prompt in prompts[0]
    assert "- lookup(place: string): Fee at a place and where the parcel goes next." in prompts[0]
    assert "Thought: what you think\nAction: the tool's name\nAction Input: its arguments" in prompts[0]


def test_a_model_that_makes_its_observations_up_is_malformed_and_told(
    tiny_policy: str, tmp_path: Path
) -> None:
    dreamt = act("lookup", place="Oslo") + "\nObservation: fee 3, delivered\n3"
    table = {**REACT, "env": {"id": "courier", "eval": "eval"}, "evaluation": {"tasks": 1}}
    found = baseline(recipe_of(table, tiny_policy, tmp_path), [dreamt, "0"])
    assert found.report["per_attempt"]["malformed_calls"] == 1
    (step, _) = found.groups[0].trajectories[0].steps
    assert "Observation: is written by the environment, never by you" in step.feedback[-1].content


@pytest.mark.parametrize("examples", [0, 2])
def test_gsm8k_is_solved_in_react_lines_with_examples_and_without(
    tiny_policy: str, tmp_path: Path, examples: int
) -> None:
    prompts: list[str] = []

    def solve(prompt: str, turn: int) -> str:
        prompts.append(prompt)
        return act("calculator", expression="4 * 3") if turn == 0 else "Thought: That is it.\n#### 12"

    rows = tmp_path / "test.jsonl"
    rows.write_text(json.dumps(ROW))
    env = {"id": "gsm8k", "eval": str(rows), "args": {"examples": examples, "examples_in": "react"}}
    found = baseline(recipe_of({**REACT, "env": env}, tiny_policy, tmp_path), solve)
    assert found.report["success"] == 1.0
    assert {name: of["mean"] for name, of in found.report["means"].items()} == {
        "reward": 2.0, "outcome": 1.0, "format": 1.0
    }  # fmt: skip
    assert "Observation: 12" in prompts[1].rpartition("4 pens cost")[2]
    shown = 'Thought: I need 21 - 15.\nAction: calculator\nAction Input: {"expression": "21 - 15"}'
    assert (shown in prompts[0]) == (examples > 0) and "<tool_call>" not in prompts[0]
    if examples:
        assert "Observation: 6" in prompts[0] and "Thought: That is the answer.\n#### 42" in prompts[0]


def test_the_examples_call_as_the_format_reads_them() -> None:
    """What the examples show is parsed as the calls that they mean, in the format they are written in."""
    for name, written in (("hermes", HermesFormat()), ("react", ReactFormat())):
        env = GSM8K(examples=2, examples_in=name)
        opening = asyncio.run(env.reset(Task(id="a", prompt="What?", answer="1"), seed=0))
        said = [message.content for message in opening if message.role == "assistant"]
        calls = [[found.call.arguments for found in written.parse(text, "stop")] for text in said]  # type: ignore[union-attr]
        assert [len(of_one) for of_one in calls] == [1, 1, 0, 1, 1, 1, 0]
        assert calls[0] == [{"expression": "21 - 15"}]
