import asyncio

from hypothesis import given
from hypothesis import strategies as st

from steprl.context import AppendOnly
from steprl.registry import resolve
from steprl.types import Action, History, Message, Observation

OPENING = (Message(role="system", content="s"), Message(role="user", content="u"))


class Silent:
    async def act(self, observation: Observation, *, kind: str = "summary") -> Action:
        raise AssertionError("an append-only context asks for nothing")


def messages(history: History) -> list[Message]:
    return list(asyncio.run(AppendOnly()(history, Silent())))


FEEDBACK = st.lists(st.text(max_size=5).map(lambda text: Message(role="tool", content=text)), max_size=2)
ROUNDS = st.lists(st.tuples(st.text(max_size=5), FEEDBACK), max_size=4)


def test_opening_actions_and_feedback_in_order_with_exact_ids():
    feedback = (Message(role="tool", content="r", tool_call_id="c"),)
    history = History(opening=OPENING).then(Action(text="a", token_ids=(5, 6)), feedback)
    said = Message(role="assistant", content="a", token_ids=(5, 6))
    assert messages(history) == [*OPENING, said, *feedback]


@given(ROUNDS)
def test_every_prompt_extends_the_one_before(rounds):
    history = History(opening=OPENING)
    before = messages(history)
    assert before == list(OPENING)
    for index, (text, feedback) in enumerate(rounds):
        action = Action(text=text, token_ids=(index,))
        history = history.then(action, tuple(feedback))
        after = messages(history)
        assert after == [*before, action.message(), *feedback]
        before = after


def test_it_is_registered():
    assert resolve("context", "append_only") is AppendOnly
