"""What an estimator or a loss needs and a recipe lacks is refused with the reason, before anything trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from playing import Dice, Guess
from training import COURIER, DICE, recipe_of, run, run_briskly

from steprl.credit import Gae, Gigpo, Grpo
from steprl.errors import ConfigError
from steprl.trainers.needs import check_needs, value_unit
from steprl.trainers.storage.run_folder import RunFolder
from steprl.types import (
    Action,
    Completion,
    Credits,
    Message,
    Need,
    Observation,
    Prompt,
    Sampling,
    Scores,
    Session,
    Task,
    TrajectoryGroup,
    Transition,
)


class Clairvoyant(Grpo):
    """Needs what there is no word for."""

    requires = frozenset({Need.GROUPS, "oracle"})  # type: ignore[arg-type]


class Unspoken(Grpo):
    """Needs a critic and does not say what for."""

    requires = frozenset({Need.CRITIC})


class Mute:
    """Says nothing of its needs."""

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        raise NotImplementedError


class Played(Grpo):
    """Plays on from a state."""

    requires = frozenset({Need.SNAPSHOTS})


class Demanding:
    """An estimator of its own, which needs all that a recipe can provide, and keeps what it was given."""

    requires = frozenset({Need.CRITIC, Need.REFERENCE, Need.ANCHORS, Need.GROUPS})
    credit = "step"
    given: list[tuple[Sequence[TrajectoryGroup], Scores]] = []

    def __call__(self, groups: Sequence[TrajectoryGroup], scores: Scores) -> Credits:
        Demanding.given.append((groups, scores))
        return Gae(credit="step")(groups, scores)


class Begun(Guess):
    """Notes that an episode began."""

    episodes = 0

    def setup(self, task: Task, seed: int) -> None:
        Begun.episodes += 1


class Asked(Dice):
    """Notes that it was asked for a completion."""

    times = 0

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        Asked.times += 1
        return await super().generate(prompt, sampling, session_id=session_id, seed=seed)


class Named(Guess):
    """Names the state it is in."""

    def anchor(self, feedback: Sequence[Message]) -> str:
        return "hinted" if feedback else "over"


class Stepping(Guess):
    """Answers actions itself, so that only what it answers tells whether it names states."""

    async def step(self, action: Action) -> Transition:
        return replace(await super().step(action), anchor=None)


class Free:
    """A workflow: whether it names states shows when it is played."""

    async def run(self, task: Task, session: Session) -> None:
        await session.act(Observation(text=task.prompt))
        session.observe(Transition(terminated=True))


class Silent(Dice):
    """An engine that does not say how likely its tokens were."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        told = await super().generate(prompt, sampling, session_id=session_id, seed=seed)
        return replace(told, logprobs=None)


GAE, GIGPO = "algorithm.estimator=gae", "algorithm.estimator=gigpo"

COMPARING = {
    "grpo": "Grpo",
    "dr_grpo": "DrGrpo",
    "rloo": "Rloo",
    "reinforce_pp_baseline": "ReinforcePpBaseline",
    "gigpo": "Gigpo",
}
"""Estimators that compare within groups, and their classes."""

REFUSED = [
    (
        ("algorithm.estimator=test_needs:Clairvoyant",),
        "estimator 'test_needs:Clairvoyant' needs oracle, which no recipe provides. Its requires may "
        "name: anchors, critic, groups, reference, snapshots.",
    ),
    (
        ("algorithm.estimator=test_needs:Unspoken",),
        "estimator 'test_needs:Unspoken' needs a critic, and its credit is None. Give it an attribute "
        'credit: "step" if its returns are values of states, "token" if they are values before each '
        "token. The critic learns them there.",
    ),
    (
        (GAE, "algorithm.args={credit = 'step', values = 'rollout', continuations = 0}"),
        "an estimator's continuations is 0; it must be a whole number, 1 or more",
    ),
    (
        (GAE, "algorithm.args={credit = 'step', values = 'rollout', gamma = 0.9}"),
        'values = "rollout" need credit = "step", gamma = 1 and kl_beta = 0',
    ),
    (
        (GAE, "algorithm.args.continuations=2"),
        'continuations = 2 has no effect without values = "rollout"',
    ),
    (
        ("algorithm.estimator=test_needs:Mute",),
        "estimator 'test_needs:Mute' has requires = None: an estimator is called with groups and scores, and "
        "its `requires` is a set of what it cannot work without (frozenset() for nothing)",
    ),
    (
        (GAE, "critic.warmup_iterations=4"),
        "critic.warmup_iterations = 4 leaves nothing of train.iterations = 4 for the policy.",
    ),
    (
        (GAE, "critic.kind=shared", "learner.dtype=bfloat16"),
        'critic.kind = "shared" runs the policy\'s own layers, whose learner.dtype is "bfloat16", and '
        'critic.learner.dtype is "float32". Set critic.learner.dtype = "bfloat16".',
    ),
    (
        (GIGPO,),
        "estimator 'gigpo' compares steps taken in the same state, and env 'playing:Guess' names none: "
        "Guess does not override ToolEnv.anchor. Return the canonical state there (no counters, no "
        "timestamps), or choose an estimator that works without anchors, such as grpo.",
    ),
    (
        (GIGPO, "rollout.group_size=3", "algorithm.args.min_trajectories=4"),
        "group_size = 3, but Gigpo compares the trajectories of a group with each other and needs at least 4",
    ),
    (
        ("algorithm.estimator=test_needs:Demanding", "rollout.group_size=1"),
        "group_size = 1, but Demanding compares the trajectories of a group with each other and needs at "
        "least 2. Set group_size to 2 or more (8 is usual), or choose an estimator that works without",
    ),
    (
        ("algorithm.estimator=test_needs:Demanding",),
        "estimator 'test_needs:Demanding' compares steps taken in the same state, and env",
    ),
    (
        ("algorithm.estimator=test_needs:Played",),
        "estimator 'test_needs:Played' needs snapshots: its values are those of fresh continuations of each "
        "state, and its continuations is None. Give it that attribute: how many of each, 1 or more.",
    ),
    (
        (GAE, "algorithm.args.values=rollout"),
        'values = "rollout" need credit = "step", gamma = 1 and kl_beta = 0',
    ),
    (
        ("algorithm.estimator=reinforce_p",),
        "unknown estimator 'reinforce_p'. Did you mean 'reinforce_pp'? Known: dr_grpo, gae, gigpo, grpo, "
        "reinforce_pp, reinforce_pp_baseline, rloo. Or name your own as module:attribute.",
    ),
    (
        ("algorithm.estimator=test_needs:Nobody",),
        "estimator 'test_needs:Nobody': unknown attribute of test_needs 'Nobody'.",
    ),
    *(
        (
            (f"algorithm.estimator={name}", "algorithm.args.kl_beta=0.1"),
            f"kl_beta = 0.1, but {made} has no KL in the reward: it would enter the comparison within the "
            f"group. Set kl_beta = 0 and use the KL term of the loss.",
        )
        for name, made in COMPARING.items()
        if name != "rloo"
    ),
    *(
        (
            (f"algorithm.estimator={name}", "rollout.group_size=1"),
            f"group_size = 1, but {made} compares the trajectories of a group with each other and needs at "
            f"least 2.",
        )
        for name, made in COMPARING.items()
    ),
]
"""What a recipe says, and how the refusal begins."""


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_a_need_that_nothing_serves_is_refused_and_leaves_no_folder(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    """There is no model at that path: whoever looked for it would say so."""
    with pytest.raises(ConfigError) as caught:
        run(recipe_of(DICE, "/no/where", tmp_path / "runs", *options))
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused_has_played_nothing(
    tiny_policy: str, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    """Although there is a model, and an environment and an engine that could play."""
    Begun.episodes = Asked.times = 0
    playing = ("env.id=test_needs:Begun", "engine.id=test_needs:Asked")
    with pytest.raises(ConfigError) as caught:
        run(recipe_of(DICE, tiny_policy, tmp_path / "runs", *playing, *options))
    assert str(caught.value).startswith(message.partition(", and env ")[0])  # this one has another name
    assert (Begun.episodes, Asked.times) == (0, 0) and not (tmp_path / "runs").exists()


def test_who_would_have_played_is_counted(tiny_policy: str, tmp_path: Path) -> None:
    Begun.episodes = Asked.times = 0
    playing = ("env.id=test_needs:Begun", "engine.id=test_needs:Asked", "evaluation.tasks=0")
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *playing, "train.iterations=1"))
    assert Begun.episodes == 8 and Asked.times >= 8


def test_an_estimator_of_ones_own_is_given_what_it_requires(tiny_policy: str, tmp_path: Path) -> None:
    Demanding.given.clear()
    options = ("algorithm.estimator=test_needs:Demanding", "env.id=test_needs:Named", "evaluation.tasks=0")
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *options, "train.iterations=1"))
    ((groups, scores),) = Demanding.given
    keys = {t.key(i) for group in groups for t in group.trajectories for i in range(len(t.steps))}
    assert scores.values is not None and scores.ref_logprobs is not None
    assert set(scores.old_logprobs) == set(scores.ref_logprobs) == set(scores.values) == keys
    assert [len(group.trajectories) for group in groups] == [4, 4]
    assert all(s.anchor is not None for group in groups for t in group.trajectories for s in t.steps)
    (line,) = RunFolder(tmp_path / "run").metrics()
    assert (line["learner/updates"], line["critic/updates"]) == (1, 1)


@pytest.mark.parametrize("played", [Named, Stepping, Free])
def test_who_may_name_states_is_not_refused_before_it_was_played(tmp_path: Path, played: type) -> None:
    check_needs(recipe_of(DICE, "any", tmp_path), Gigpo(), played)


def test_a_unit_of_values_is_the_estimators_credit(tmp_path: Path) -> None:
    recipe = recipe_of(DICE, "any", tmp_path)
    assert [value_unit(recipe, Gae(credit=unit)) for unit in ("step", "token")] == ["step", "token"]  # type: ignore[arg-type]


def test_an_environment_that_named_no_state_is_refused_after_the_first_batch(
    tiny_policy: str, tmp_path: Path
) -> None:
    options = (GIGPO, "env.id=test_needs:Stepping", "evaluation.tasks=0")
    with pytest.raises(ConfigError) as caught:
        run(recipe_of(DICE, tiny_policy, tmp_path, *options))
    assert "in the same state, and env 'test_needs:Stepping' named none in the " in str(caught.value)
    assert "Set Transition.anchor to the canonical state (no counters, no timestamps)" in str(caught.value)
    assert RunFolder(tmp_path / "run").metrics() == [] == RunFolder(tmp_path / "run").checkpoints()


def test_an_engine_without_log_probabilities_is_refused_where_the_loss_weighs_by_them(
    tiny_policy: str, tmp_path: Path
) -> None:
    silent = ("engine.id=test_needs:Silent", "evaluation.tasks=0", "train.iterations=1")
    with pytest.raises(ConfigError) as caught:
        run(recipe_of(DICE, tiny_policy, tmp_path, *silent, "learner.loss.importance=truncate"))
    assert str(caught.value).startswith("learner.loss.importance = 'truncate' compares the learner's ")
    assert "and engine 'test_needs:Silent' gave none for " in str(caught.value)
    assert str(caught.value).endswith('or set learner.loss.importance = "off".')
    run_briskly(recipe_of(DICE, tiny_policy, tmp_path / "off", *silent))  # nothing else needs them


@pytest.mark.parametrize(
    ("table", "options"),
    [(DICE, ("env.id=test_needs:Named",)), (COURIER, ("rollout.max_tokens=4", "evaluation.tasks=0"))],
)
def test_states_that_are_named_are_compared(
    tiny_policy: str, tmp_path: Path, table: dict[str, object], options: tuple[str, ...]
) -> None:
    options = (GIGPO, *options, "train.iterations=1", "evaluation.tasks=0", "train.show_every=0")
    folder = run_briskly(recipe_of(table, tiny_policy, tmp_path, *options))
    (line,) = RunFolder(folder).metrics()
    assert line["learner/updates"] == 1
