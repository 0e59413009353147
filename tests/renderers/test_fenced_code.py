"""Which fenced blocks are code to run, which are text, and which are malformed."""

from __future__ import annotations

from typing import Any

import pytest
from formats import executed, malformed, reasons
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError
from steprl.renderers import FencedCodeFormat

F = FencedCodeFormat()
GOOD = "```python\nprint(1)\n```"
CALLED = ("python", {"code": "print(1)"})


def test_reads_a_block_and_where_it_stands() -> None:
    (parsed,) = F.parse(f"I compute:\n{GOOD}\nand wait", "stop")
    assert (parsed.start, parsed.end) == (11, 11 + len(GOOD))
    assert executed(F, f"I compute:\n{GOOD}\nand wait") == [CALLED]


def test_language_tool_and_argument_are_options() -> None:
    shell = FencedCodeFormat(language="bash", tool="run", argument="command")
    assert executed(shell, f"{GOOD}\n```bash\nls\n```") == [("run", {"command": "ls"})]
    assert shell.write("", [("run", {"command": "ls"})]) == "```bash\nls\n```"


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ("```python\n```", ""),
        ("```python\n\n```", ""),
        ("```python\n\n\n```", "\n"),
        ("```python\na\n  ```", "a"),
        ("```python\na\n`````", "a"),
        ("```python \na\n``` ", "a"),
        ("````python\n```\nb\n```\n````", "```\nb\n```"),
        ("```python\nx = '```'\n```", "x = '```'"),
        ("```python\ns = '<think>'\n```", "s = '<think>'"),
        ("```python\nf'''\n```js\n'''\n```", "f'''\n```js\n'''"),
    ],
)
def test_a_block_ends_where_commonmark_ends_it(block: str, code: str) -> None:
    assert executed(F, block) == [("python", {"code": code})]
    assert executed(F, f"{block}\n{GOOD}") == [("python", {"code": code}), CALLED]


@pytest.mark.parametrize(
    "text",
    [
        "```\nprint(1)\n```",
        "```js\n1\n```",
        "inline ```python code",
        "``python\n1\n``",
        "````markdown\n```python\n1\n```\n````",
        "```js\n```python\n1\n",
        "```pythonic\n1\n```",
    ],
)
def test_other_blocks_and_inline_code_are_text(text: str) -> None:
    assert F.parse(text, "stop") == ()
    assert executed(F, f"{GOOD}\n{text}") == [CALLED]


@pytest.mark.parametrize("end", ["\n```output", "\n```output\n", "\n\n```output \n"])
def test_a_turn_may_end_where_the_environment_writes_on(end: str) -> None:
    assert reasons(F, GOOD + end) == ["python"]


def test_who_writes_the_output_is_stopped_there() -> None:
    made_up = f"```output\n1\n```\nSo:\n{GOOD}"
    first, second = F.parse(f"{GOOD}\n{made_up}", "stop")
    assert (second.start, second.end) == (first.end + 1, first.end + 1 + len(made_up))
    assert reasons(F, made_up) == [
        "```output is written by the environment, never by you: stop after your code"
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```python\nprint(1)", "the block is not closed by a line ```"),
        ("```python\nprint(1)\n``", "the block is not closed by a line ```"),
        ("```python\nprint(1)```", "the block is not closed by a line ```"),
        ("````python\nprint(1)\n```", "the block is not closed by a line ````"),
        ("```python", "the block is not closed by a line ```"),
        ("```Python\n1\n```", "the opening line must be ```python and nothing else"),
        ("```python title=a.py\n1\n```", "the opening line must be ```python and nothing else"),
        ("```python print(1)```", "the opening line must be ```python and nothing else"),
    ],
)
def test_malformed_blocks_say_what_to_change(text: str, reason: str) -> None:
    call = malformed(F, text)
    assert reason in call.reason and "Write a line ```python, your code, and a line ```" in call.reason
    assert call.raw == text


def test_an_indented_block_is_malformed() -> None:
    call = malformed(F, "- so:\n  ```python\n  1\n  ```")
    assert "must stand at the beginning of its line" in call.reason
    assert call.raw == "```python\n  1\n  ```"


def test_a_closed_malformed_block_leaves_its_neighbours_and_an_open_one_takes_the_rest() -> None:
    assert executed(F, f"{GOOD}\n```Python\n1\n```\n{GOOD}") == [CALLED, CALLED]
    assert executed(F, f"{GOOD}\n````python\n{GOOD}") == [CALLED]


@pytest.mark.parametrize("cut", range(len("```python"), len(GOOD)))
def test_a_block_cut_at_max_tokens_is_flagged(cut: int) -> None:
    assert malformed(F, GOOD[:cut], "length").reason.startswith("cut at max tokens")


@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r"))
    | st.lists(st.sampled_from(("```", "\n", "````", "python", "x", "    ", "<think>"))).map("".join)
)
@settings(deadline=None)
def test_any_code_without_carriage_returns_is_read_back(code: str) -> None:
    written = F.write("So:", [("python", {"code": code})] * 2)
    assert executed(F, written) == [("python", {"code": code})] * 2


@pytest.mark.parametrize(
    ("text", "calls", "message"),
    [
        ("", [("bash", {"code": "x"})], r"is no block of code: those call python\(code: text\)"),
        ("", [("python", {"code": 1})], "is no block of code"),
        ("", [("python", {"code": "x", "n": 1})], "is no block of code"),
        ("", [("python", {"code": "x\r"})], "would be read as"),
        ("```js", [("python", {"code": "x"})], "would be read as 0 tool calls, and 1 are meant"),
        (GOOD, [], "would be read as 1 tool calls, and 0 are meant"),
    ],
)
def test_what_would_not_be_read_back_is_refused(text: str, calls: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        F.write(text, calls)


@pytest.mark.parametrize(
    "options", [{"language": "two words"}, {"language": ""}, {"output": "`"}, {"output": "python"}]
)
def test_languages_that_cannot_be_told_apart_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="format fenced_code"):
        FencedCodeFormat(**options)


def test_a_result_with_a_fence_stands_in_a_longer_one() -> None:
    assert F.feedback("1") == "```output\n1\n```"
    assert F.feedback("a\n```\nb") == "````output\na\n```\nb\n````"
