"""Cassettes: a call is made once, its answer is in the file at once, and whoever plays it calls nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl import Cassette, tool
from steprl.errors import ConfigError, EnvError, ToolError
from steprl.tools import Tool
from steprl.tools.cassette import canonical

CALLS: list[str] = []
"""What the tools below were really asked, in order."""


@pytest.fixture(autouse=True)
def nobody_has_called() -> None:
    CALLS.clear()


@tool
async def search(query: str, limit: int = 3) -> str:
    """Search."""
    CALLS.append(query)
    await asyncio.sleep(0.01)
    if query == "nothing":
        raise ToolError("no such page")
    if query == "broken":
        raise EnvError("the index is broken")
    return f"answer {len(CALLS)} to {query}"


@tool
def slow_search(query: str) -> str:
    """Search, in a thread."""
    CALLS.append(query)
    return f"answer {len(CALLS)}"


@tool
def anything(value: Any) -> str:
    """Take any JSON."""
    CALLS.append("anything")
    return "é\n\udc80 ok"


def ask(chosen: Tool = search, **arguments: Any) -> str:
    return asyncio.run(chosen.run(arguments))


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cassettes" / "search.jsonl"


def test_a_call_is_made_once_and_its_answer_is_in_the_file_at_once(file: Path) -> None:
    with Cassette(file) as cassette:
        assert ask(query="cats") == ask(query="cats") == "answer 1 to cats"
        assert lines(file) == [
            {"tool": "search", "arguments": {"query": "cats"}, "result": "answer 1 to cats"}
        ]
        assert ask(query="dogs") == "answer 2 to dogs"
        assert len(cassette) == 2
    assert CALLS == ["cats", "dogs"]
    assert ask(query="cats") == "answer 3 to cats"  # outside, nothing is recorded or played


@pytest.mark.parametrize("mode", ["auto", "replay"])
def test_what_is_recorded_is_played_without_a_call(file: Path, mode: Any) -> None:
    with Cassette(file):
        ask(query="cats")
    with Cassette(file, mode):
        assert ask(query="cats") == "answer 1 to cats"
    assert CALLS == ["cats"]


def test_auto_records_what_is_missing(file: Path) -> None:
    with Cassette(file):
        ask(query="cats")
    with Cassette(file):
        ask(query="dogs")
    assert [line["arguments"]["query"] for line in lines(file)] == ["cats", "dogs"]


def test_replay_never_calls_and_says_what_is_missing(file: Path) -> None:
    with Cassette(file):
        ask(query="cats")
    with Cassette(file, "replay"), pytest.raises(ConfigError) as caught:
        ask(query="birds")
    assert CALLS == ["cats"]
    assert str(caught.value) == (
        f"cassette '{file}' has no answer of tool 'search' to {{\"query\": \"birds\"}}, and mode 'replay' "
        f"never calls. Record it with mode 'auto', or look for what made the arguments differ."
    )


def test_record_forgets_the_file_with_its_first_answer_and_not_before(file: Path) -> None:
    with Cassette(file):
        ask(query="cats")
        ask(query="dogs")
    with Cassette(file, "record"):
        assert len(lines(file)) == 2
        assert ask(query="cats") == ask(query="cats") == "answer 3 to cats"
    assert [line["result"] for line in lines(file)] == ["answer 3 to cats"]


def test_an_error_that_the_agent_reads_is_an_answer(file: Path) -> None:
    for mode in ("auto", "replay"):
        with Cassette(file, mode), pytest.raises(ToolError, match="^no such page$"):  # type: ignore[arg-type]
            ask(query="nothing")
    assert CALLS == ["nothing"]
    assert lines(file)[0]["error"] == "no such page"


def test_wrong_arguments_and_broken_tools_are_no_answers(file: Path) -> None:
    with Cassette(file):
        with pytest.raises(ToolError, match="should be a valid string"):
            ask(query=7)
        for _ in range(2):
            with pytest.raises(EnvError, match="the index is broken"):
                ask(query="broken")
    assert CALLS == ["broken", "broken"] and not file.exists()


def test_a_call_that_was_given_up_is_made_again(file: Path) -> None:
    @tool(deadline=0.05)
    async def sleepy() -> str:
        """Sleep, at first."""
        CALLS.append("sleepy")
        await asyncio.sleep(5.0 if len(CALLS) == 1 else 0.0)
        return "awake"

    with Cassette(file):
        with pytest.raises(ToolError, match="no result within 0.05 seconds"):
            ask(sleepy)
        assert not file.exists()
        assert ask(sleepy) == "awake"


def test_only_the_named_tools_are_taken(file: Path) -> None:
    with Cassette(file, tools={"slow_search"}):
        ask(query="cats")
        ask(slow_search, query="cats")
    assert [line["tool"] for line in lines(file)] == ["slow_search"]


def test_the_innermost_cassette_that_takes_the_tool_answers(file: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner.jsonl"
    with Cassette(file), Cassette(inner, tools={"search"}):
        ask(query="cats")
        ask(slow_search, query="cats")
    assert [line["tool"] for line in lines(inner)] == ["search"]
    assert [line["tool"] for line in lines(file)] == ["slow_search"]


def test_methods_are_the_environment_and_are_not_recorded(file: Path) -> None:
    class Counter:
        count = 0

        @tool
        def more(self) -> int:
            """Count."""
            self.count += 1
            return self.count

    counter = Counter()
    with Cassette(file):
        assert [ask(counter.more), ask(counter.more)] == ["1", "2"]
    assert not file.exists()


# --- at the same time ---------------------------------------------------------------------------------


def test_of_equal_calls_at_the_same_time_one_is_made(file: Path) -> None:
    async def many() -> list[str]:
        return await asyncio.gather(*(search.run({"query": f"q{n % 3}"}) for n in range(30)))

    with Cassette(file):
        answers = asyncio.run(many())
    assert sorted(CALLS) == ["q0", "q1", "q2"]
    assert all(answers[n] == answers[n % 3] for n in range(30))
    assert len(lines(file)) == 3


def test_threads_with_event_loops_of_their_own_share_a_cassette(file: Path) -> None:
    async def in_threads() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(ask, search, query="cats") for _ in range(8)))

    with Cassette(file):
        assert set(asyncio.run(in_threads())) == {"answer 1 to cats"}
    assert CALLS == ["cats"]


def test_tasks_that_enter_the_same_cassette_do_not_disturb_each_other(file: Path) -> None:
    cassette = Cassette(file)

    async def episode(delay: float) -> str:
        with cassette:
            await asyncio.sleep(delay)
            return await search.run({"query": "cats"})

    async def outside(delay: float) -> str:
        await asyncio.sleep(delay)
        return await search.run({"query": "cats"})

    async def all_of_them() -> list[str]:
        return await asyncio.gather(episode(0.03), episode(0.01), outside(0.05), episode(0.02))

    first, second, apart, third = asyncio.run(all_of_them())
    assert first == second == third == "answer 1 to cats"
    assert apart == "answer 2 to cats"


def test_whoever_waits_makes_the_call_when_the_first_is_cancelled(file: Path) -> None:
    async def two() -> str:
        first = asyncio.create_task(search.run({"query": "cats"}))
        await asyncio.sleep(0.001)
        second = asyncio.create_task(search.run({"query": "cats"}))
        third = asyncio.create_task(search.run({"query": "cats"}))
        await asyncio.sleep(0.001)
        third.cancel()  # a waiter that goes away takes nobody with it
        first.cancel()
        return await second

    with Cassette(file):
        assert asyncio.run(two()) == "answer 2 to cats"
    assert len(lines(file)) == 1


# --- the file -----------------------------------------------------------------------------------------


def test_a_kill_loses_at_most_the_call_that_was_running(file: Path) -> None:
    script = (
        "import asyncio, os, signal, sys\n"
        "from steprl import Cassette, tool\n"
        "@tool\n"
        "def search(query: str) -> str:\n"
        "    'Search.'\n"
        "    if query == 'end': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return query\n"
        "with Cassette(sys.argv[1]):\n"
        "    for query in ('a', 'b', 'end'): asyncio.run(search.run({'query': query}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, os.fspath(file)])
    assert ended.returncode == -signal.SIGKILL
    assert [line["result"] for line in lines(file)] == ["a", "b"]


def test_a_last_line_that_was_cut_short_is_ignored_and_goes_with_the_next_answer(file: Path) -> None:
    with Cassette(file):
        ask(query="cats")
        ask(query="dogs")
    whole = file.read_bytes()
    for length in range(whole.index(b"\n") + 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with Cassette(file) as cassette:
            assert len(cassette) == 1
            assert file.read_bytes() == whole[:length]  # reading changes nothing
            CALLS[:] = ["cats"]
            ask(query="dogs")
        assert file.read_bytes() == whole


def test_a_last_line_that_only_lacks_its_end_is_an_answer(file: Path) -> None:
    with Cassette(file):
        ask(query="cats")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])  # as an editor may leave it
    CALLS.clear()
    with Cassette(file) as cassette:
        assert len(cassette) == 1
        ask(query="cats")
        ask(query="dogs")
    assert CALLS == ["dogs"]
    assert file.read_bytes().startswith(whole) and len(Cassette(file)) == 2


def test_a_file_that_has_to_be_cut_is_left_alone_when_another_has_written_to_it(file: Path) -> None:
    with Cassette(file):
        ask(query="cats")
    file.write_bytes(file.read_bytes() + b'{"tool": "sea')
    first, second = Cassette(file), Cassette(file)
    with first:
        ask(query="dogs")
    held = file.read_bytes()
    with second, pytest.raises(ConfigError, match="has been written by another since it was read"):
        ask(query="birds")
    assert file.read_bytes() == held


def test_equal_calls_of_a_tool_that_hangs_are_given_up_together(file: Path) -> None:
    @tool(deadline=0.3)
    async def hang(query: str) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return query

    async def several() -> list[object]:
        with Cassette(file):
            return list(
                await asyncio.gather(*(hang.run({"query": "a"}) for _ in range(5)), return_exceptions=True)
            )

    started = time.perf_counter()
    answers = asyncio.run(several())
    assert time.perf_counter() - started < 1.2, "one deadline, not five"
    assert [str(answer) for answer in answers] == ["no result within 0.3 seconds; the call was given up"] * 5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[]", 'expected {"tool": text, "arguments": object, "result" or "error": text}'),
        ('{"tool": "search", "arguments": {}}', "expected"),
        ('{"tool": "search", "arguments": {}, "result": 1}', "expected"),
        ('{"tool": "search", "arguments": [], "result": ""}', "expected"),
        ('{"tool": "search", "arguments": {}, "result": "", "error": ""}', "expected"),
    ],
)
def test_a_corrupt_line_is_an_error_with_its_number(file: Path, line: str, reason: str) -> None:
    good = '{"tool": "search", "arguments": {"query": "cats"}, "result": "purr"}'
    file.parent.mkdir()
    file.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(ConfigError) as caught:
        Cassette(file)
    assert str(caught.value).startswith(f"cassette '{file}', line 2 is not a recorded answer: ")
    assert reason in str(caught.value)


def test_of_two_lines_for_one_call_the_first_counts(file: Path) -> None:
    file.parent.mkdir()
    for answer in ("one", "two"):
        with file.open("a") as cassette:
            cassette.write(
                json.dumps({"tool": "search", "arguments": {"query": "cats"}, "result": answer}) + "\n"
            )
    with Cassette(file, "replay"):
        assert ask(query="cats") == "one"


def test_what_cannot_work_is_told_before_anything_runs(file: Path) -> None:
    with pytest.raises(ConfigError, match="unknown cassette mode 'replya'. Did you mean 'replay'?"):
        Cassette(file, "replya")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no cassette '.*search.jsonl' to replay. Record it first"):
        Cassette(file, "replay")
    with pytest.raises(ConfigError, match="Give a set of names: {'search'}"):
        Cassette(file, tools="search")
    file.mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read: .*directory"):
        Cassette(file)


def test_a_file_that_cannot_be_written_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Cassette(tmp_path / "file" / "search.jsonl"), pytest.raises(ConfigError, match="cannot be written"):
        ask(query="cats")


# --- the key ------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
def test_any_json_is_recorded_and_found_again(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    file.unlink(missing_ok=True)
    with Cassette(file):
        told = ask(anything, value=value)
    CALLS.clear()
    with Cassette(file, "replay"):
        assert ask(anything, value=_reversed(value)) == told == "é\n\udc80 ok"
    assert CALLS == []
    (line,) = file.read_bytes().splitlines()
    assert json.loads(line)["arguments"] == {"value": value}


def _reversed(value: Any) -> Any:
    """The same JSON with the keys of every object in the opposite order."""
    if isinstance(value, Mapping):
        return {key: _reversed(value[key]) for key in reversed(list(value))}
    return [_reversed(inner) for inner in value] if isinstance(value, list) else value


@given(one=JSON, other=JSON)
def test_different_arguments_have_different_keys(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (_typed(one) == _typed(other))


def _typed(value: Any) -> Any:
    """``value`` so that 1, 1.0, True and 0.0, -0.0 are told apart, as JSON tells them apart."""
    if isinstance(value, Mapping):
        return {key: _typed(inner) for key, inner in value.items()}
    return [_typed(inner) for inner in value] if isinstance(value, list) else (type(value), repr(value))


@dataclass
class Place:
    name: str
    tags: set[str]


def test_the_key_is_of_the_checked_arguments(file: Path) -> None:
    @tool
    def visit(places: list[Place], fee: float = 0.0) -> str:
        """Visit places."""
        CALLS.append("visit")
        return "visited"

    tags = [f"tag {n}" for n in range(20)]
    with Cassette(file):
        ask(visit, places=[{"name": "Oslo", "tags": tags}], fee=1)
        ask(visit, places=[{"tags": tags[::-1], "name": "Oslo"}], fee=1.0)  # a set, and a whole number
        ask(visit, places=[{"name": "Oslo", "tags": tags}])  # left out is not the same as the default
    assert CALLS == ["visit", "visit"]
    assert lines(file)[0]["arguments"] == {"fee": 1.0, "places": [{"name": "Oslo", "tags": sorted(tags)}]}
