"""What holds for every tool-call format: nothing raises, spans are exact, thinking is never a call, what is
cut is told apart, what is written is read back; and one malformed call is seen wherever it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from formats import KNOWN, Known, executed, malformed
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import only
from rich.console import Console
from tiny import tiny_tokenizer

from steprl.context import AppendOnly
from steprl.engines.scripted import ScriptedEngine
from steprl.envs import ToolEnv
from steprl.errors import ConfigError
from steprl.registry import resolve
from steprl.renderers import ChatRenderer
from steprl.rewards import RewardComposer
from steprl.rollout import EnvWorkflow, Pool
from steprl.tools import tool
from steprl.trajectory import batch_statistics, show_episode
from steprl.types import MalformedCall, Sampling, Task, ToolCall, Trajectory, TrajectoryGroup

every_format = pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
FRAGMENTS = {
    known.name: (*known.fragments, "<think>", "</think>", "\n", "x", *known.broken) for known in KNOWN
}


@every_format
def test_it_is_where_a_recipe_names_it(known: Known) -> None:
    assert resolve("format", known.address) is known.make


@every_format
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_no_text_makes_it_raise_and_spans_are_exact(known: Known, data: st.DataObject) -> None:
    pieces = st.sampled_from((*FRAGMENTS[known.name], known.call(), known.call("a\n東😀")))
    text = data.draw(st.lists(st.text(max_size=5) | pieces, max_size=20).map("".join))
    finish: Any = data.draw(st.sampled_from(("stop", "length", "abort")))
    end = number = 0
    for parsed in known.format.parse(text, finish):
        assert end <= parsed.start < parsed.end <= len(text)
        end = parsed.end
        written = text[parsed.start : parsed.end]
        if isinstance(parsed.call, MalformedCall):
            assert parsed.call.raw == written and parsed.call.reason
        else:
            assert parsed.call.id == f"call_{number}"
            number += 1
            # what the span holds is this call, and needs nothing around it
            assert executed(known.format, written) == [(parsed.call.name, parsed.call.arguments)]


@every_format
@given(
    text=st.text(max_size=20),
    argument=st.text()
    | st.lists(st.sampled_from(('"', "\\", "<b>", "}", "é😀", "\n", "'", "a"))).map("".join),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_back_or_refused(
    known: Known, text: str, argument: str, data: st.DataObject
) -> None:
    inside = data.draw(st.sampled_from((*FRAGMENTS[known.name], "")))
    calls = [(known.tool, {known.argument: argument + inside})] * data.draw(st.integers(0, 2))
    try:
        written = known.format.write(text, calls)
    except ConfigError:
        return
    assert executed(known.format, written) == calls
    assert len(known.format.parse(written, "stop")) == len(calls)
    assert written.startswith(text)


@every_format
@pytest.mark.parametrize(
    "argument", ["who?", "größer 東京 😀", 'say "hi"', "it's {x}", "a\\b", "two\nlines", "{}]"]
)
def test_ordinary_arguments_can_be_written(known: Known, argument: str) -> None:
    written = known.format.write("", [(known.tool, {known.argument: argument})])
    assert executed(known.format, written) == [(known.tool, {known.argument: argument})]


@every_format
def test_thinking_is_neither_run_nor_reported(known: Known) -> None:
    call, broken = known.call(), known.broken[0]
    for inside in (call, broken, f"{call}\n{broken}"):
        assert known.format.parse(f"<think>\n{inside}\n</think>", "stop") == ()
        assert known.format.parse(f"<think>\n{inside}", "length") == ()
        assert known.format.parse(f"{inside}\n</think>", "stop") == ()


@every_format
def test_a_call_behind_a_thought_is_run_and_numbered_from_there(known: Known) -> None:
    call = known.call()
    for thought in (f"<think>\n{call}\n</think>\n", f"{call}\n</think>\n", f"{known.broken[0]}\n</think>"):
        (parsed,) = known.format.parse(thought + call, "stop")
        assert isinstance(parsed.call, ToolCall) and parsed.call.id == "call_0"
        assert (thought + call)[parsed.start : parsed.end] == call


@every_format
def test_what_is_cut_is_told_apart_from_what_is_wrong(known: Known) -> None:
    call = known.call("some words here")
    cut = call[: call.index("words") + 3]
    assert malformed(known.format, cut, "length").reason.startswith("cut at max tokens")
    assert malformed(known.format, cut, "abort").reason.startswith("cut by an abort")
    assert malformed(known.format, known.broken[0] + "\n", "stop").reason[:3] != "cut"


@every_format
def test_no_cut_of_a_call_is_run_as_another(known: Known) -> None:
    call = known.call("some words here")
    for end in range(len(call)):
        for parsed in known.format.parse(call[:end], "length"):
            assert isinstance(parsed.call, MalformedCall)


@every_format
def test_two_calls_in_one_turn_have_their_own_ids(known: Known) -> None:
    calls = [(known.tool, {known.argument: text}) for text in ("a", "b")]
    found = known.format.parse(known.format.write("", calls), "stop")
    assert [(p.call.name, p.call.arguments, p.call.id) for p in found if isinstance(p.call, ToolCall)] == [
        (known.tool, {known.argument: "a"}, "call_0"),
        (known.tool, {known.argument: "b"}, "call_1"),
    ]


@every_format
def test_line_breaks_of_windows_are_line_breaks(known: Known) -> None:
    assert executed(known.format, known.call().replace("\n", "\r\n")) == [(known.tool, {known.argument: "x"})]


@every_format
def test_many_calls_are_read_in_a_moment(known: Known) -> None:
    units = (known.call() + "\n", known.broken[0] + "\n", "</think>" + known.call(), *FRAGMENTS[known.name])
    started = time.process_time()
    for unit in units:
        known.format.parse(unit * 2_000, "stop")
    assert time.process_time() - started < 10


@every_format
def test_a_tag_stands_in_every_call(known: Known) -> None:
    assert all(tag in known.call() for tag in known.format.tags)


@every_format
@pytest.mark.parametrize("arguments", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}])
def test_what_json_does_not_allow_is_refused(known: Known, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        known.format.write("", [(known.tool, arguments)])


# --- an episode -----------------------------------------------------------------------------------------


class Search(ToolEnv):
    """One tool with one argument, whatever the format calls it."""

    @tool
    def search(self, query: str) -> str:
        """Search the web."""
        return f"found {query}"

    tools = (search,)

    def reward(self, task: Task, answer: str) -> float:
        return float(str(task.answer) in answer)


class Code(ToolEnv):
    """The same for code."""

    @tool
    def python(self, code: str) -> str:
        """Run Python."""
        return f"found {code}"

    tools = (python,)

    def reward(self, task: Task, answer: str) -> float:
        return float(str(task.answer) in answer)


def played(known: Known, *replies: str) -> tuple[Trajectory, TrajectoryGroup, Callable[[Any], str]]:
    """One episode in which the scripted engine gives these replies; its group; and how to read its tokens."""
    renderer = ChatRenderer(tiny_tokenizer(), known.format)
    pool = Pool(
        workflow=EnvWorkflow(Code if known.tool == "python" else Search, AppendOnly()),
        engine=ScriptedEngine(replies, encode=renderer.encode, decode=renderer.decode),
        renderer=renderer,
        rewards=RewardComposer({"malformed_calls": -0.25}),
        concurrency=1,
    )
    sampling = Sampling(max_tokens=300, stop_ids=renderer.stop_ids)
    task = Task(id="task", prompt="Who?", answer="Ada")
    groups = asyncio.run(
        pool.collect([task], label="batch", seed=0, group_size=1, sampling=sampling, max_steps=8)
    )
    return only(groups), groups[0], renderer.decode


@every_format
def test_a_malformed_call_is_told_counted_charged_and_shown(known: Known) -> None:
    trajectory, group, decode = played(known, known.broken[0], known.call("who"), "It is Ada.")
    assert [len(step.calls) for step in trajectory.steps] == [1, 1, 0]
    (broken,), (called,) = trajectory.steps[0].calls, trajectory.steps[1].calls
    assert isinstance(broken, MalformedCall) and broken.raw == known.broken[0]
    assert isinstance(called, ToolCall) and called.arguments == {known.argument: "who"}
    start, end = broken.span
    assert decode(trajectory.steps[0].action_ids[start:end].tolist()) == broken.raw
    # the agent is told the reason, and the result of the call that it then makes
    asked = [decode(step.prompt_ids.tolist()) for step in trajectory.steps]
    assert f"Error: malformed tool call: {broken.reason}" in asked[1]
    assert "found who" in asked[2] and asked[2].startswith(asked[1])
    # rewards
    assert trajectory.steps[0].rewards["malformed_calls"] == 1.0
    assert trajectory.reward == 1.0 - 0.25
    # metrics
    figures = batch_statistics([group])
    assert figures["calls/malformed_share"] == 0.5 and figures["calls/per_episode"] == 2.0
    # what a person sees
    out = StringIO()
    show_episode(trajectory, decode, Console(file=out, width=10_000, _environ={}))
    assert f"malformed {broken.reason}" in out.getvalue()
    assert f"call      {known.tool}(" in out.getvalue()


@every_format
def test_prompts_of_an_episode_extend_each_other_token_for_token(known: Known) -> None:
    trajectory, _, _ = played(known, known.call("a"), known.call("b"), "It is Ada.")
    for step, following in zip(trajectory.steps, trajectory.steps[1:], strict=False):
        ids = [*step.prompt_ids.tolist(), *step.action_ids.tolist()]
        assert following.prompt_ids[: len(ids)].tolist() == ids
