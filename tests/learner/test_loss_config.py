"""The options of losses and critics: what is refused, and why."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from steprl.config import build, read_toml, to_toml
from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig
from steprl.learner.critic_config import CriticConfig
from steprl.learner.loss_config import LossConfig


def test_defaults_of_a_critic() -> None:
    default = CriticConfig()
    assert (default.kind, default.detach, default.coefficient) == ("separate", False, 0.5)
    assert (default.value_clip, default.warmup_iterations) == (0.5, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ppo_clp"}, "unknown loss kind 'ppo_clp'. Did you mean 'ppo_clip'?"),
        ({"kind": "ppo"}, 'is written here as learner.loss.kind = "ppo_clip".'),
        ({"kind": "decoupled_ppo"}, 'kind = "ppo_clip" and learner.loss.importance = "full"'),
        ({"importance": "truncated"}, "Did you mean 'truncate'?"),
        ({"importance": "mask", "importance_unit": "steps"}, "unknown importance unit 'steps'"),
        ({"beta": 0.1, "kl": "k4"}, "unknown KL estimator 'k4'"),
        ({"beta": 0.1, "kl": "k1"}, "its mean gradient is 0, whatever the reference. Use k2 or k3"),
        ({"ratio_max": 3.0}, "ratio_max = 3.0 has an effect only when kind is 'cispo'"),
        ({"importance_unit": "step_mean"}, "has an effect only when importance is not 'off'"),
        ({"importance": "full", "importance_high": 3.0}, "importance is 'truncate' or 'mask'"),
        ({"importance": "mask", "importance_low": 2.0}, r"must be in [0, importance_high)"),
        ({"importance": "mask", "importance_high": float("inf")}, "'full' has no bounds"),
        ({"kl": "k2"}, "kl = 'k2' has an effect only when beta is above 0"),
        ({"kl_unbiased": True}, "kl_unbiased = True has an effect only when beta is above 0"),
        ({"beta": -0.1}, "loss.beta = -0.1 is out of range"),
        ({"beta": float("nan")}, "loss.beta = nan is out of range"),
        ({"entropy_bonus": -1.0}, "loss.entropy_bonus = -1.0 is out of range"),
        ({"kind": "cispo", "ratio_max": 0.0}, "loss.ratio_max = 0.0 is out of range"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LossConfig(**options)
    assert message in str(caught.value)


def test_dual_clip_belongs_to_a_clipped_ratio() -> None:
    with pytest.raises(ConfigError, match="dual_clip = 3.0 has no effect on the loss 'cispo'"):
        LearnerConfig(dual_clip=3.0, loss=LossConfig(kind="cispo"))


def test_what_a_loss_needs_is_known_before_the_run() -> None:
    assert not LossConfig().needs_reference and not LossConfig().needs_engine_logprobs
    assert LossConfig(beta=0.01).needs_reference
    assert LossConfig(importance="truncate").needs_engine_logprobs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "seperate"}, "Did you mean 'separate'?"),
        ({"detach": True}, 'only with critic.kind = "shared"'),
        ({"coefficient": 1.0}, "Set critic.learner.lr instead"),
        ({"kind": "shared", "detach": True, "coefficient": 1.0}, 'shared" without detach'),
        ({"value_clip": 0.0}, "value_clip = 0.0 is out of range"),
        ({"warmup_iterations": -1}, "warmup_iterations = -1 is out of range"),
        ({"kind": "shared", "coefficient": 0.0}, "coefficient = 0.0 is out of range"),
        ({"learner": LearnerConfig(clip_low=0.1)}, "critic.learner.clip_low = 0.1 has no effect"),
        ({"learner": LearnerConfig(loss=LossConfig(beta=0.1))}, "critic.learner.loss has no effect"),
    ],
)
def test_what_a_critic_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CriticConfig(**options)
    assert message in str(caught.value)


def test_options_in_a_file_come_back(tmp_path: Any) -> None:
    table = {"dual_clip": 3.0, "loss": {"kind": "gspo", "importance": "truncate", "beta": 0.1}}
    config = build(LearnerConfig, table)
    assert config.loss == LossConfig(kind="gspo", importance="truncate", beta=0.1)
    (tmp_path / "written.toml").write_text(to_toml(config), encoding="utf-8")
    assert build(LearnerConfig, read_toml(tmp_path / "written.toml")) == config
    critic = build(CriticConfig, {"kind": "shared", "learner": {"lr": 1e-4}})
    assert critic.joint and critic.learner.lr == 1e-4


def test_a_misspelt_option_of_the_loss_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'loss.kin'. Did you mean 'loss.kind'\?"):
        build(LearnerConfig, {"loss": {"kin": "gspo"}})


def test_reading_these_options_does_not_need_torch() -> None:
    program = "import sys, steprl.learner.critic_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
