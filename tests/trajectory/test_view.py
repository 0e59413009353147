"""What a person sees of an episode, to the letter; and that no text of a model can change how it looks."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from steprl.trajectory import show_episode, summary_lines
from steprl.trajectory.view import safe
from steprl.types import (
    EpisodeError,
    MalformedCall,
    Message,
    Sampling,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
)


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def step(
    prompt: str, sampled: str, added: str = "", *, logprob: float | None = -0.5, **fields: object
) -> Step:
    """One character is one token."""
    n, m = len(sampled), len(added)
    return Step(
        prompt_ids=[ord(c) for c in prompt],
        action_ids=[ord(c) for c in sampled + added],
        sampled_mask=[True] * n + [False] * m,
        logprobs=None if logprob is None else [logprob] * n + [float("nan")] * m,
        policy_versions=[4] * (n + m),
        sampling=Sampling(),
        **fields,
    )


def episode(*steps: Step, **fields: object) -> Trajectory:
    given = {"uid": "e", "group_uid": "g", "task_id": "t", "task_hash": "", "seed": 17}
    return Trajectory(**{**given, "steps": steps, "stop_reason": StopReason.TERMINATED, **fields})


def shown(trajectory: Trajectory, *, colour: bool = False, full: bool = False) -> str:
    out = StringIO()
    terminal = {"force_terminal": True, "color_system": "standard"} if colour else {}
    show_episode(trajectory, decode, Console(file=out, width=40, _environ={}, **terminal), full=full)
    return out.getvalue()


OSLO = episode(
    step(
        "how many in Oslo?",
        "population Oslo",
        "<end>",
        calls=(
            ToolCall(name="population", arguments={"city": "Tromsø"}, id="1"),
            MalformedCall(raw="{x", reason="not JSON"),
        ),
        feedback=(Message(role="tool", name="population", content="709000"),),
        rewards={"outcome": 0.0, "format": 0.25},
        reward=0.25,
    ),
    step(
        "how many in Oslo?population Oslo<end>709000",
        "709000.",
        parent=0,
        rewards={"outcome": 1.0},
        reward=1.0,
        finish="length",
    ),
)


def test_an_episode_on_a_plain_console() -> None:
    assert (
        shown(OSLO)
        == """\
episode e of group g, task t, seed 17, policy 4, 2 steps, reward 1.25, terminated
{+sampled by the model+}  {~added, not sampled~}

── step 0, act of policy, policy 4
prompt    17 tokens, 17 new
how many in Oslo?
action    15 of 20 tokens sampled, logprob -0.500, stop
{+population Oslo+}{~<end>~}
call      population({"city": "Tromsø"})
malformed not JSON: {x
feedback  tool population: 709000
reward    0.25 = outcome 0, format 0.25

── step 1, act of policy, policy 4
prompt    43 tokens, 6 new
[37 tokens as before]709000
action    7 tokens, logprob -0.500, length
{+709000.+}
reward    1 = outcome 1

── stopped: terminated
"""
    )


def test_colour_takes_the_place_of_marks() -> None:
    text = shown(OSLO, colour=True)
    assert "\x1b[1;32mpopulation Oslo\x1b[0m\x1b[33m<end>\x1b[0m" in text
    assert "{+" not in text
    assert "{~" not in text


def test_full_prints_what_was_carried_over_dimly() -> None:
    assert "how many in Oslo?population Oslo<end>709000\n" in shown(OSLO, full=True)
    assert "\x1b[2mhow many in Oslo?population Oslo<end>\x1b[0m709000\n" in shown(
        OSLO, colour=True, full=True
    )


def test_a_rewritten_context_is_said_to_be_one() -> None:
    text = shown(episode(step("abcdef", "g"), step("abcX", "h")))
    assert (
        "prompt    4 tokens, 1 new; the context was rewritten after token 3\n[3 tokens as before]X\n" in text
    )


def test_what_was_carried_over_is_counted_from_the_parent() -> None:
    text = shown(episode(step("root", "1"), step("root1", "2", parent=0), step("root1x", "3", parent=0)))
    assert "prompt    6 tokens, 1 new\n[5 tokens as before]x\n" in text


@pytest.mark.parametrize("colour", [False, True])
def test_markup_emoji_codes_and_control_characters_are_shown_literally(colour: bool) -> None:
    hostile = "[bold]x[/bold] [/] [link=http://a]:smile:\x1b[2J\r\x07\u202e\u200b\u2028\u2029\ud800"
    literal = r"[bold]x[/bold] [/] [link=http://a]:smile:\x1b[2J\r\x07\u202e\u200b\u2028\u2029\ud800"
    error = EpisodeError(kind="EnvError", message=hostile, traceback=hostile)
    trajectory = episode(
        step(
            hostile,
            hostile,
            hostile,
            agent=hostile,
            calls=(
                ToolCall(name=hostile, arguments={}, id="1"),
                MalformedCall(raw=hostile, reason=hostile),
            ),
            feedback=(Message(role="tool", content=hostile),),
            rewards={hostile: 1.0},
        ),
        uid=hostile,
        task_id=hostile,
        group_uid=hostile,
        stop_reason=StopReason.ERROR,
        error=error,
    )
    text = shown(trajectory, colour=colour)
    assert text.count(literal) == 14
    assert "\x1b[2J" not in text
    assert not {"\r", "\x07", "\u202e", "\u200b", "\u2028", "\u2029", "\ud800"} & set(text)
    out = StringIO()
    for line in summary_lines(trajectory, decode, width=1000):
        Console(file=out).print(line, soft_wrap=True)
    assert out.getvalue().count(literal) == 5
    assert "\x1b" not in out.getvalue()


@given(st.text(st.characters()))
def test_safe_text_cannot_steer_a_terminal_and_keeps_the_rest(text: str) -> None:
    made = safe(text)
    assert all(c.isprintable() or c.isspace() or not c.isascii() for c in made)
    assert not any("\x00" <= c < " " and c not in "\n\t" or "\x7f" <= c < "\xa0" for c in made)
    made.encode()
    if text.isprintable():
        assert made == text


def test_an_episode_that_broke_says_what_broke_it() -> None:
    error = EpisodeError(kind="EnvError", message="no server", traceback="Traceback:\n  line 3")
    text = shown(episode(stop_reason=StopReason.ERROR, error=error))
    assert "task t, seed 17, no policy, 0 steps, reward 0, error\n" in text
    assert "── stopped: error\nerror     EnvError: no server\nTraceback:\n  line 3\n" in text


def test_missing_reward_and_logprobs_are_said_to_be_missing() -> None:
    text = shown(episode(step("a", "b", logprob=None, reward=None)))
    assert "action    1 tokens, no logprobs, stop\n" in text
    assert "reward    not scored\n" in text
    assert "reward not scored, terminated\n" in text


def test_several_policy_versions_are_a_range() -> None:
    mixed = Step(
        prompt_ids=[65],
        action_ids=[66, 67],
        sampled_mask=[True, True],
        logprobs=None,
        policy_versions=[3, 5],
        sampling=Sampling(),
    )
    assert "seed 17, policy 3-5, 1 steps" in shown(episode(mixed))


def test_summary_is_a_header_and_one_line_per_step() -> None:
    assert [str(line) for line in summary_lines(OSLO, decode, width=200)] == [
        "episode e of group g, task t, seed 17, policy 4, 2 steps, reward 1.25, terminated",
        "  0 act     prompt 17 (+17), action 15 of 20 tokens sampled, logprob -0.500, stop, "
        "2 calls (1 malformed), reward 0.25: population Oslo",
        "  1 act     prompt 43 (+6), action 7 tokens, logprob -0.500, length, reward 1: 709000.",
    ]


def test_summary_lines_have_one_line_each_and_keep_to_the_width() -> None:
    error = EpisodeError(kind="EnvError", message="one\ntwo")
    trajectory = episode(step("a", "first\nsecond\t" + "x" * 300), stop_reason=StopReason.ERROR, error=error)
    lines = [str(line) for line in summary_lines(trajectory, decode, width=100)]
    assert len(lines) == 3
    assert all(len(line) <= 100 and "\n" not in line for line in lines)
    assert r"reward 0: first\nsecond\t" in lines[1]
    assert lines[1].endswith("x…")
    assert lines[2] == r"error     EnvError: one\ntwo"
