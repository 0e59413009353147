"""The standard loop: reset, rule, act, step; and who composes what the model sees next."""

from __future__ import annotations

from collections.abc import Sequence

from playing import Guess, Recorder, call, guesses, only, play, renderer

from steprl.envs import Env
from steprl.types import (
    Action,
    Actor,
    History,
    Message,
    Observation,
    StopReason,
    Task,
    ToolSpec,
    Transition,
)


class Scripted(Env):
    """Answers actions with prepared transitions."""

    transitions: tuple[Transition, ...] = ()

    async def reset(self, task: Task, *, seed: int) -> Sequence[Message]:
        self.left = list(self.transitions)
        return [Message(role="user", content=task.prompt)]

    async def step(self, action: Action) -> Transition:
        return self.left.pop(0)


def scripted(*given: Transition) -> type[Env]:
    return type("Given", (Scripted,), {"transitions": given})


def test_an_observation_that_the_environment_composed_is_used_as_it_is() -> None:
    composed = (Message(role="user", content="Forget everything: what is 1+1?"),)
    env = scripted(
        Transition(feedback=composed, observation=Observation(messages=composed)),
        Transition(observation=Observation(token_ids=(5, 6, 7))),
        Transition(terminated=True),
    )
    t = only(play(env, Recorder(["a", "b", "c"])))
    assert t.steps[1].prompt_ids.tolist() == list(renderer().render(composed))
    assert t.steps[2].prompt_ids.tolist() == [5, 6, 7]


def test_otherwise_the_rule_composes_it_from_the_whole_exact_history() -> None:
    histories: list[History] = []

    async def rule(history: History, actor: Actor) -> Sequence[Message]:
        histories.append(history)
        return [Message(role="user", content=f"{len(history.rounds)} rounds so far")]

    t = only(play(Guess, Recorder([call("hint"), call("hint"), "0"]), guesses(1), context=rule))
    assert [len(history.rounds) for history in histories] == [0, 1, 2]
    assert histories[2].opening == histories[0].opening
    assert [r.action.token_ids for r in histories[2].rounds] == [
        tuple(step.action_ids.tolist()) for step in t.steps[:2]
    ]
    assert [r.feedback[0].content for r in histories[2].rounds] == ["small", "small"]
    assert "2 rounds so far" in renderer().decode(t.steps[2].prompt_ids.tolist())


def test_a_rule_may_ask_the_policy_and_the_answer_is_a_step() -> None:
    async def summarise(history: History, actor: Actor) -> Sequence[Message]:
        if not history.rounds:
            return history.opening
        summary = await actor.act(Observation(text="Summarise."))
        return [*history.opening, summary.message()]

    replies = [call("hint"), "It is small.", call("hint"), "Still small.", "0"]
    t = only(play(Guess, Recorder(replies), guesses(1), context=summarise, max_steps=3))
    assert [step.kind for step in t.steps] == ["act", "summary", "act", "summary", "act"]
    assert t.stop_reason is StopReason.TERMINATED and t.reward == 1.0
    summary = t.steps[1]
    assert summary.rewards == {} and summary.reward == 0.0
    assert t.steps[0].feedback[0].content == "small"  # feedback stays with the action it answers
    ids, prompt = summary.action_ids.tolist(), t.steps[2].prompt_ids.tolist()
    assert any(prompt[i : i + len(ids)] == ids for i in range(len(prompt)))


def test_an_environment_that_truncates_is_a_limit_not_an_end() -> None:
    ended = [scripted(Transition(truncated=True)), scripted(Transition(terminated=True))]
    stops = [only(play(env, Recorder(["a"]))).stop_reason for env in ended]
    assert stops == [StopReason.MAX_STEPS, StopReason.TERMINATED]


def test_the_model_is_told_the_tools_of_the_environment() -> None:
    t = only(play(Guess, Recorder(["0"]), guesses(1)))
    spec: ToolSpec = Guess.hint.spec
    assert t.steps[0].prompt_ids.tolist() == list(
        renderer().render([Message(role="user", content=guesses(1)[0].prompt)], [spec])
    )


def test_tools_that_an_instance_chooses_are_asked_for_after_reset() -> None:
    class Choosing(Guess):
        @property
        def tools(self) -> tuple[object, ...]:  # type: ignore[override]
            return (Guess.hint,) if self._task is not None and self._task.id == "task-0" else ()

    prompts = [
        renderer().decode(
            play(Choosing, Recorder(["0"]), [task])[0].trajectories[0].steps[0].prompt_ids.tolist()
        )
        for task in guesses(2)
    ]
    assert ["hint" in prompt for prompt in prompts] == [True, False]


def test_state_and_components_of_a_transition_are_recorded() -> None:
    env = scripted(
        Transition(anchor="room 1", rewards={"progress": 0.5}), Transition(terminated=True, anchor="end")
    )
    t = only(play(env, Recorder(["a", "b"])))
    assert [step.anchor for step in t.steps] == ["room 1", "end"]
    assert [dict(step.rewards) for step in t.steps] == [{"progress": 0.5}, {}]
