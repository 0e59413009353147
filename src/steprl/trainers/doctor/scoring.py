"""Log-probabilities of actions after a context, under the weights of a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steprl.learner.config import LearnerConfig
from steprl.learner.loading import load_model
from steprl.learner.torch_learner import TorchLearner
from steprl.trainers.doctor.compare import Scorer
from steprl.trainers.doctor.traces import Placed
from steprl.types import Floats, Row, StepKey
from steprl.weights.source import FullWeights


def has_weights(path: str) -> bool:
    """Whether there is a model in a folder, and not a tokenizer alone."""
    folder = Path(path).expanduser()
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def scorer_of(path: str) -> Scorer:
    """Scores with the model of a folder.

    Raises:
        ConfigError: it cannot be loaded.
    """
    model = load_model(path)
    learner = TorchLearner(model, LearnerConfig(), source=FullWeights(model))

    def score(actions: Sequence[Placed]) -> list[Floats]:
        return learner.score([_row(placed) for placed in actions])

    return score


def _row(placed: Placed) -> Row:
    count = len(placed.action)
    places = np.arange(count, dtype=np.int32)
    return Row(
        ids=np.asarray(placed.context + placed.action, dtype=np.int32),
        action_positions=places + np.int32(len(placed.context)),
        step_keys=(StepKey("doctor", 0),),
        step_index=np.zeros(count, dtype=np.int32),
        token_index=places,
        temperature=np.ones(count, dtype=np.float32),
        engine_logprobs=np.full(count, np.nan, dtype=np.float32),
    )
