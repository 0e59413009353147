import asyncio
import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.envs.courier import DECOYS, PLACES, Courier, courier_tasks
from steprl.envs.courier_demos import Apprentice
from steprl.envs.policy import Move
from steprl.errors import ConfigError, EnvError, TaskError
from steprl.renderers import HermesFormat
from steprl.tasks import task_hash
from steprl.types import Action, Message, Task, ToolCall, Transition

TASK = Task(
    id="t",
    prompt="The parcel starts at Pavo. What is the total fee?",
    answer=11,
    data={
        "graph": {"Pavo": [7, "Mira"], "Mira": [4, None], "Zola": [9, "Pavo"]},
        "start": "Pavo",
        "depth": 2,
    },
)
CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>")


def action(text: str) -> Action:
    found = CALL.fullmatch(text)
    calls = (ToolCall(id="call_0", **json.loads(found[1])),) if found else ()
    return Action(text=text, token_ids=(1,), tool_calls=calls)


def written(move: Move) -> str:
    return HermesFormat().write(move.text, move.calls)


def play(task: Task, policy: Apprentice, limit: int = 30) -> tuple[list[Message], list[Transition]]:
    async def episode():
        env = Courier()
        messages = list(await env.reset(task, seed=0))
        transitions = []
        while len(transitions) < limit and not (transitions and transitions[-1].terminated):
            act = action(written(policy.act(messages)))
            transitions.append(await env.step(act))
            messages += [act.message(), *transitions[-1].feedback]
        await env.close()
        return messages, transitions

    return asyncio.run(episode())


def steps(*texts: str) -> list[Transition]:
    async def episode():
        env = Courier()
        await env.reset(TASK, seed=0)
        return [await env.step(action(text)) for text in texts]

    return asyncio.run(episode())


def look(place: str) -> str:
    return f'<tool_call>\n{{"name": "lookup", "arguments": {{"place": "{place}"}}}}\n</tool_call>'


def test_an_episode_word_for_word():
    messages, transitions = play(TASK, Apprentice(seed=0, careless=0.0, impatience=0.0))
    assert [(message.role, message.content) for message in messages] == [
        ("system", "Follow the parcel, add up the fees, answer with the number."),
        ("user", "The parcel starts at Pavo. What is the total fee?"),
        ("assistant", look("Pavo")),
        ("tool", "fee 7, forwarded to Mira"),
        ("assistant", look("Mira")),
        ("tool", "fee 4, delivered"),
        (
            "assistant",
            '<tool_call>\n{"name": "calculator", "arguments": {"expression": "7+4"}}\n</tool_call>',
        ),
        ("tool", "11"),
        ("assistant", "11"),
    ]
    assert transitions[-1].rewards == {"outcome": 1.0} and transitions[-1].terminated


def test_look_ups_work_off_the_way_and_fail_elsewhere():
    decoy, unknown, wrong = steps(look("Zola"), look("Nowhere"), "20")
    assert decoy.feedback[0].content == "fee 9, forwarded to Pavo"
    assert unknown.feedback[0].content == "Error: unknown place 'Nowhere'"
    assert wrong.rewards == {"outcome": 0.0}


def test_the_anchor_is_what_was_seen_and_said_last_however_often():
    once = steps(look("Pavo"), look("Mira"))[-1].anchor
    assert once == "Mira Pavo | fee 4, delivered"
    assert steps(look("Mira"), look("Pavo"), look("Nowhere"), look("Mira"))[-1].anchor == once
    assert steps(look("Mira"))[-1].anchor == "Mira | fee 4, delivered"


def test_the_task_sets():
    train, evaluation = Courier.tasks("train"), Courier.tasks("eval")
    assert (len(train), len(evaluation)) == (4096, 240)
    assert Counter(task.data["depth"] for task in evaluation) == dict.fromkeys((1, 2, 3, 4, 5), 48)
    assert len({task.id for task in (*train, *evaluation)}) == 4096 + 240
    assert evaluation == Courier.tasks("eval")
    with pytest.raises(TaskError, match="unknown Courier task set 'evl'. Did you mean 'eval'?"):
        Courier.tasks("evl")


def way(task: Task) -> tuple[tuple[str, int], ...]:
    place, stops = task.data["start"], []
    while place is not None:
        fee, onward = task.data["graph"][place]
        stops.append((place, fee))
        place = onward
    return tuple(stops)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_splits_share_no_way_whatever_the_seeds(one, other, depths):
    train = courier_tasks("train", count=40, seed=one, depths=depths)
    evaluation = courier_tasks("eval", count=40, seed=other, depths=depths)
    assert not {way(task) for task in train} & {way(task) for task in evaluation}
    assert not {task_hash(task) for task in train} & {task_hash(task) for task in evaluation}
    for index, task in enumerate(train):
        stops = way(task)
        assert task.answer == sum(fee for _, fee in stops)
        assert len(stops) == task.data["depth"] == depths[index % len(depths)]
        assert len(task.data["graph"]) == len(stops) + DECOYS
        assert task.prompt == f"The parcel starts at {stops[0][0]}. What is the total fee?"


def test_the_names_are_short_distinct_and_many():
    assert len(set(PLACES)) == len(PLACES) == 60
    assert all(re.fullmatch("[A-Z][a-z]{3}", place) for place in PLACES)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"split": "test"}, "unknown Courier split 'test'"),
        ({"depths": ()}, "depths must be"),
        ({"depths": (0,)}, r"numbers from 1 to 57, got \[0\]"),
        ({"depths": (58,)}, "numbers from 1 to 57"),
        ({"count": 0}, "count must be at least 1"),
    ],
)
def test_tasks_that_cannot_be_made_are_refused(arguments, reason):
    with pytest.raises(TaskError, match=reason):
        courier_tasks(**{"split": "train", "count": 1, **arguments})


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_perfect_apprentice_always_solves_in_depth_plus_two_rounds(split):
    perfect = Apprentice(seed=1, careless=0.0, impatience=0.0)
    for task in courier_tasks(split, count=50, seed=5):
        _, transitions = play(task, perfect)
        assert transitions[-1].rewards == {"outcome": 1.0}
        assert len(transitions) == task.data["depth"] + 2


def test_the_imperfect_apprentice_fails_where_its_patience_ends():
    tasks = courier_tasks("train", count=600, seed=2)
    solved: Counter[int] = Counter()
    for index, task in enumerate(tasks):
        solved[task.data["depth"]] += play(task, Apprentice(seed=index))[1][-1].rewards == {"outcome": 1.0}
    rates = [solved[depth] / 120 for depth in (1, 2, 3, 4, 5)]
    assert all(0.6 < rate < 0.9 for rate in rates[:2]) and all(0.1 < rate < 0.45 for rate in rates[2:]), rates


def test_the_last_place_always_charges_and_one_more_at_most():
    counts: Counter[int] = Counter()
    for task in courier_tasks("train", count=300, seed=6):
        fees = [fee for _, fee in way(task)]
        assert fees[-1] > 0 and sum(fees) == task.answer and len({*fees} - {0}) == sum(map(bool, fees))
        counts[sum(fee > 0 for fee in fees)] += 1
    assert set(counts) == {1, 2}


def test_impatience_alone_only_sums_up_early():
    gave_up = 0
    for index, task in enumerate(courier_tasks("train", count=60, seed=3, depths=(5,))):
        messages, transitions = play(task, Apprentice(seed=index, careless=0.0, impatience=0.5))
        fees = [fee for _, fee in way(task)]
        looked = len(transitions) - 2
        assert looked in (2, 5)  # after two look-ups it gives up, or goes on to the end
        assert messages[-1].content == str(sum(fees[:looked]))
        gave_up += looked == 2
    assert 15 < gave_up < 45


def test_an_apprentice_is_a_function_of_seed_and_messages():
    opening = [Message(role="user", content=TASK.prompt)]

    def acts() -> list[str]:
        return [written(Apprentice(seed=seed, careless=1.0).act(opening)) for seed in range(40)]

    careless = acts()
    assert careless == acts()
    assert len(set(careless)) > 10 and look("Pavo") not in careless


def test_every_kind_of_slip_happens_and_is_a_slip():
    def told(*results):
        return [
            Message(role="user", content=TASK.prompt),
            *(Message(role="tool", content=r) for r in results),
        ]

    def acts(messages):
        careless = [Apprentice(seed=seed, careless=1.0, impatience=0.0) for seed in range(200)]
        return {written(one.act(messages)) for one in careless}

    sums = acts(told("fee 7, forwarded to Mira", "fee 4, delivered"))
    expressions = {action(text).tool_calls[0].arguments["expression"] for text in sums}
    assert "7+4" not in expressions and {"4", "7"} < expressions
    assert acts(told("fee 7, delivered", "11")) == {"9", "10", "12", "13"}


def test_it_tries_again_after_an_error():
    perfect = Apprentice(seed=0, careless=0.0, impatience=0.0)
    messages = [
        Message(role="user", content=TASK.prompt),
        Message(role="tool", content="fee 7, forwarded to Mira"),
        Message(role="tool", content="Error: unknown place 'Mora'"),
    ]
    assert written(perfect.act(messages)) == look("Mira")


def test_the_apprentice_refuses_what_it_cannot_do():
    with pytest.raises(EnvError, match="no message says where a parcel starts"):
        Apprentice(seed=0).act([Message(role="user", content="Hello")])
    with pytest.raises(ConfigError, match="careless is a probability, from 0 to 1, got 1.5"):
        Apprentice(seed=0, careless=1.5)
