"""What the engine says it sampled with is what the learner computes: across the seam, on real models."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
import torch
from tiny_model import tiny_gemma2, tiny_llama

from steprl.engines.torch_engine import TorchEngine
from steprl.learner.config import LearnerConfig
from steprl.learner.torch_learner import TorchLearner
from steprl.types import Prompt, Row, Sampling, StepKey
from steprl.weights.source import FullWeights


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma2])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_the_learner_agrees_with_the_engine_token_by_token(make, temperature):
    torch.set_num_threads(1)
    # A cap of 1 bends every score, so leaving it out on either side would show.
    caps = {"attn_logit_softcapping": 1.0} if make is tiny_gemma2 else {}
    model = make(**caps)
    engine = TorchEngine(copy.deepcopy(model), slots=4, max_context=64)
    prompts = [np.arange(3, 3 + n, dtype=np.int32) for n in (2, 9, 20)]

    async def sample():
        sampling = Sampling(temperature=temperature, max_tokens=12)
        return await asyncio.gather(
            *(
                engine.generate(Prompt(ids=ids), sampling, session_id=str(i), seed=i)
                for i, ids in enumerate(prompts)
            )
        )

    completions = asyncio.run(sample())
    rows = [
        Row(
            ids=np.concatenate([prompt, done.ids]),
            action_positions=np.arange(len(prompt), len(prompt) + len(done.ids)),
            step_keys=(StepKey("t", 0),),
            step_index=np.zeros(len(done.ids), dtype=np.int32),
            token_index=np.arange(len(done.ids)),
            temperature=np.full(len(done.ids), temperature, dtype=np.float32),
            engine_logprobs=done.logprobs,
        )
        for prompt, done in zip(prompts, completions, strict=True)
    ]
    learner = TorchLearner(model, LearnerConfig(), source=FullWeights(model))
    for row, scored in zip(rows, learner.score(rows), strict=True):
        np.testing.assert_allclose(scored, row.engine_logprobs, atol=1e-4)
