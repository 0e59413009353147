"""A frozen model that writes text: the summaries of ``llm_summary``, where not the policy is to write them.

It has an engine of its own, and never learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, get_args

import numpy as np

from steprl.engines.torch_engine import TorchEngine
from steprl.errors import ConfigError, EnvError
from steprl.learner.config import Dtype
from steprl.learner.loading import load_model
from steprl.renderers import ChatRenderer, load_tokenizer
from steprl.trainers.parts import model_path
from steprl.types import Message, Prompt, Sampling


class FrozenModel:
    """An async function ``(messages) -> text``, as ``llm_summary`` asks its ``writer``.

    The messages are written with this model's own tokenizer and chat template, whoever said them. The same
    messages get the same text, up to the rounding of batched arithmetic: greedy, or sampled with a seed that
    they decide. Its weights are loaded when it is first asked.

    Args:
        model: a model folder, a hub id, or the name of a policy that ships with steprl.
        max_tokens: most tokens of a text.
        temperature: 0 is greedy.
        max_context: longest request and text together; None: 2048, or what the model allows if that is less.
        slots: how many requests run at once.
        dtype: of the weights.

    Raises:
        ConfigError: an option has a value that it cannot have, or there is no such model.
        EnvError: a request that leaves no room for the text. It ends its episode.
    """

    def __init__(
        self,
        *,
        model: str,
        max_tokens: int = 256,
        temperature: float = 0.0,
        max_context: int | None = None,
        slots: int = 16,
        dtype: Dtype = "float32",
    ) -> None:
        try:
            self._sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"frozen_model: {error}") from error
        for name, value, least in (("slots", slots, 1), ("max_context", max_context, 2)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ConfigError(
                    f"frozen_model: {name} must be a whole number from {least} up, got {value!r}"
                )
        if dtype not in get_args(Dtype):
            raise ConfigError(
                f"frozen_model: dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}"
            )
        self._path = model_path(model)
        self._renderer = ChatRenderer(load_tokenizer(self._path))
        self._options: dict[str, Any] = {"max_context": max_context, "slots": slots}
        self._dtype = dtype
        self._engine: TorchEngine | None = None
        self._asked = 0

    async def __call__(self, messages: Sequence[Message]) -> str:
        """What the model answers to the messages, its end of turn left out."""
        renderer, engine = self._renderer, self._served()
        # ids are of the policy's tokenizer, and mean something else in this one
        plain = [replace(message, token_ids=None) for message in messages]
        ids = np.asarray(renderer.render(plain), dtype=np.int32)
        if len(ids) + self._sampling.max_tokens > engine.max_context:
            raise EnvError(
                f"the request has {len(ids)} tokens, which with max_tokens = {self._sampling.max_tokens} is "
                f"more than the frozen model's context of {engine.max_context}. Lower the rule's budget, or "
                f"raise max_context of the frozen model."
            )
        self._asked += 1
        session = f"frozen-{self._asked}"
        try:
            completion = await engine.generate(
                Prompt(ids=ids),
                replace(self._sampling, stop_ids=renderer.stop_ids),
                session_id=session,
                seed=int.from_bytes(sha256(ids.tobytes()).digest()[:4], "big"),
            )
        finally:
            engine.release(session)
        return renderer.parse(completion.ids.tolist(), completion.finish).text

    def _served(self) -> TorchEngine:
        if self._engine is None:
            model = load_model(self._path, self._dtype)
            self._engine = TorchEngine(model, decode=self._renderer.decode, **self._options)
        return self._engine
