"""What the tests of the torch engine share: tiny architectures, a crowd of requests, and what a plain forward
pass says about every token of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from tiny_model import SIZES, tiny_gemma2, tiny_llama
from transformers import PreTrainedModel, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from steprl.engines.torch_engine import TorchEngine
from steprl.types import Completion, Prompt, Sampling

torch.set_num_threads(1)

VOCABULARY = 64


def tiny(name: str, seed: int = 0, *, config_name: str | None = None, **config: Any) -> PreTrainedModel:
    """Two layers of an architecture such as "Qwen2", random weights that ``seed`` decides."""
    sizes = {**SIZES, "vocab_size": VOCABULARY, "initializer_range": 0.2, **config}
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    made = getattr(transformers, (config_name or name) + "Config")(**sizes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, name + head)(made)
        for parameter in model.parameters():  # attention sinks are not initialised by the constructor
            if not parameter.isfinite().all():
                parameter.data.normal_(0.0, 0.2)
    plain: PreTrainedModel = model.eval()
    return plain


def eager(model: PreTrainedModel) -> PreTrainedModel:
    """The model with the attention that its authors wrote; torch's own leaves out a cap on scores."""
    model.set_attn_implementation("eager")
    return model


MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": tiny_llama,
    "qwen2": lambda: tiny("Qwen2"),
    "qwen3": lambda: tiny("Qwen3", head_dim=16),
    "gpt2": lambda: tiny("GPT2"),
    "mistral, a window of 5": lambda: tiny("Mistral", sliding_window=5),
    "gemma2, soft caps and a window of 7": lambda: eager(
        tiny_gemma2(sliding_window=7, attn_logit_softcapping=1.0)
    ),
    "gpt-oss, sinks and a window of 6": lambda: tiny("GptOss", head_dim=8, sliding_window=6, **MOE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request and what came of it."""

    prompt: tuple[int, ...]
    sampling: Sampling
    completion: Completion

    @property
    def ids(self) -> list[int]:
        return self.completion.ids.tolist()


def words(seed: int, count: int) -> list[int]:
    """Random token ids that ``seed`` decides."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


async def ask(
    engine: TorchEngine, prompt: Sequence[int], sampling: Sampling, *, session: str = "s", seed: int = 0
) -> Completion:
    """One request."""
    return await engine.generate(
        Prompt(ids=np.array(prompt, dtype=np.int32)), sampling, session_id=session, seed=seed
    )


def ask_all(engine: TorchEngine, prompts: Iterable[Sequence[int]], sampling: Sampling) -> list[Completion]:
    """All prompts at once, each in a session of its own, seeded by its place."""

    async def together() -> list[Completion]:
        requests = (
            ask(engine, prompt, sampling, session=f"s{place}", seed=place)
            for place, prompt in enumerate(prompts)
        )
        return await asyncio.gather(*requests)

    return asyncio.run(together())


async def episode(
    engine: TorchEngine,
    prompt: Sequence[int],
    turns: Sequence[tuple[Sampling, int]],
    *,
    seed: int,
    delay: int = 0,
) -> list[Asked]:
    """A session of several turns; after each, the context grows by the action and some new tokens.

    Args:
        turns: how to sample, and how many tokens join the context afterwards.
        delay: turns of the event loop before it starts, so that requests join a batch that is running.
    """
    for _ in range(delay):
        await asyncio.sleep(0)
    asked = []
    context = tuple(prompt)
    for turn, (sampling, new) in enumerate(turns):
        completion = await ask(engine, context, sampling, session=f"episode-{seed}", seed=100 * seed + turn)
        asked.append(Asked(prompt=context, sampling=sampling, completion=completion))
        context = (*context, *completion.ids.tolist(), *words(100 * seed + turn, new))
    engine.release(f"episode-{seed}")
    return asked


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, asked: Asked) -> np.ndarray[Any, Any]:
    """Log-probabilities f32[A] of the sampled tokens, from one forward pass of stock transformers over prompt
    and action, and the filters of its own generate()."""
    ids = torch.tensor([[*asked.prompt, *asked.ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(asked.prompt) - 1 : -1].float()
    sampling = asked.sampling
    if sampling.temperature > 0:
        logits = TemperatureLogitsWarper(sampling.temperature)(ids, logits)
        if sampling.top_k:
            logits = TopKLogitsWarper(sampling.top_k)(ids, logits)
        if sampling.top_p < 1:
            logits = TopPLogitsWarper(sampling.top_p)(ids, logits)
    chosen = torch.tensor(asked.ids)[:, None]
    return logits.log_softmax(-1).gather(-1, chosen).squeeze(-1).numpy()


def assert_exact(model: PreTrainedModel, asked: Iterable[Asked]) -> int:
    """Every log-probability is the plain model's. Returns how many were looked at."""
    tokens = 0
    for request in asked:
        assert request.completion.logprobs is not None
        np.testing.assert_allclose(
            request.completion.logprobs, plain_logprobs(model, request), atol=1e-4, rtol=0
        )
        tokens += len(request.ids)
    return tokens
