"""The embedded engine: continuous batching over any Hugging Face causal LM, on the event loop.

One turn of its loop is ``schedule → run → postprocess``: requests join and leave at every token, all
their new tokens go through the model as one flat sequence, and a slot keeps the keys and values of a
session so that its next prompt pays only for what is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from steprl.engines.torch_cache import SlotStore
from steprl.engines.torch_model import forward, take_over_attention, take_weights
from steprl.engines.torch_sampling import distribution, sample
from steprl.engines.torch_slots import Request, SlotTable
from steprl.errors import ConfigError, EngineError
from steprl.types import Completion, Finish, Prompt, Sampling, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counted since the engine was made: what was asked, what was computed, what was sampled."""

    prompt_tokens: int
    prefilled_tokens: int
    sampled_tokens: int
    passes: int


class TorchEngine:
    """Continuous batching with per-request sampling and reuse of keys and values.

    Args:
        model: a causal LM; the engine owns it and changes its attention. Attention layers only: an
            architecture whose ragged result differs from its plain forward pass is refused.
        decode: ids → text, needed only for stop strings.
        slots: requests that run at once; sessions beyond that wait or lose their cached prefix.
        max_context: longest prompt plus action; at most what the model allows. None: 2048, or what the
            model allows if that is less.
        prefill_tokens: most prompt tokens in one forward pass, so that one long prompt does not
            hold up everyone else's next token.
        deterministic: memory for the longest context from the start, so that its layout, which decides the
            last bit of a sum, never depends on what was served before.

    Raises:
        ConfigError: a size out of range.
        EngineError: an architecture that this engine cannot serve exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        slots: int = 64,
        max_context: int | None = None,
        prefill_tokens: int = 2048,
        deterministic: bool = False,
    ) -> None:
        allowed = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if slots < 1 or prefill_tokens < 1:
            raise ConfigError(
                f"engine.slots and engine.prefill_tokens must be at least 1, got {slots} and {prefill_tokens}"
            )
        if max_context is None:
            max_context = min(2048, allowed or 2048)
        if max_context < 2 or (allowed is not None and max_context > allowed):
            raise ConfigError(
                f"engine.max_context must be between 2 and the model's own limit {allowed}, got {max_context}"
            )
        self.version = 0
        self.max_context = max_context
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._model = model.eval().requires_grad_(False)
        self._decode = decode
        self._prefill_tokens = prefill_tokens
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._driver: asyncio.Task[None] | None = None
        self._slots = SlotTable(slots, max_context)
        self._prompt_tokens = self._prefilled = self._sampled = self._passes = 0
        self._store = SlotStore(slots, max_context, model.device, whole=deterministic)
        take_over_attention(self._model, max_context)

    # ── the contract ──────────────────────────────────────────────────────────────────────────────

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        """Sample an action. The same prompt, sampling and seed give the same tokens in any batch, up to
        the rounding of batched arithmetic.

        Raises:
            EngineError: the prompt leaves no room for a token, or the model failed.
        """
        if len(prompt.ids) >= self.max_context:
            raise EngineError(
                f"a prompt of {len(prompt.ids)} tokens leaves no room in a context of {self.max_context}; "
                f"raise engine.max_context or use a context rule that drops something"
            )
        if prompt.ids.min() < 0 or prompt.ids.max() >= self._vocabulary:
            raise EngineError(
                f"a prompt holds ids from {prompt.ids.min()} to {prompt.ids.max()}, the model knows "
                f"0 to {self._vocabulary - 1}; the tokenizer may belong to another model"
            )
        if prompt.media:
            raise EngineError("the torch engine takes token ids only, this prompt has media")
        if sampling.stop and self._decode is None:
            raise EngineError("stop strings need an engine that was given a decoder")
        request = Request(
            prompt=prompt.ids,
            sampling=sampling,
            session_id=session_id,
            uniforms=np.random.default_rng(seed),
            answer=asyncio.get_running_loop().create_future(),
        )
        self._prompt_tokens += len(prompt.ids)
        self._waiting.append(request)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        try:
            return await request.answer
        finally:  # whoever asked may have been cancelled
            self._drop(request)

    async def abort(self, session_id: str) -> None:
        """End the session's requests now; each returns what it has, with finish "abort"."""
        for request in [r for r in (*self._waiting, *self._running) if r.session_id == session_id]:
            self._drop(request)
            self._answer(request, "abort")

    def release(self, session_id: str) -> None:
        """Forget whose slot it was. Its content stays until the slot is needed: others may share it."""
        self._slots.release(session_id)

    async def sync(self, source: WeightSource, version: int) -> None:
        """Take new weights between two tokens. Kept keys and values of older weights are not reused;
        a request in flight goes on with its own, and its tokens carry the version each was sampled with.

        Raises:
            EngineError: the weights are an adapter, or not exactly those of this model. The engine then
                keeps the weights it has.
        """
        take_weights(self._model, source)
        self._slots.forget()
        self.version = version

    @property
    def stats(self) -> EngineStats:
        """Work counted so far; ``prefilled_tokens`` below ``prompt_tokens`` is what reuse saved."""
        return EngineStats(
            prompt_tokens=self._prompt_tokens,
            prefilled_tokens=self._prefilled,
            sampled_tokens=self._sampled,
            passes=self._passes,
        )

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────

    async def _drive(self) -> None:
        try:
            while self._waiting or self._running:
                self._turn()
                # Whoever got an answer runs now, up to its next request or its first real wait.
                await asyncio.sleep(0)
        except Exception as error:
            failed, self._waiting, self._running = [*self._waiting, *self._running], [], []
            # What the failed pass has stored, NaN perhaps, must not be read by anyone.
            self._slots.forget()
            self._store.clear()
            for request in failed:
                self._vacate(request)
                if not request.answer.done():
                    request.answer.set_exception(EngineError(f"the model failed: {error!r}"))
            if not failed:
                raise

    @torch.inference_mode()
    def _turn(self) -> None:
        runs = self._schedule()
        ready, logits_BV = self._run(runs)
        if ready:
            self._postprocess(ready, logits_BV)

    def _schedule(self) -> list[tuple[Request, int]]:
        """Which requests advance in this pass, and by how many tokens: decoding first, then prompts."""
        self._admit()
        pending = [(r, int(self._slots.known[r.slot] - self._slots.computed[r.slot])) for r in self._running]
        # By slot, so that neighbours are read in place; prompts of similar length side by side.
        decoding = sorted((run for run in pending if run[1] == 1), key=lambda run: run[0].slot)
        runs, budget = decoding, self._prefill_tokens
        for request, count in sorted((run for run in pending if run[1] > 1), key=lambda run: run[1]):
            taken = min(count, budget)
            if taken == 0:
                break
            budget -= taken
            runs.append((request, taken))
        return runs

    def _admit(self) -> None:
        """Give slots to waiting requests, in order, with the longest prefix that is already computed."""
        still: list[Request] = []
        for request in self._waiting:
            place = None if self._slots.full else self._slots.find(request.prompt, request.session_id)
            if place is None:
                still.append(request)
                continue
            self._store.reserve(min(len(request.prompt) + request.sampling.max_tokens, self.max_context))
            if place.donor is not None:
                self._store.copy(place.donor, place.slot, place.reused)
            self._slots.occupy(place, request.prompt, request.session_id)
            request.slot = place.slot
            self._running.append(request)
        self._waiting = still

    def _run(self, runs: list[tuple[Request, int]]) -> tuple[list[Request], Tensor]:
        """One forward pass; returns the requests whose next token can be sampled, with their logits."""
        slots = self._slots
        spans = [(r.slot, int(slots.computed[r.slot]), count) for r, count in runs]
        ready = [i for i, (slot, start, count) in enumerate(spans) if start + count == slots.known[slot]]
        ids = np.concatenate([slots.tokens(*span) for span in spans])
        logits = forward(self._model, self._store, spans, ids, ready)
        self._passes += 1
        for (request, _), (slot, start, count) in zip(runs, spans, strict=True):
            slots.computed[slot] = start + count
            self._prefilled += min(count, max(0, len(request.prompt) - start))
        return [runs[index][0] for index in ready], logits

    def _postprocess(self, ready: list[Request], logits_BV: Tensor) -> None:
        sampling = [r.sampling for r in ready]
        logprobs_BV = distribution(logits_BV, sampling)
        tokens = sample(logprobs_BV, sampling, [r.uniforms.random() for r in ready])
        chosen = logprobs_BV.gather(-1, tokens[:, None]).squeeze(-1)
        if not chosen.isfinite().all():
            raise FloatingPointError("its logits are not finite")
        self._sampled += len(ready)
        for request, token, logprob in zip(ready, tokens.tolist(), chosen.tolist(), strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            finish = self._finish(request, token)
            if finish is None:
                self._slots.append(request.slot, token)
            else:
                self._running.remove(request)
                self._vacate(request)
                self._answer(request, finish)

    def _finish(self, request: Request, token: int) -> Finish | None:
        sampling = request.sampling
        if token in sampling.stop_ids:
            return "stop"
        if sampling.stop:
            assert self._decode is not None
            # A token may be as little as a byte. The few more are for decoders that treat the first apart.
            longest = max(len(stop.encode()) for stop in sampling.stop)
            tail = self._decode(request.ids[-(longest + 4) :])
            if any(stop in tail for stop in sampling.stop):
                return "stop"
        full = len(request.prompt) + len(request.ids) >= self.max_context
        return "length" if full or len(request.ids) >= sampling.max_tokens else None

    # ── slots ─────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, request: Request, finish: Finish) -> None:
        if not request.answer.done():
            request.answer.set_result(
                Completion(
                    ids=np.asarray(request.ids, dtype=np.int32),
                    logprobs=np.asarray(request.logprobs, dtype=np.float32),
                    policy_versions=np.asarray(request.versions, dtype=np.int32),
                    finish=finish,
                )
            )

    def _drop(self, request: Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running.remove(request)
            self._vacate(request)

    def _vacate(self, request: Request) -> None:
        if request.slot >= 0:
            self._slots.vacate(request.slot)
