"""A critic and a reference in the loop: what they are asked, when they learn, that a kill loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playing import call
from safetensors.numpy import load_file
from test_resume import iterations, killed_after, resume
from training import DICE, quiet, recipe_of, run_briskly, same_weights, sampled

from steprl.batch import rows
from steprl.trainers.learning import Learned, learn, trained_of
from steprl.trainers.loop import Trainer
from steprl.trainers.parts import Parts, build_parts
from steprl.trainers.recipe import Recipe
from steprl.trainers.report import iteration_metrics
from steprl.trainers.storage.curves import CRITIC_PANELS, PANELS
from steprl.trainers.storage.run_folder import RunFolder
from steprl.types import StopReason, TrajectoryGroup

PPO = ("algorithm.estimator=gae", "critic.learner.lr=1e-2", "evaluation.tasks=0")
HESITANT = {**DICE, "engine": {**DICE["engine"], "args": {"replies": ["0", call("hint")]}}}
"""Half of the actions are the last."""

KL = ("algorithm.args.kl_beta=0.1", "learner.loss.beta=0.1")


async def batch(recipe: Recipe, parts: Parts, seed: int = 0) -> list[TrajectoryGroup]:
    """One rollout batch."""
    config = recipe.rollout
    return await parts.player.pool.collect(
        parts.train_tasks[: config.groups],
        label="batch",
        seed=seed,
        group_size=config.group_size,
        sampling=config.sampling(parts.player.renderer.stop_ids),
        max_steps=config.max_steps,
        progress=None,
    )


def played(recipe: Recipe, seed: int = 0) -> tuple[Parts, list[TrajectoryGroup]]:
    """Fresh parts and a batch."""
    parts = build_parts(recipe)
    return parts, asyncio.run(batch(recipe, parts, seed))


def taught(recipe: Recipe, number: int = 1) -> tuple[Parts, Learned]:
    """What one iteration makes of a batch."""
    parts, groups = played(recipe)
    return parts, learn(recipe, parts, number, groups)


def figures(learned: Learned) -> dict[str, float]:
    return iteration_metrics([], dropped=0, learned=learned, rollout_seconds=1.0, update_seconds=1.0)


def tensors(module: Any) -> list[np.ndarray[Any, Any]]:
    return [tensor.detach().numpy().copy() for tensor in module.state_dict().values()]


def same(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# --- what is built ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "critic", "reference"),
    [
        (("algorithm.estimator=grpo",), False, False),
        (("algorithm.estimator=gae",), True, False),
        (("algorithm.estimator=gae", "algorithm.args.kl_beta=0.1"), True, True),
        (("learner.loss.beta=0.1",), False, True),
        (("algorithm.estimator=reinforce_pp", "algorithm.args.kl_beta=0.1"), False, True),
    ],
)
def test_only_what_the_algorithm_needs_is_built(
    tiny_policy: str, tmp_path: Path, options: tuple[str, ...], critic: bool, reference: bool
) -> None:
    models = build_parts(recipe_of(DICE, tiny_policy, tmp_path, *options)).models
    assert (models.critic is not None, models.reference is not None) == (critic, reference)


def test_a_separate_critic_has_a_trunk_of_its_own_and_a_shared_one_the_policys(
    tiny_policy: str, tmp_path: Path
) -> None:
    own = build_parts(recipe_of(DICE, tiny_policy, tmp_path, *PPO)).models
    assert own.critic is not None and own.critic.trunk is not own.learner.model.base_model
    assert own.learner.critic is None
    shared = build_parts(recipe_of(DICE, tiny_policy, tmp_path, *PPO, "critic.kind=shared")).models
    assert shared.critic is not None and shared.critic.trunk is shared.learner.model.base_model
    assert shared.learner.critic is shared.critic
    detached = ("critic.kind=shared", "critic.detach=true")
    apart = build_parts(recipe_of(DICE, tiny_policy, tmp_path, *PPO, *detached)).models
    assert apart.critic is not None and apart.learner.critic is None


def test_a_shared_float64_trunk_has_a_float64_head(tiny_policy: str, tmp_path: Path) -> None:
    wide = ("critic.kind=shared", "critic.learner.dtype=float64", "learner.dtype=float64")
    models = build_parts(recipe_of(DICE, tiny_policy, tmp_path, *PPO, *wide)).models
    assert models.critic is not None and str(models.critic.head.weight.dtype) == "torch.float64"


# --- scores -------------------------------------------------------------------------------------------


def test_scores_are_those_of_policy_reference_and_critic(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(HESITANT, tiny_policy, tmp_path, *PPO, *KL, "rollout.max_steps=2")
    parts, groups = played(recipe)
    models, trained = parts.models, trained_of(groups)
    token_rows = rows(trained)
    learn(recipe, parts, 1, groups)
    scores = models.scores(trained, token_rows, max_context=64)
    assert models.critic is not None and scores.values is not None and scores.ref_logprobs is not None
    keys = {t.key(index) for t in trained for index in range(len(t.steps))}
    assert set(scores.old_logprobs) == set(scores.ref_logprobs) == set(scores.values) == keys
    assert any(values.any() for values in scores.values.values())
    cut = [t for t in trained if t.stop_reason.bootstraps]
    assert cut and scores.bootstrap_values == models.critic.bootstrap_values(cut, max_context=64)


@pytest.mark.parametrize("unit", ["token", "step"])
def test_a_trajectory_that_a_limit_ended_goes_on_with_the_value_of_what_follows(
    tiny_policy: str, tmp_path: Path, unit: str
) -> None:
    """After the final prompt, or after the last action where the engine's context has no room for it."""
    hints = {**DICE, "engine": {**DICE["engine"], "args": {"replies": [call("hint")]}}}
    options = (*PPO, f"algorithm.args.credit={unit}", "algorithm.args.whiten=false")
    _, (long, *_) = played(recipe_of(hints, tiny_policy, tmp_path, *options, "rollout.max_steps=2"))
    final = long.trajectories[0].final_prompt_ids
    assert final is not None
    for steps, room, reason in (
        (2, len(final), StopReason.MAX_STEPS),
        (2, len(final) - 1, StopReason.MAX_STEPS),  # where another limit came first
        (3, len(final) - 1, StopReason.CONTEXT_FULL),
    ):
        limits = (f"rollout.max_steps={steps}", f"engine.max_context={room}")
        recipe = recipe_of(hints, tiny_policy, tmp_path, *options, *limits)
        parts, groups = played(recipe)
        critic = parts.models.critic
        assert critic is not None
        torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
        one = groups[0].trajectories[0]
        last = one.steps[-1]
        assert one.stop_reason is reason and one.final_prompt_ids is not None and one.reward == 0.0
        reads = np.concatenate([last.prompt_ids, last.action_ids])
        if room == len(final):
            reads = one.final_prompt_ids
        (expected,) = critic.bootstrap([reads])
        credits = learn(recipe, parts, 1, groups).credits
        assert credits is not None and credits.returns is not None and abs(expected) > 1e-3
        assert credits.returns[one.key(len(one.steps) - 1)][-1] == pytest.approx(expected, rel=1e-4)


def test_the_reference_is_the_policy_until_its_first_step_and_then_stays(
    tiny_policy: str, tmp_path: Path
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, *PPO, *KL)
    parts, groups = played(recipe)
    trained, models = trained_of(groups), parts.models
    token_rows = rows(trained)
    before = models.scores(trained, token_rows, max_context=4096)
    assert before.ref_logprobs is before.old_logprobs
    learn(recipe, parts, 1, groups)
    after = models.scores(trained, token_rows, max_context=4096)
    assert after.ref_logprobs is not None
    for key, old in before.old_logprobs.items():
        assert np.array_equal(after.ref_logprobs[key], old, equal_nan=True)
    assert any(not np.array_equal(after.old_logprobs[k], v) for k, v in before.old_logprobs.items())


# --- updates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [(), ("critic.kind=shared",), ("critic.kind=shared", "critic.detach=true")])
@pytest.mark.parametrize("credit", ["token", "step"])
def test_every_kind_of_critic_learns_beside_the_policy(
    tiny_policy: str, tmp_path: Path, kind: tuple[str, ...], credit: str
) -> None:
    options = (
        *PPO,
        *kind,
        f"algorithm.args.credit={credit}",
        "algorithm.epochs=2",
        "algorithm.minibatches=2",
    )
    recipe = recipe_of(DICE, tiny_policy, tmp_path, *options)
    parts, groups = played(recipe)
    critic = parts.models.critic
    assert critic is not None
    policy, head = tensors(parts.learner.model), tensors(critic.head)
    learned = learn(recipe, parts, 1, groups)
    assert not same(policy, tensors(parts.learner.model)) and not same(head, tensors(critic.head))
    found = figures(learned)
    assert found["learner/updates"] == found["critic/updates"] == 4
    assert "learner/value_loss" not in found and found["critic/value_loss"] > 0
    trained = [step for t in trained_of(groups) for step in t.steps]
    targets = len(trained) if credit == "step" else sum(int(step.sampled_mask.sum()) for step in trained)
    assert found["critic/value_targets"] == 2 * targets  # a count: of both epochs


@pytest.mark.parametrize("kind", [(), ("critic.kind=shared",)])
def test_in_a_warm_up_the_critic_learns_alone(
    tiny_policy: str, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, *PPO, *kind, "critic.warmup_iterations=1")
    parts, groups = played(recipe)
    critic = parts.models.critic
    assert critic is not None
    policy, head = tensors(parts.learner.model), tensors(critic.head)
    found = figures(learn(recipe, parts, 1, groups))
    assert same(policy, tensors(parts.learner.model)) and not same(head, tensors(critic.head))
    assert found["learner/updates"] == 0 and found["critic/updates"] == 1
    assert figures(learn(recipe, parts, 2, groups))["learner/updates"] == 1
    assert not same(policy, tensors(parts.learner.model))


def test_a_warm_up_without_a_critic_is_none(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, "critic.warmup_iterations=1", "evaluation.tasks=0")
    _, learned = taught(recipe)
    found = figures(learned)
    assert found["learner/updates"] == 1 and not [name for name in found if name.startswith("critic/")]


def test_advantages_are_told_by_the_index_of_the_step(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(HESITANT, tiny_policy, tmp_path, "algorithm.estimator=reinforce_pp")
    parts, groups = played(recipe)
    learned = learn(recipe, parts, 1, groups)
    assert learned.credits is not None
    by_step: dict[int, list[float]] = {}
    means = []
    for trajectory in trained_of(groups):
        sizes = []
        for index, step in enumerate(trajectory.steps):
            advantages = learned.credits.advantages[trajectory.key(index)][step.sampled_mask]
            sizes.append(float(np.abs(advantages).mean()))
            by_step.setdefault(index, []).append(sizes[-1])
        means.append(np.mean(sizes))
    found = {name: value for name, value in figures(learned).items() if name.startswith("credit/")}
    assert found.pop("credit/abs_advantage") == pytest.approx(np.mean(means))
    assert len(by_step) == 3
    assert found == pytest.approx(
        {f"credit/abs_advantage_step_{index}": np.mean(sizes) for index, sizes in by_step.items()}
    )


# --- a run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_a_killed_run_with_critic_and_reference_resumes_to_the_same_bits(
    tiny_policy: str, tmp_path: Path, kind: str
) -> None:
    options = (*PPO, *KL, f"critic.kind={kind}", "train.iterations=3")
    straight = run_briskly(recipe_of(DICE, tiny_policy, tmp_path / "straight", *options))
    killed_after(recipe_of(DICE, tiny_policy, tmp_path / "killed", *options), 2)
    killed = tmp_path / "killed" / "run"
    resume(killed)
    assert sampled(killed) == sampled(straight) and iterations(killed) == [1, 2, 3]
    assert same_weights(killed, straight)
    saved = [RunFolder(folder).checkpoints()[-1] for folder in (killed, straight)]
    one, other = (load_file(folder / "critic.safetensors") for folder in saved)
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    assert any(name.startswith("trunk.") for name in one) == (kind == "separate")
    for line, again in zip(RunFolder(straight).metrics(), RunFolder(killed).metrics(), strict=True):
        names = [name for name in line if not name.startswith(("time/", "speed/"))]
        assert {name: line[name] for name in names} == {name: again[name] for name in names}


def test_a_checkpoint_vouches_for_the_critics_files(tiny_policy: str, tmp_path: Path) -> None:
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *PPO, "train.iterations=1"))
    (saved,) = RunFolder(folder).checkpoints()
    listed = (saved / "files.json").read_text()
    for name in ("critic.safetensors", "critic_optimiser.pt"):
        assert name in listed and (saved / name).is_file()
        assert RunFolder.state(saved).iteration == 1


def test_rolling_back_takes_the_critic_along(tiny_policy: str, tmp_path: Path) -> None:
    recipe = recipe_of(DICE, tiny_policy, tmp_path, *PPO, "watch.action=rollback")
    parts = build_parts(recipe)
    critic = parts.models.critic
    assert critic is not None
    trainer = Trainer(recipe, parts, RunFolder.create(recipe), quiet())
    trainer.draw = lambda: None  # type: ignore[method-assign]
    trainer.save()
    policy, trunk, head = tensors(parts.learner.model), tensors(critic.trunk), tensors(critic.head)

    async def stray() -> None:
        await trainer.iterate()
        await trainer.iterate()  # a head of zeros says nothing to its trunk: the first moved it alone
        assert not same(head, tensors(critic.head)) and not same(trunk, tensors(critic.trunk))
        await trainer._roll_back()

    asyncio.run(stray())
    assert same(policy, tensors(parts.learner.model))
    assert same(trunk, tensors(critic.trunk)) and same(head, tensors(critic.head))


def test_the_curves_have_a_row_more_with_a_critic(tiny_policy: str, tmp_path: Path) -> None:
    folder = run_briskly(recipe_of(DICE, tiny_policy, tmp_path, *PPO, *KL, "train.iterations=2"))
    line = RunFolder(folder).metrics()[-1]
    for _, lines in (*PANELS, *CRITIC_PANELS):
        drawn = [key for key, _ in lines if line.get(key) is not None]
        assert drawn or lines[0][0] == "reward/success_share", lines
    assert len(PANELS) % 3 == len(CRITIC_PANELS) % 3 == 0
