"""What ToolEnv promises: the specification of the room, in order of an episode."""

import asyncio
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.envs import Env, ToolEnv
from steprl.errors import ConfigError, EnvError, TaskError
from steprl.tools import tool
from steprl.types import Action, MalformedCall, Message, Task, ToolCall, Transition

TASK = Task(id="t", prompt="How many?", answer="2")


@tool
def population(city: str) -> int:
    """Number of inhabitants of a city."""
    return {"Oslo": 709_000, "Rome": 2_749_000}[city]


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


class Compare(ToolEnv):
    tools = [population, wait]

    def reward(self, task, answer):
        return float(answer == task.answer)


def says(text: str = "", *calls: ToolCall | MalformedCall, finish: str = "stop") -> Action:
    return Action(text=text, token_ids=(1, 2), tool_calls=calls, finish=finish)


def call(name: str, id: str = "c", **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id=id)


def episode(env: ToolEnv, *actions: Action, task: Task = TASK) -> list[Transition]:
    async def play():
        await env.reset(task, seed=0)
        return [await env.step(action) for action in actions]

    return asyncio.run(play())


def contents(transition: Transition) -> list[str]:
    return [message.content for message in transition.feedback]


def test_the_prompt_is_the_task_and_the_system_prompt_comes_first():
    class Strict(Compare):
        system_prompt = "Be brief."

    user = Message(role="user", content="How many?")
    assert asyncio.run(Compare().reset(TASK, seed=0)) == [user]
    assert asyncio.run(Strict().reset(TASK, seed=0)) == [Message(role="system", content="Be brief."), user]


def test_calls_are_answered_in_their_order_and_paired_by_id():
    (transition,) = episode(
        Compare(), says("Let me see", call("wait", "a", seconds=0.05), call("population", "b", city="Oslo"))
    )
    assert transition.feedback == (
        Message(role="tool", content="waited 0.05", name="wait", tool_call_id="a"),
        Message(role="tool", content="709000", name="population", tool_call_id="b"),
    )
    assert not transition.terminated and not transition.rewards and transition.anchor is None


def test_calls_of_one_action_run_at_the_same_time():
    arrived = []

    class Meeting(Compare):
        @property
        def tools(self):
            return [meet]

    @tool
    async def meet(n: int) -> int:
        """Return when both are here."""
        arrived.append(n)
        while len(arrived) < 2:
            await asyncio.sleep(0)
        return n

    async def play():
        env = Meeting()
        await env.reset(TASK, seed=0)
        return await asyncio.wait_for(env.step(says("", call("meet", n=1), call("meet", n=2))), timeout=5)

    assert contents(asyncio.run(play())) == ["1", "2"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            call("populaton", city="Oslo"),
            "Error: unknown tool 'populaton'. Did you mean 'population'? Known: ",
        ),
        (call("population"), "Error: population: argument 'city' is missing. Arguments: city (string)."),
        (call("population", city="Paris"), "Error: KeyError: 'Paris'"),
        (call("\ud800"), "Error: unknown tool '\\ud800'. Known: population, wait."),
        (
            MalformedCall(raw="{", reason="the JSON ends early"),
            "Error: malformed tool call: the JSON ends early",
        ),
    ],
)
def test_mistakes_come_back_as_text_and_the_episode_goes_on(wrong, text):
    first, second = episode(Compare(), says("", wrong), says("2"))
    (message,) = first.feedback
    assert message.role == "tool" and message.content.startswith(text) and not first.terminated
    message.content.encode("utf-8")
    assert second.rewards == {"outcome": 1.0}


def test_one_mistake_does_not_stop_the_other_calls():
    (transition,) = episode(
        Compare(), says("", call("population", city="X"), call("population", city="Rome"))
    )
    assert contents(transition) == ["Error: KeyError: 'X'", "2749000"]


@pytest.mark.parametrize("evidence", [False, True])
def test_results_of_an_evidence_tool_are_marked_and_its_errors_are_not(evidence):
    @tool(evidence=evidence)
    def look(page: str) -> str:
        """Look at a page."""
        return {"a": "Ada is out."}[page]

    class Library(Compare):
        tools = [look, population]

        @tool(evidence=evidence)
        def note(self) -> str:
            """Read the note."""
            return "Ben is in."

        tools += [note]

    asked = (
        call("look", page="a"),
        call("look", page="b"),
        call("look"),
        call("note"),
        call("population", city="Oslo"),
        call("lok", page="a"),
        MalformedCall(raw="{", reason="the JSON ends early"),
    )
    (transition,) = episode(Library(), says("", *asked))
    mark = "evidence" if evidence else None
    assert [message.mark for message in transition.feedback] == [mark, None, None, mark, None, None, None]
    assert [contents(transition)[place] for place in (0, 1, 3)] == [
        "Ada is out.",
        "Error: KeyError: 'b'",
        "Ben is in.",
    ]


def test_an_action_without_calls_is_the_answer():
    right, wrong = (episode(Compare(), says(text))[0] for text in ("2", "3"))
    assert right == Transition(rewards={"outcome": 1.0}, terminated=True)
    assert wrong == Transition(rewards={"outcome": 0.0}, terminated=True)


@pytest.mark.parametrize(
    "text",
    ["<think>3</think> 2 ", "3?</think>\n2", "2<think>or 3", "<think>a</think>2<think>b</think>",
     "<think>a</think>b</think>2"],
)  # fmt: skip
def test_thinking_is_not_part_of_the_answer(text):
    assert episode(Compare(), says(text))[0].rewards == {"outcome": 1.0}


@given(st.text())
def test_any_text_has_an_answer(text):
    assert "think>" in text or Compare().answer(text) == text.strip()


def test_an_action_that_was_cut_is_not_an_answer():
    cut, answered = episode(Compare(), says("2", finish="length"), says("2"))
    assert not cut.terminated and not cut.rewards
    (message,) = cut.feedback
    assert message.role == "user" and "cut at the length limit" in message.content
    assert answered.terminated


def test_calls_of_an_action_that_was_cut_still_run():
    (transition,) = episode(Compare(), says("", call("population", city="Oslo"), finish="length"))
    assert contents(transition) == ["709000"]


def test_setup_and_reward_may_be_async_and_reward_may_have_components():
    class Slow(ToolEnv):
        reward_range = (0.0, 1.5)

        async def setup(self, task, seed):
            await asyncio.sleep(0)
            self.gold = task.answer * seed

        async def reward(self, task, answer):
            return {"outcome": float(answer == self.gold), "style": 0.5}

    async def play():
        env = Slow()
        await env.reset(TASK, seed=3)
        return await env.step(says("222"))

    assert asyncio.run(play()).rewards == {"outcome": 1.0, "style": 0.5}


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (None, "component 'outcome' must be a finite number, got None"),
        (True, "must be a finite number, got True"),
        (float("nan"), "must be a finite number, got nan"),
        ({"style": "good"}, "component 'style' must be a finite number, got 'good'"),
        (-1.0, r"the total -1.0 lies outside reward_range \(0.0, 1.0\)"),
        ({"outcome": 1.0, "style": 0.5}, "the total 1.5 lies outside"),
    ],
)
def test_a_reward_that_breaks_the_contract_is_an_error_not_a_zero(reward, reason):
    class Broken(ToolEnv):
        def reward(self, task, answer):
            return reward

    with pytest.raises((EnvError, ConfigError), match=f"Broken.reward: .*{reason}"):
        episode(Broken(), says("2"))


def test_methods_share_the_episode_and_run_in_the_order_of_the_calls():
    class Ledger(ToolEnv):
        def setup(self, task, seed):
            self.entries = []

        @tool
        async def note(self, n: int, pause: float) -> list[int]:
            """Write n down."""
            await asyncio.sleep(pause)
            self.entries.append(n)
            return self.entries

        @tool
        def total(self) -> int:
            """Sum of what was written down."""
            return sum(self.entries)

        tools = [note, total]

        def reward(self, task, answer):
            return 0.0

        def anchor(self, feedback):
            return f"{self.entries} {feedback[-1].content}" if feedback else str(self.entries)

    first, second = Ledger(), Ledger()
    calls = [call("note", n=1, pause=0.03), call("note", n=2, pause=0), call("total")]
    (transition,) = episode(first, says("", *calls))
    assert contents(transition) == ["[1]", "[1,2]", "3"]
    assert transition.anchor == "[1, 2] 3"
    assert episode(second, says("", call("total")))[0].anchor == "[] 0"


def test_an_instance_serves_one_episode():
    async def play(*steps):
        env = Compare()
        for take in steps:
            await take(env)

    def reset(env):
        return env.reset(TASK, seed=0)

    def answer(env):
        return env.step(says("2"))

    def close(env):
        return env.close()

    asyncio.run(play(reset, answer, close, close))
    for steps, reason in [
        ((answer,), "call reset first"),
        ((reset, reset), "serves one episode"),
        ((reset, answer, answer), "the episode is over"),
        ((reset, close, answer), "the environment is closed"),
        ((close, reset), "serves one episode"),
        ((reset, lambda env: env.step(says("2", finish="abort"))), "was aborted"),
    ]:
        with pytest.raises(EnvError, match=reason):
            asyncio.run(play(*steps))


def test_a_failure_of_the_environment_is_raised():
    @tool
    def broken() -> None:
        """Ask the server."""
        raise EnvError("server gone")

    class Served(Compare):
        tools = [broken]

    with pytest.raises(EnvError, match="server gone"):
        episode(Served(), says("", call("broken")))


def test_wrong_tool_lists_are_refused_when_the_class_is_made():
    with pytest.raises(ConfigError, match="Plain.tools holds <function .*Decorate it with @tool"):
        type("Plain", (Compare,), {"tools": [population.call]})
    with pytest.raises(ConfigError, match="Twice.tools holds two tools called 'population'"):
        type("Twice", (Compare,), {"tools": [population, population]})
    with pytest.raises(ConfigError, match="Silent.hidden is a tool that the agent is not told about"):

        class Silent(Compare):
            @tool
            def hidden(self) -> str:
                """Hide."""
                return ""


def test_tools_may_be_chosen_per_instance():
    class Chosen(Compare):
        def setup(self, task, seed):
            self.tools = []

    (transition,) = episode(Chosen(), says("", call("population", city="Oslo")))
    assert "There are no tools: answer in plain text." in contents(transition)[0]


def test_tasks_come_from_a_file_unless_overridden(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"id": "1", "prompt": "p", "answer": "a"}))
    assert Compare.tasks(str(path)) == [Task(id="1", prompt="p", answer="a")]
    with pytest.raises(TaskError, match="has no task set.*absent.jsonl.*env.train=PATH"):
        Env.tasks(str(tmp_path / "absent.jsonl"))


def test_writing_an_environment_imports_no_torch():
    code = (
        "import sys, steprl.envs.courier_demos, steprl.envs.gsm8k, steprl.rewards, steprl.context;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_no_call_outlives_a_step_that_broke():
    log = []

    @tool
    def breaks() -> str:
        """Break."""
        raise EnvError("gone")

    @tool
    async def slow() -> str:
        """Take a while."""
        await asyncio.sleep(0.01)
        log.append("done")
        return "done"

    class Breaks(Compare):
        tools = [breaks, slow]

    async def play():
        env = Breaks()
        await env.reset(TASK, seed=0)
        with pytest.raises(EnvError, match="gone"):
            await env.step(says("", call("breaks"), call("slow", id="d")))
        log.append("closed")
        await asyncio.sleep(0.03)

    asyncio.run(play())
    assert log == ["done", "closed"]
