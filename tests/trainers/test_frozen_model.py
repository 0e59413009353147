"""A frozen model as the writer of summaries: its own tokenizer and engine, and nothing of it is trained."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import Guess, Recorder, call, guesses, members, only, play

from steprl.batch import rows
from steprl.context import LlmSummary
from steprl.errors import ConfigError, EnvError
from steprl.learner.small_policy import PolicySize, make_policy
from steprl.learner.tokenizer import train_tokenizer
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.trainers.frozen_model import FrozenModel
from steprl.trainers.imitation.tokenizing import CHAT_TEMPLATE
from steprl.types import Message

ASKED = (
    Message(role="user", content="Guess a number."),
    Message(role="assistant", content="hint", token_ids=(60_000, 60_001)),  # of another model's vocabulary
    Message(role="tool", content="small"),
    Message(role="user", content="Sum up."),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, which says something of its own."""
    path = tmp_path_factory.mktemp("frozen")
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    tokenizer = train_tokenizer(["Guess a number. small, large"] * 4, 300, template=template, tags=())
    tokenizer.save_pretrained(path)
    size = PolicySize(hidden=32, layers=1, max_context=1024)
    make_policy(len(tokenizer), size, pad_id=tokenizer.pad_token_id, seed=3).save_pretrained(path)
    return path


def ask(model: FrozenModel, *requests: Any) -> list[str]:
    async def everything() -> list[str]:
        return list(await asyncio.gather(*(model(request) for request in requests)))

    return asyncio.run(everything())


def test_it_answers_as_the_model_itself_would(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    (written,) = ask(FrozenModel(model=str(folder), max_tokens=12), ASKED)
    renderer = ChatRenderer(load_tokenizer(str(folder)))
    ids = renderer.render([replace(message, token_ids=None) for message in ASKED])
    made = AutoModelForCausalLM.from_pretrained(folder).generate(
        torch.tensor([ids]),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=list(renderer.stop_ids),
        pad_token_id=0,
    )
    assert written == renderer.parse(made[0, len(ids) :].tolist(), "length").text != ""


def test_the_same_request_gets_the_same_text_whenever_and_beside_whatever(folder: Path) -> None:
    model = FrozenModel(model=str(folder), max_tokens=12, temperature=1.0, slots=2)
    others = [[Message(role="user", content="small " * n)] for n in range(1, 6)]
    alone = ask(model, ASKED)
    crowd = ask(model, *others, ASKED, *others)
    assert crowd[5] == alone[0] and len(set(crowd)) > 3 and crowd[:5] == crowd[6:]


def test_its_summaries_are_in_the_record_and_are_not_trained(folder: Path) -> None:
    rule = LlmSummary(
        budget=20, keep_last=0, writer="frozen_model", writer_args={"model": str(folder), "max_tokens": 5}
    )
    t = only(play(Guess, Recorder([call("hint"), call("hint"), "0"]), guesses(1), context=rule, max_steps=4))
    assert [step.kind for step in t.steps if step.sampled_mask.any()] == ["act"] * 3
    written = [step for step in t.steps if step.kind == "summary"]
    assert len(written) >= 2 and not any(step.sampled_mask.any() for step in written)
    trained = sum(len(row.action_positions) for row in rows([t]))
    assert trained == sum(len(step.action_ids) for step in t.steps if step.kind == "act")


def test_a_request_that_leaves_no_room_is_an_error_of_the_episode(folder: Path) -> None:
    rule = LlmSummary(
        budget=20, writer="frozen_model", writer_args={"model": str(folder), "max_tokens": 1000}, keep_last=0
    )
    engine = Recorder([call("hint"), call("hint"), call("hint"), "0"])
    t = members(play(Guess, engine, guesses(1), context=rule, beside_a_good_one=True))[0]
    assert t.error is not None and "more than the frozen model's context of 1024" in t.error.message
    assert "llm_summary.writer = 'frozen_model'" in t.error.message
    with pytest.raises(EnvError, match=r"the request has \d+ tokens"):
        ask(FrozenModel(model=str(folder), max_tokens=1000), ASKED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": "12"}, "frozen_model: "),
        ({"dtype": "float16"}, "dtype must be one of float32"),
        ({"slots": 0}, "frozen_model: slots must be a whole number from 1 up, got 0"),
        ({"slots": "4"}, "frozen_model: slots must be a whole number from 1 up, got '4'"),
        ({"max_context": -5}, "frozen_model: max_context must be a whole number from 2 up, got -5"),
    ],
)
def test_options_are_checked_before_it_is_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FrozenModel(model="quickstart", **options)
    with pytest.raises(ConfigError, match=message):
        LlmSummary(budget=9, writer="frozen_model", writer_args={"model": "quickstart", **options})


def test_a_model_that_is_not_there_is_refused_before_the_first_episode() -> None:
    with pytest.raises(ConfigError, match="./no/such"):
        LlmSummary(budget=9, writer="frozen_model", writer_args={"model": "./no/such"})
