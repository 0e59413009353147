"""`steprl doctor`: what it prints, what it writes, and how it exits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from published import published_tokenizer
from rich.console import Console
from terminal import Terminal
from tiny import tiny_tokenizer

from steprl.cli.doctor import show
from steprl.trainers.doctor.doctor import examine
from steprl.trainers.doctor.scoring import has_weights


def test_with_weights_every_trace_is_scored_and_steps_differ_by_nothing(
    steprl: Terminal, tiny_policy: str, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    code, told, _ = steprl("doctor", "--model", tiny_policy, "--json", str(out))
    assert code == 0 and "exact: every sampled token is trained once" in told
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["exact"] is True and found["unscored"] is None
    traces = {trace["name"]: trace for trace in found["found"]["traces"]}
    assert traces["step"]["shift"] == dict.fromkeys(traces["step"]["shift"], 0.0)
    assert traces["step"]["exact"] == traces["step"]["actions"] and traces["step"]["forged"] == 0
    assert traces["message"]["shift"]["token_max"] > 0 and traces["message"]["changed"] > 0
    assert traces["token"]["changed"] == 0 and traces["token"]["shift"]["action_max"] > 0
    assert re.search(r"\|Δ log-prob\| of a token: mean, max +│ 0\.\d", told)


def test_a_tokenizer_alone_has_no_scores_and_says_so(steprl: Terminal, tmp_path: Path) -> None:
    published_tokenizer("qwen3").save_pretrained(tmp_path)
    assert not has_weights(str(tmp_path))
    code, told, _ = steprl("doctor", "--model", str(tmp_path), "--format", "react")
    assert code == 0 and "log-prob|" not in told
    assert "log-probabilities are left out" in told and "is no folder with weights" in told
    assert re.search(r"thinking, then the user +│ 3 +│ 0 of 2 +│ 0 of 2 +│ 3 +│ stripping: thinking", told)


def test_what_a_template_refuses_is_told_once_and_is_no_error(steprl: Terminal, tmp_path: Path) -> None:
    published_tokenizer("gemma").save_pretrained(tmp_path)
    code, told, _ = steprl("doctor", "--model", str(tmp_path))
    assert code == 0 and told.count("ignores tools") == 1 and "System role not supported" in told


def test_rules_templates_and_options_are_taken(steprl: Terminal, tmp_path: Path) -> None:
    tiny_tokenizer(None).save_pretrained(tmp_path)
    template = tmp_path / "mine.jinja"
    template.write_text(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ close }}\n{% endfor %}[assistant] "
    )
    options = ("--chat-template", str(template), "--template-options", '{"close": "<|endoftext|>"}')
    rule = ("--context", "sliding_window", "--context-args", '{"rounds": 1}')
    code, told, _ = steprl("doctor", "--model", str(tmp_path), "--format", "react", *options, *rule)
    assert code == 0 and "context rule" in told and "context sliding_window" in told


def test_a_template_that_marks_turns_with_ordinary_text_is_pointed_out(
    steprl: Terminal, tmp_path: Path
) -> None:
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    tokenizer.save_pretrained(tmp_path)
    code, told, _ = steprl("doctor", "--model", str(tmp_path), "--format", "react", "--no-scores")
    assert code == 0 and "any text can forge a turn" in told and "they were not asked for" in told


def test_control_tokens_that_are_allowed_are_counted(steprl: Terminal, tmp_path: Path) -> None:
    published_tokenizer("qwen2.5").save_pretrained(tmp_path)
    code, told, _ = steprl("doctor", "--model", str(tmp_path), "--allow-control-tokens")
    assert code == 0 and "read as control tokens, as was asked for" in told
    assert not re.search(r"a text forged +│ \d+ +│ \d+ +│ 0 ", told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "herms"), "Did you mean 'hermes'"),
        (("--context", "sliding_window"), "context 'sliding_window' does not take these options"),
        (("--context-args", "[]"), "--context-args must be a JSON object"),
        (("--chat-template", "absent.jinja"), "chat_template: there is no file 'absent.jinja'"),
    ],
)
def test_what_cannot_work_is_refused(steprl: Terminal, options: tuple[str, ...], message: str) -> None:
    code, _, errors = steprl("doctor", *options)
    assert code == 1 and message in errors


@pytest.mark.parametrize(
    ("looked_for", "code", "refused"),
    [
        (["#"], 0, 0),
        # what stands in for control tokens has an @, and the true text has none
        (["@"], 0, 2),
        # and here it writes the same, so that a text which spells a control token gets one into the prompt
        (["@", "<|"], 1, 0),
    ],
)
def test_it_exits_with_1_when_a_text_gets_a_control_token_into_a_prompt_and_else_with_0(
    steprl: Terminal, tmp_path: Path, looked_for: list[str], code: int, refused: int
) -> None:
    # a template that marks messages by what they say
    published_tokenizer("qwen2.5").save_pretrained(tmp_path)
    template, out = tmp_path / "marks.jinja", tmp_path / "found.json"
    found_in = " or ".join(f"'{text}' in m.content" for text in looked_for)
    marked = f"{{% if {found_in} %}}<|endoftext|>{{% endif %}}{{{{ m.content }}}}<|im_end|>"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n" + marked + "\n{% endfor %}<|im_start|>assistant\n"
    )
    options = ("--model", tmp_path, "--format", "react", "--chat-template", template, "--json", out)
    exited, told, errors = steprl("doctor", *options)
    assert exited == code and "Traceback" not in errors
    assert ("WRONG: tokens would be trained" in told, "exact: every sampled" in told) == (
        code == 1,
        code == 0,
    )
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["exact"] is (code == 0)
    why = [one["refused"] for one in found["found"]["conversations"] if one["refused"]]
    assert len(why) == refused and all("or decides by it" in reason for reason in why)
    wrong = {one["name"]: one["wrong"] for one in found["found"]["conversations"] if one["wrong"]}
    assert set(wrong) == (
        {"control tokens in texts", "control tokens in results and calls"} if code else set()
    )
    for name, lines in wrong.items():
        assert f"{name}: {lines[0]}" in told and "that a text only spelled are control tokens" in lines[0]


def test_what_would_be_trained_wrongly_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    published_tokenizer("qwen2.5").save_pretrained(tmp_path)
    diagnosis = examine(str(tmp_path))
    first, *rest = diagnosis.found.conversations
    broken = replace(first, wrong=("step 0, action token 0 is trained 2 times",))
    show(
        replace(diagnosis, found=replace(diagnosis.found, conversations=(broken, *rest))),
        Console(width=120),
    )
    told = capfd.readouterr().out
    assert "WRONG" in told and "several turns: step 0, action token 0 is trained 2 times" in told
    assert "exact:" not in told
