import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.errors import ConfigError, EnvError
from steprl.rewards import RewardComposer
from steprl.rewards.components import action_tokens, answer_format, malformed_calls, tool_calls
from steprl.types import Action, MalformedCall, Task, ToolCall, Transition

TASK = Task(id="t")
GOOD = ToolCall(name="f", arguments={}, id="c")
BAD = MalformedCall(raw="{", reason="not JSON")
ACTION = Action(text="", token_ids=(1, 2, 3), tool_calls=(GOOD, BAD, BAD))
END = Transition(rewards={"outcome": 1.0}, terminated=True)


def not_finite(task, action, transition):
    return float("nan")


def not_a_number(task, action, transition):
    return "1"


A_CONSTANT = 3


def test_the_components_count():
    arguments = (TASK, ACTION, Transition())
    assert (malformed_calls(*arguments), tool_calls(*arguments), action_tokens(*arguments)) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("text", "transition", "value"),
    [
        ("so\n#### 4\n", END, 1.0),
        ("####4", END, 1.0),
        ("#### 4\nbye", END, 0.0),
        ("####", END, 0.0),
        ("4", END, 0.0),
        ("", END, 0.0),
        ("#### 4", Transition(), 0.0),
    ],
)
def test_answer_format_is_for_final_answers(text, transition, value):
    assert answer_format(TASK, Action(text=text, token_ids=()), transition) == value


def test_the_environments_components_weigh_one():
    assert RewardComposer().compose(TASK, ACTION, END) == ({"outcome": 1.0}, 1.0)
    assert RewardComposer({"outcome": 0.5}).compose(TASK, ACTION, END) == ({"outcome": 1.0}, 0.5)


def test_registered_components_are_computed_and_recorded_unweighted():
    composer = RewardComposer({"malformed_calls": -0.25, "action_tokens": 0})
    rewards, reward = composer.compose(TASK, ACTION, END)
    assert rewards == {"malformed_calls": 2.0, "action_tokens": 3.0, "outcome": 1.0}
    assert reward == 0.5


def test_the_environments_own_value_of_a_registered_name_counts():
    own = Transition(rewards={"format": 0.5}, terminated=True)
    assert RewardComposer({"format": 2.0}).compose(TASK, ACTION, own) == ({"format": 0.5}, 1.0)


def test_components_can_be_named_by_address():
    name = "steprl.rewards.components:tool_calls"
    assert RewardComposer({name: 0.5}).compose(TASK, ACTION, Transition()) == ({name: 1.0}, 0.5)


@pytest.mark.parametrize("name", ["not_finite", "not_a_number"])
def test_a_component_that_is_no_finite_number_is_named(name):
    address = f"{__name__}:{name}"
    with pytest.raises(EnvError, match=f"reward component '{address}' must be a finite number"):
        RewardComposer({address: 1.0}).compose(TASK, ACTION, END)


def test_an_overflow_is_an_error():
    with pytest.raises(EnvError, match="the weighted sum of the reward components"):
        RewardComposer({"outcome": 1e308, "tool_calls": 1e308}).compose(TASK, ACTION, END)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (
            {"outcome": float("inf")},
            "the weight of reward component 'outcome' must be a finite number, got inf",
        ),
        ({"outcome": "1"}, "must be a finite number, got '1'"),
        ({"steprl.rewards.components:tool_call": 1.0}, "Did you mean 'tool_calls'?"),
        ({f"{__name__}:A_CONSTANT": 1.0}, "a function .* is expected"),
    ],
)
def test_wrong_weights_are_refused_before_anything_runs(weights, reason):
    with pytest.raises(ConfigError, match=reason):
        RewardComposer(weights)


def test_weights_that_matched_nothing_are_found():
    composer = RewardComposer({"outcome": 1.0, "outcom": 1.0, "tool_calls": 1.0})
    assert composer.missing({"outcome", "style"}) == ("outcom",)
    assert composer.missing(set()) == ("outcom", "outcome")


NUMBERS = st.floats(-1e6, 1e6)
NAMES = st.sampled_from(["outcome", "style", "tool_calls"])


@given(st.dictionaries(NAMES, NUMBERS), st.dictionaries(st.sampled_from(["outcome", "style"]), NUMBERS))
def test_the_reward_is_the_weighted_sum_of_what_is_recorded(weights, own):
    rewards, reward = RewardComposer(weights).compose(TASK, ACTION, Transition(rewards=own))
    assert rewards == {**({"tool_calls": 1.0} if "tool_calls" in weights else {}), **own}
    assert reward == pytest.approx(sum(weights.get(name, 1.0) * value for name, value in rewards.items()))
