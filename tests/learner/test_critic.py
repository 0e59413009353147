"""Critics: what they read where, what moves them and what does not, and how they continue after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episodes import grouped, step, trajectory
from plain_model import plain_model
from tiny_model import tiny_llama
from transformers import PreTrainedModel

from steprl.batch import rows
from steprl.credit import Gae
from steprl.errors import CheckpointError
from steprl.learner.config import LearnerConfig
from steprl.learner.critic import Critic
from steprl.learner.critic_config import CriticConfig
from steprl.learner.losses import value_clipped, value_losses
from steprl.learner.torch_learner import TorchLearner
from steprl.types import MiniBatch, Row, Sample, Scores, StopReason, Trajectory
from steprl.weights.source import FullWeights

FIRST = step([1, 2, 3], [4, 5])
TWO_STEPS = trajectory(
    "a",
    [FIRST, step([1, 2, 3, 4, 5, 6], [7, 8, 9], sampled=[False, True, True])],
    stop_reason=StopReason.MAX_STEPS,
)
OTHER = trajectory("b", [step([7, 7], [3, 1, 2])])


def critic(
    model: PreTrainedModel | None = None, *, head: float = 0.3, lr: float = 1e-2, **options: Any
) -> Critic:
    """A critic in float64 whose head is not 0, unless told so."""
    learner = LearnerConfig(dtype="float64", lr=lr)
    made = Critic(plain_model() if model is None else model, CriticConfig(learner=learner, **options))
    with torch.no_grad():
        made.head.weight.copy_(head * torch.linspace(-1, 1, made.head.in_features))
    return made


def expected_value(made: Critic, ids: Sequence[int]) -> float:
    """The head on the hidden state after the last of ``ids``, computed on its own."""
    with torch.no_grad():
        hidden = made.trunk(torch.tensor([list(ids)])).last_hidden_state[0, -1]
        return float(hidden @ made.head.weight[0] + made.head.bias[0])


def sample_of(
    row: Row, positions: list[int], returns: list[float], old: list[float], **changed: Any
) -> Sample:
    n, v = len(row.action_positions), len(positions)
    fields: dict[str, Any] = {
        "advantages": np.zeros(n),
        "old_logprobs": np.full(n, -3.0),
        "loss_mask": np.ones(n, dtype=bool),
        "weights": np.full(n, 1 / n),
        "value_positions": positions,
        "returns": returns,
        "old_values": old,
        "value_weights": np.full(v, 1 / max(v, 1)),
    }
    return Sample(row=row, **{**fields, **changed})


def batch(*samples: Sample) -> MiniBatch:
    return MiniBatch(samples=samples, micro_batches=(tuple(range(len(samples))),))


def targets() -> MiniBatch:
    two, other = rows([TWO_STEPS, OTHER])
    return batch(sample_of(two, [2, 5], [1.0, 0.5], [0.0, 0.0]), sample_of(other, [1], [-1.0], [0.0]))


def state(module: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in module.state_dict().values()]


def same(ours: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, ours, others))


# --- reading ------------------------------------------------------------------------------------------


def test_a_value_is_read_before_its_token() -> None:
    made = critic()
    two, other = rows([TWO_STEPS, OTHER])
    values = made.values([two, other])
    ids = two.ids.tolist()
    assert values[0].tolist() == pytest.approx(
        [expected_value(made, ids[:p]) for p in (3, 4, 7, 8)], rel=1e-5
    )
    assert values[0].dtype == np.float32
    assert values[1].tolist() == pytest.approx(
        [expected_value(made, [7, 7, 3, 1][:p]) for p in (2, 3, 4)], rel=1e-5
    )


def test_a_score_begins_with_the_value_of_the_state() -> None:
    made = critic()
    scores = made.score([TWO_STEPS, OTHER], rows([TWO_STEPS, OTHER]))
    second = scores[TWO_STEPS.key(1)]
    # the first action token was forced, but V(o_t) is there all the same
    assert second[0] == pytest.approx(expected_value(made, [1, 2, 3, 4, 5, 6]), rel=1e-5)
    assert np.isfinite(second).all()
    unsampled = trajectory("c", [step([1], [2, 3], sampled=[True, False])])
    assert np.isnan(made.score([unsampled], rows([unsampled]))[unsampled.key(0)][1])


def test_merged_or_not_the_values_are_the_same() -> None:
    made = critic()
    merged, apart = (made.score([TWO_STEPS], rows([TWO_STEPS], merge=merge)) for merge in (True, False))
    for key, values in merged.items():
        np.testing.assert_allclose(values, apart[key], rtol=1e-6)


def test_a_fresh_critic_knows_nothing() -> None:
    fresh = Critic(tiny_llama(), CriticConfig())
    assert not np.concatenate(fresh.values(rows([TWO_STEPS, OTHER]))).any()


def with_final(ids: list[int] | None) -> Trajectory:
    return replace(TWO_STEPS, final_prompt_ids=None if ids is None else np.array(ids, dtype=np.int32))


WHAT_FOLLOWS = [
    ([9, 8, 7], None, [9, 8, 7]),
    ([9, 8, 7], 3, [9, 8, 7]),
    ([9, 8, 7], 2, [1, 2, 3, 4, 5, 6, 7, 8, 9]),  # too long: after the last action token
    (None, None, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
]
"""Final prompt, longest context, and what the value is read after."""


@pytest.mark.parametrize(("final", "max_context", "read"), WHAT_FOLLOWS)
def test_what_a_truncated_trajectory_continues_with(
    final: list[int] | None, max_context: int | None, read: list[int]
) -> None:
    made = critic()
    found = made.bootstrap_values([with_final(final), OTHER], max_context=max_context)
    assert found == {"a": pytest.approx(expected_value(made, read), rel=1e-6)}  # OTHER was terminated


@pytest.mark.parametrize("unit", ["token", "step"])
@pytest.mark.parametrize(("final", "max_context", "read"), WHAT_FOLLOWS)
def test_the_credit_of_a_truncated_trajectory_goes_on_with_what_follows(
    unit: Any, final: list[int] | None, max_context: int | None, read: list[int]
) -> None:
    """δ_T = r_T + γ·V(o_{T+1}) − V(o_T), from a record and a critic; without the limit r_T − V(o_T)."""
    made, one = critic(), with_final(final)
    one = replace(one, steps=(one.steps[0], replace(one.steps[1], reward=2.0)))
    before = [1, 2, 3, 4, 5, 6] if unit == "step" else [1, 2, 3, 4, 5, 6, 7, 8]
    for reason, after in (
        (StopReason.MAX_STEPS, 0.5 * expected_value(made, read)),
        (StopReason.TERMINATED, 0),
    ):
        ended = replace(one, stop_reason=reason)
        scores = Scores(
            values=made.score([ended], rows([ended])),
            bootstrap_values=made.bootstrap_values([ended], max_context=max_context),
        )
        credits = Gae(credit=unit, gamma=0.5, lam=0.0, whiten=False)(grouped(ended), scores)
        delta = 2.0 + after - expected_value(made, before)
        assert credits.advantages[ended.key(1)][-1] == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize("reason", list(StopReason))
def test_which_stop_reasons_bootstrap(reason: StopReason) -> None:
    one = trajectory("a", [FIRST], stop_reason=reason)
    bootstraps = reason in (StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)
    assert set(critic().bootstrap_values([one])) == ({"a"} if bootstraps else set())


# --- the loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "old", "loss", "slope", "clipped"),
    [
        (0.3, 0.0, 0.5 * 0.7**2, -0.7, False),  # near the old value: plain regression
        (0.8, 0.0, 0.5 * 0.5**2, 0.0, True),  # gone far enough towards the return
        (-0.8, 0.0, 0.5 * 1.8**2, -1.8, False),  # gone the other way: the way back stays open
        (0.8, 0.6, 0.5 * 0.2**2, -0.2, False),
    ],
)
def test_the_clipped_value_loss(value: float, old: float, loss: float, slope: float, clipped: bool) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    given = (torch.tensor([1.0]).double(), torch.tensor([old]).double())
    found = value_losses(values, *given, value_clip=0.5)
    found.sum().backward()
    assert values.grad is not None
    assert (found.item(), values.grad.item()) == pytest.approx((loss, slope))
    assert value_clipped(values, *given, value_clip=0.5).item() == clipped
    assert value_losses(values, *given, value_clip=None).item() == pytest.approx(0.5 * (value - 1) ** 2)


def test_an_update_reports_trained_positions_only() -> None:
    made = critic(value_clip=0.1)
    two, other = rows([TWO_STEPS, OTHER])
    v = [expected_value(made, ids) for ids in ([1, 2, 3], [1, 2, 3, 4, 5, 6], [7, 7])]
    returns, old = np.array([1.0, 0.5, -1.0]), np.array(v) - [0.5, 0.0, 0.0]
    first = sample_of(two, [2, 5], returns[:2].tolist(), old[:2].tolist(), value_weights=[0.25, 0.25])
    second = sample_of(other, [1], [-1.0], [old[2]], value_weights=[0.5])
    figures = made.update(batch(first, second))
    squares = (np.array(v) - returns) ** 2
    squares[0] = max(squares[0], (v[0] - 0.4 - 1.0) ** 2)
    assert figures["value_loss"] == pytest.approx(0.5 * squares @ [0.25, 0.25, 0.5], rel=1e-6)
    assert figures["explained_variance"] == pytest.approx(1 - np.var(returns - v) / np.var(returns), rel=1e-6)
    assert figures["value_targets"] == 3 and figures["optimiser_steps"] == 1
    assert figures["value_mean"] == pytest.approx(np.mean(v), rel=1e-6)
    assert figures["value_clip_share"] == pytest.approx(float(squares[0] > (v[0] - 1.0) ** 2) / 3)


def test_equal_returns_have_no_variance_to_explain() -> None:
    (row,) = rows([OTHER])
    figures = critic().update(batch(sample_of(row, [1, 2], [0.1, 0.1], [0.0, 0.0])))
    assert "explained_variance" not in figures


def test_a_batch_without_targets_is_no_step() -> None:
    made = critic()
    (row,) = rows([OTHER])
    bare = sample_of(row, [], [], [])
    figures = made.update(batch(replace(bare, value_positions=None), bare))
    assert figures["optimiser_steps"] == figures["value_targets"] == figures["value_loss"] == 0.0


def test_targets_without_old_values_are_refused() -> None:
    (row,) = rows([OTHER])
    with pytest.raises(ValueError, match="value targets without old_values"):
        critic().update(batch(replace(sample_of(row, [1], [1.0], [0.0]), old_values=None)))


@pytest.mark.parametrize("options", [{}, {"kind": "shared", "detach": True}, {"kind": "shared"}])
def test_a_critic_learns_its_returns(options: dict[str, Any]) -> None:
    made = critic(head=0.0, value_clip=None, lr=0.05, **options)
    first, *_, last = [made.update(targets())["value_loss"] for _ in range(150)]
    assert last < 0.02 * first


def test_a_non_finite_return_leaves_everything_bit_for_bit() -> None:
    made = critic()
    before = state(made.head), state(made.trunk)
    figures = made.update(batch(sample_of(rows([OTHER])[0], [1], [np.inf], [0.0])))
    assert (figures["skipped_steps"], figures["optimiser_steps"]) == (1.0, 0.0)
    assert same(before[0], state(made.head)) and same(before[1], state(made.trunk))


# --- separate, shared, joint --------------------------------------------------------------------------


def test_a_separate_critic_moves_its_trunk_and_lets_the_language_head_go() -> None:
    made = critic(tiny_llama(dtype=torch.float64))
    before = state(made.trunk)
    made.update(targets())
    assert not same(before, state(made.trunk))
    assert not any("lm_head" in name for name, _ in made.trunk.named_parameters())


@pytest.mark.parametrize("detach", [True, False])
def test_a_shared_critic_alone_moves_its_head_only(detach: bool) -> None:
    model = plain_model()
    made = critic(model, kind="shared", detach=detach)
    before, head = state(model), state(made.head)
    made.update(targets())
    assert same(before, state(model)) and not same(head, state(made.head))
    assert all(p.grad is None for p in model.parameters())


def joint(**options: Any) -> tuple[TorchLearner, Critic]:
    model = plain_model()
    made = critic(model, kind="shared", **options)
    config = LearnerConfig(dtype="float64", lr=1e-2)
    return TorchLearner(model, config, source=FullWeights(model), critic=made), made


def test_a_joint_critic_learns_in_the_policys_pass() -> None:
    learner, made = joint()
    before, head = state(learner.model), state(made.head)
    figures = learner.update(targets())  # all advantages are 0: what moves the trunk is the value loss
    assert not same(before, state(learner.model)) and not same(head, state(made.head))
    assert figures["loss"] == pytest.approx(0.5 * figures["value_loss"])
    assert figures["value_targets"] == 3 and figures["rows"] == 2
    alone = critic(plain_model(), kind="shared").update(targets())
    for name in ("value_loss", "explained_variance", "value_mean", "value_clip_share"):
        assert figures[name] == pytest.approx(alone[name], rel=1e-12)


def test_a_joint_gradient_is_the_sum_of_both() -> None:
    """Policy alone + coefficient · values alone, parameter by parameter, before any clipping."""
    pulled = batch(*(replace(s, advantages=np.full(len(s.advantages), 0.7)) for s in targets().samples))

    def gradients_of(learner: TorchLearner, given: MiniBatch) -> dict[str, torch.Tensor]:
        seen: dict[str, torch.Tensor] = {}
        for name, p in learner.model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.__setitem__(name, p.grad.clone()))
        learner.update(given)
        return seen

    gradients = []
    for coefficient, advantages in ((0.5, True), (2.0, False), (0.5, False)):
        learner, _ = joint(coefficient=coefficient)
        gradients.append(gradients_of(learner, pulled if advantages else targets()))
    both, values_2, values = gradients
    plain = TorchLearner(model := plain_model(), LearnerConfig(dtype="float64"), source=FullWeights(model))
    alone = gradients_of(plain, pulled)
    for name, gradient in both.items():
        assert torch.allclose(gradient, alone[name] + values[name], rtol=1e-9, atol=1e-12)
        assert torch.allclose(values_2[name], 4 * values[name], rtol=1e-9, atol=1e-12)


def test_a_skipped_joint_step_moves_neither() -> None:
    learner, made = joint()
    before = state(learner.model), state(made.head)
    broken = batch(sample_of(rows([OTHER])[0], [1], [np.inf], [0.0]))
    assert learner.update(broken)["skipped_steps"] == 1.0
    assert same(before[0], state(learner.model)) and same(before[1], state(made.head))


def test_only_a_joint_critic_of_the_same_model_trains_with_the_policy() -> None:
    model = plain_model()
    for made in (critic(), critic(model, kind="shared", detach=True), critic(kind="shared")):
        with pytest.raises(ValueError, match="only a joint critic of the same model"):
            TorchLearner(model, LearnerConfig(dtype="float64"), source=FullWeights(model), critic=made)


# --- on disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kind": "shared", "detach": True}])
def test_a_resumed_critic_takes_the_same_next_step_bit_for_bit(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    made = critic(**options)
    for _ in range(2):
        made.update(targets())
    made.save(str(tmp_path))
    resumed = critic(head=0.1, **options)
    resumed.load(str(tmp_path))
    assert same(state(made.head), state(resumed.head)) and same(state(made.trunk), state(resumed.trunk))
    for one in (made, resumed):
        one.update(targets())
    assert same(state(made.head), state(resumed.head)) and same(state(made.trunk), state(resumed.trunk))


def test_a_critic_is_saved_beside_its_policy(tmp_path: Path) -> None:
    model = tiny_llama()
    learner = TorchLearner(model, LearnerConfig(), source=FullWeights(model))
    learner.save(str(tmp_path))
    Critic(tiny_llama(), CriticConfig()).save(str(tmp_path))
    learner.load(str(tmp_path))
    assert {"critic.safetensors", "critic_optimiser.pt", "model.safetensors"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_a_checkpoint_of_another_critic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no critic to continue with"):
        critic().load(str(tmp_path))
    critic().save(str(tmp_path))
    shared = critic(kind="shared", detach=True)
    before = state(shared.head)
    with pytest.raises(CheckpointError, match="another critic: it has a tensor 'trunk"):
        shared.load(str(tmp_path))
    (tmp_path / "critic_optimiser.pt").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"critic_optimiser.pt cannot be read"):
        critic().load(str(tmp_path))
    (tmp_path / "critic.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"critic.safetensors cannot be read"):
        critic().load(str(tmp_path))
    assert same(before, state(shared.head))
