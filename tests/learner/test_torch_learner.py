"""Optimiser steps: what they add up, when they are refused, and how they continue after a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episodes import step, trajectory
from tiny_model import tiny_llama
from transformers import PreTrainedModel

from steprl.batch import Aggregation, rows
from steprl.errors import CheckpointError, ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.torch_learner import TorchLearner
from steprl.types import MiniBatch, Row, Sample, Sampling
from steprl.weights.source import FullWeights

State = dict[str, torch.Tensor]


def learner(model: PreTrainedModel | None = None, **config: Any) -> TorchLearner:
    model = tiny_llama() if model is None else model
    return TorchLearner(model, LearnerConfig(**config), source=FullWeights(model))


def weights_of(learner: TorchLearner) -> State:
    return {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}


def same(ours: State, others: State) -> bool:
    return ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)


def row_of(uid: str, prompt: Sequence[int], action: Sequence[int], **fields: Any) -> Row:
    (row,) = rows([trajectory(uid, [step(prompt, action, **fields)])])
    return row


def batch_of(
    learner: TorchLearner,
    rows: Sequence[Row],
    advantages: Sequence[float],
    *,
    rule: str = "token_mean",
    micro_batches: tuple[tuple[int, ...], ...] | None = None,
) -> MiniBatch:
    """One trajectory per row, each with one advantage; a row without one (NaN) does not train."""
    masks = {
        row.step_keys[0]: np.full(len(row.action_positions), not np.isnan(a))
        for row, a in zip(rows, advantages, strict=True)
    }
    weights = Aggregation(rule=rule).weights(masks)
    samples = tuple(
        Sample(
            row=row,
            advantages=np.full(len(row.action_positions), 0.0 if np.isnan(advantage) else advantage),
            old_logprobs=old,
            loss_mask=masks[row.step_keys[0]],
            weights=weights[row.step_keys[0]],
        )
        for row, advantage, old in zip(rows, advantages, learner.score(rows), strict=True)
    )
    return MiniBatch(samples=samples, micro_batches=micro_batches or (tuple(range(len(rows))),))


ROWS = [row_of("a", [1, 2, 3], [4]), row_of("b", [5], list(range(10, 19))), row_of("c", [7] * 5, [8, 9])]


@pytest.mark.parametrize("micro_batches", [((0, 1),), ((0,), (1,)), ((1,), (0,))])
def test_one_and_nine_tokens_have_a_token_mean_of_a_tenth(micro_batches: tuple[tuple[int, ...], ...]) -> None:
    policy = learner()
    # with ρ = 1 the loss of a token is −A: 1 for the single one, 0 for the nine
    batch = batch_of(policy, ROWS[:2], [-1.0, 0.0], micro_batches=micro_batches)
    assert policy.update(batch)["loss"] == pytest.approx(0.1, rel=1e-5)


def test_fresh_weights_have_ratio_1_whatever_the_padding() -> None:
    policy = learner(token_budget=10)  # every row is scored alone, and trained beside longer ones
    cold = row_of("d", [3, 1], [4, 1, 5], sampling=Sampling(temperature=0.7))
    figures = policy.update(batch_of(policy, [*ROWS, cold], [1.0, -1.0, 0.5, 2.0]))
    assert figures["max_ratio_deviation"] < 1e-4
    assert figures["clip_share"] == 0.0
    assert figures["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert 0 < figures["entropy"] < np.log(64)


def test_a_step_raises_what_was_good_and_lowers_what_was_bad() -> None:
    policy = learner(lr=1e-2)
    before = policy.score(ROWS[:2])
    policy.update(batch_of(policy, ROWS[:2], [1.0, -1.0], rule="traj_mean_token_mean"))
    after = policy.score(ROWS[:2])
    assert after[0].mean() > before[0].mean()
    assert after[1].mean() < before[1].mean()


def test_scores_come_in_the_order_of_the_rows() -> None:
    policy = learner()
    empty = dataclasses.replace(
        ROWS[0],
        **dict.fromkeys(
            ["action_positions", "step_index", "token_index", "temperature", "engine_logprobs"], []
        ),
    )
    alone = [policy.score([row])[0] for row in ROWS]
    together = policy.score([ROWS[2], empty, ROWS[0], ROWS[1]])
    for ours, expected in zip(together, [alone[2], np.zeros(0), alone[0], alone[1]], strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_end_of_text_is_trained_although_it_is_the_padding_too() -> None:
    policy = learner(tiny_llama(eos_token_id=0, pad_token_id=0), lr=1e-2)
    ends = row_of("a", [1, 2, 3], [9, 0])
    (before,) = policy.score([ends])
    figures = policy.update(batch_of(policy, [ends, ROWS[1]], [1.0, np.nan]))
    assert figures["tokens"] == 2
    assert policy.score([ends])[0][1] > before[1]


def test_figures_are_means_over_trained_tokens_however_the_batch_is_cut() -> None:
    engine = row_of("a", [1, 2], [3, 4, 5], logprobs=[-4.0, -4.0, -4.0])
    found = []
    for micro_batches in (((0, 1, 2),), ((2, 0), (1,))):
        policy = learner()
        batch = batch_of(policy, [engine, *ROWS[1:]], [1.0, -1.0, np.nan], micro_batches=micro_batches)
        drifted = [
            dataclasses.replace(sample, old_logprobs=sample.old_logprobs - 0.3 * (sample.advantages > 0))
            for sample in batch.samples
        ]
        found.append(policy.update(dataclasses.replace(batch, samples=tuple(drifted))))
        gap = np.abs(drifted[0].old_logprobs + 4.0).mean()
        assert found[-1]["engine_gap"] == pytest.approx(gap, rel=1e-5)
    figures = found[0]
    assert figures["tokens"] == 12 and figures["rows"] == 2
    assert figures["clip_share"] == 3 / 12
    assert figures["max_ratio_deviation"] == pytest.approx(np.exp(0.3) - 1, rel=1e-4)
    assert figures["approx_kl"] == pytest.approx((np.exp(0.3) - 1 - 0.3) * 3 / 12, rel=1e-3)
    assert figures["padding_share"] == pytest.approx(1 - (5 + 10) / 20)
    assert found[1]["padding_share"] == 0.0
    for name in figures.keys() - {"padding_share"}:
        assert found[1][name] == pytest.approx(figures[name], rel=1e-3, abs=1e-6), name


def test_no_engine_gap_without_engine_logprobs() -> None:
    policy = learner()
    assert "engine_gap" not in policy.update(batch_of(policy, ROWS, [1.0, 1.0, 1.0]))


def optimiser_state(policy: TorchLearner) -> list[torch.Tensor]:
    state = policy.optimiser.state()["adam"]["state"]
    return [value.clone() for entry in state.values() for value in entry.values()]


@pytest.mark.parametrize("broken", [np.inf, -np.inf, 3e38])
def test_a_non_finite_loss_or_gradient_leaves_everything_bit_for_bit(broken: float) -> None:
    policy = learner(lr=1e-2)
    policy.update(batch_of(policy, ROWS, [1.0, -1.0, 1.0]))
    weights, state = weights_of(policy), optimiser_state(policy)
    figures = policy.update(batch_of(policy, ROWS, [broken, 1.0, 1.0], micro_batches=((0,), (1, 2))))
    assert (figures["skipped_steps"], figures["optimiser_steps"]) == (1.0, 0.0)
    assert same(weights, weights_of(policy))
    assert all(map(torch.equal, state, optimiser_state(policy)))
    figures = policy.update(batch_of(policy, ROWS, [1.0, -1.0, 1.0]))
    assert (figures["skipped_steps"], figures["optimiser_steps"]) == (0.0, 1.0)
    assert np.isfinite(figures["grad_norm"]) and not same(weights, weights_of(policy))


@pytest.mark.parametrize("advantages", [[np.nan, np.nan, np.nan], [0.0, 0.0, 0.0]])
def test_nothing_to_learn_is_no_step_even_with_momentum(advantages: list[float]) -> None:
    policy = learner(lr=1e-2, weight_decay=0.1)
    policy.update(batch_of(policy, ROWS, [1.0, -1.0, 1.0]))
    weights, state = weights_of(policy), optimiser_state(policy)
    figures = policy.update(batch_of(policy, ROWS, advantages, micro_batches=((0,), (2, 1))))
    assert figures["loss"] == figures["grad_norm"] == figures["optimiser_steps"] == 0.0
    assert figures["skipped_steps"] == 0.0
    assert same(weights, weights_of(policy))
    assert all(map(torch.equal, state, optimiser_state(policy)))


def test_a_masked_micro_batch_contributes_nothing() -> None:
    after = []
    for rows_, advantages, cut in (
        (ROWS, [1.0, np.nan, -1.0], ((0,), (1,), (2,))),
        ([ROWS[0], ROWS[2]], [1.0, -1.0], ((0,), (1,))),
    ):
        policy = learner(lr=1e-2)
        policy.update(batch_of(policy, rows_, advantages, micro_batches=cut))
        after.append(weights_of(policy))
    assert same(*after)


def test_an_empty_mini_batch_is_no_step() -> None:
    figures = learner().update(MiniBatch(samples=(), micro_batches=()))
    assert figures["optimiser_steps"] == figures["tokens"] == figures["rows"] == 0.0


def test_warm_up_counts_steps_that_were_taken() -> None:
    policy = learner(lr=1e-3, warmup_steps=4)
    advantages = [[1.0] * 3, [np.nan] * 3, [np.inf, 1.0, 1.0], [1.0] * 3, [1.0] * 3, [1.0] * 3, [1.0] * 3]
    lrs = [policy.update(batch_of(policy, ROWS, a))["lr"] for a in advantages]
    assert lrs == pytest.approx([2.5e-4, 5e-4, 5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])


def test_after_warm_up_the_step_size_falls_to_its_final_value_and_stays() -> None:
    policy = learner(lr=1e-3, warmup_steps=2, decay_steps=4, final_lr=2e-4)
    lrs = [policy.update(batch_of(policy, ROWS, [1.0] * 3))["lr"] for _ in range(8)]
    assert lrs == pytest.approx([5e-4, 1e-3, 1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4])


def test_long_gradients_are_cut_and_reported_as_they_were() -> None:
    moved = []
    for max_grad_norm in (float("inf"), 1e-9):
        policy = learner(lr=1e-2, max_grad_norm=max_grad_norm)
        before = weights_of(policy)["lm_head.weight"]
        assert policy.update(batch_of(policy, ROWS, [1.0, 2.0, 3.0]))["grad_norm"] > 0.1
        moved.append((weights_of(policy)["lm_head.weight"] - before).abs().max())
    # Adam divides by the gradient's size plus 1e-8: only below that does a shorter gradient move less
    assert moved[1] < moved[0] / 5


def test_bfloat16_passes_keep_float32_weights() -> None:
    policy = learner(dtype="bfloat16")
    figures = policy.update(batch_of(policy, ROWS, [1.0, -1.0, 1.0]))
    assert policy.model.dtype == torch.float32
    assert figures["optimiser_steps"] == 1.0 and figures["max_ratio_deviation"] < 0.2
    assert not np.array_equal(policy.score(ROWS)[1], learner().score(ROWS)[1])


def test_greedy_rows_are_refused() -> None:
    greedy = row_of("a", [1], [2], sampling=Sampling(temperature=0.0))
    with pytest.raises(ConfigError, match="temperature 0"):
        learner().score([greedy])


def test_the_source_shows_the_trained_weights() -> None:
    policy = learner(lr=1e-2)
    before = {name: tensor.clone() for name, tensor in policy.source().tensors()}
    policy.update(batch_of(policy, ROWS, [1.0, -1.0, 1.0]))
    assert not torch.equal(dict(policy.source().tensors())["lm_head.weight"], before["lm_head.weight"])


@pytest.mark.parametrize("tied", [False, True])
def test_a_resumed_learner_takes_the_same_next_step_bit_for_bit(tmp_path: Path, tied: bool) -> None:
    config = {"lr": 1e-2, "warmup_steps": 5}
    policy = learner(tiny_llama(tie_word_embeddings=tied), **config)
    for _ in range(2):
        policy.update(batch_of(policy, ROWS, [1.0, -1.0, 1.0]))
    policy.save(str(tmp_path))
    resumed = learner(tiny_llama(seed=1, tie_word_embeddings=tied), **config)
    resumed.load(str(tmp_path))
    assert same(weights_of(policy), weights_of(resumed))
    for one in (policy, resumed):
        one.update(batch_of(one, ROWS, [1.0, -1.0, -1.0]))
    assert same(weights_of(policy), weights_of(resumed))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"vocab": 80}, r"'model.embed_tokens.weight' has shape \(64, 32\) there and \(80, 32\) here"),
        ({"num_hidden_layers": 3}, r"no tensor 'model.layers.2"),
        ({"num_hidden_layers": 1}, r"a tensor 'model.layers.1.* that the model has not"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, other: dict[str, Any], difference: str
) -> None:
    learner().save(str(tmp_path))
    resumed = learner(tiny_llama(**other))
    before = weights_of(resumed)
    with pytest.raises(CheckpointError, match=f"belongs to another model: .*{difference}"):
        resumed.load(str(tmp_path))
    assert same(before, weights_of(resumed))


def test_a_partial_checkpoint_is_refused(tmp_path: Path) -> None:
    policy = learner()
    with pytest.raises(CheckpointError, match="no optimiser.pt"):
        policy.load(str(tmp_path / "nowhere"))
    policy.save(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        policy.load(str(tmp_path))
