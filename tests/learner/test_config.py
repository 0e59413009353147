"""The learner's options: their defaults and their limits."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from steprl.errors import ConfigError
from steprl.learner.config import LearnerConfig


def test_defaults() -> None:
    assert dataclasses.asdict(LearnerConfig()) == {
        "lr": 1e-5,
        "betas": (0.9, 0.999),
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "warmup_steps": 0,
        "decay_steps": 0,
        "final_lr": 0.0,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": None,
        "loss": {
            "kind": "ppo_clip",
            "ratio_max": 5.0,
            "importance": "off",
            "importance_unit": "token",
            "importance_low": 0.0,
            "importance_high": 2.0,
            "beta": 0.0,
            "kl": "k3",
            "kl_unbiased": False,
            "entropy_bonus": 0.0,
        },
        "token_budget": 8192,
        "dtype": "float32",
        "gradient_checkpointing": False,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("betas", (0.9, 1.0)),
        ("betas", (0.9,)),
        ("weight_decay", -0.1),
        ("max_grad_norm", 0.0),
        ("warmup_steps", -1),
        ("decay_steps", -1),
        ("final_lr", -1e-4),
        ("clip_low", 1.5),
        ("clip_high", 0.0),
        ("dual_clip", 1.0),
        ("token_budget", 0),
    ],
)
def test_what_is_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} = .*must be"):
        LearnerConfig(**{name: value})


def test_an_unknown_precision_is_answered_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="'bfloat61'.*'bfloat16'"):
        LearnerConfig(dtype="bfloat61")  # type: ignore[arg-type]


def test_reading_the_options_does_not_need_torch() -> None:
    program = "import sys, steprl.learner.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
