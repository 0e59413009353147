"""A client of OpenAI-compatible servers (vLLM, SGLang, llama.cpp), for evaluation: prompts go out as token
ids, and token ids come back where the server gives them.

What is asked beyond OpenAI's own API is what vLLM and SGLang call it (``return_token_ids``,
``stop_token_ids``, ``skip_special_tokens``); llama.cpp overlooks it, and names ids beside log-probabilities.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

import httpx2
import numpy as np

from steprl.engines.openai_answers import message, parsed, short, tokens, whole_text
from steprl.errors import ConfigError, EngineError
from steprl.types import Completion, Finish, Prompt, Sampling, WeightSource

logger = logging.getLogger("steprl.engines")

_SEEDS = 1 << 31
"""Seeds that every server takes; llama.cpp's have 32 bits."""
_LONGEST_PAUSE = 60.0


class OpenAIEngine:
    """Asks a server's ``/completions``.

    Args:
        model: the name under which the server serves its model; its tokenizer must be the policy's.
        encode: the renderer's. Where the server returns no token ids, its text is tokenised again to be
            recorded: good enough to evaluate, and such a completion has no log-probabilities.
        url: where the API begins.
        max_context: longest prompt plus action, at most what the server allows.
        concurrency: most requests at once.
        timeout: seconds for one request.
        retries: how often a request is sent again after 429, 5xx, or a connection that failed.
        backoff: seconds before the first of these, twice as long before each further one; a server that says
            when to come again is obeyed.
        api_key_env: environment variable with the API key, if the server wants one. None: no key is sent,
            so that a recipe of somebody else's cannot have it sent anywhere unasked.
        extensions: ask for what OpenAI's own API does not have. A server that refuses that needs False.

    Log-probabilities are kept at temperature 1 without filters only: elsewhere servers differ in which
    distribution they are of.

    Raises:
        ConfigError: an option is out of range.
    """

    evaluation_only = (
        "the weights are the server's, and training could not change them; evaluate with it, train with torch"
    )

    def __init__(
        self,
        *,
        model: str,
        encode: Callable[[str], Sequence[int]],
        url: str = "http://localhost:8000/v1",
        max_context: int = 2048,
        concurrency: int = 64,
        timeout: float = 600.0,
        retries: int = 4,
        backoff: float = 1.0,
        api_key_env: str | None = None,
        extensions: bool = True,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"engine.args.url must begin with http:// or https://, got '{url}'")
        if max_context < 2 or concurrency < 1 or retries < 0 or not 0 < timeout < math.inf or backoff < 0:
            raise ConfigError(
                f"engine openai: max_context must be at least 2, concurrency 1, retries and backoff 0, and "
                f"timeout above 0; got {max_context}, {concurrency}, {retries}, {backoff} and {timeout}"
            )
        self.version = 0
        self.max_context = max_context
        self._model = model
        self._encode = encode
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._key_env = api_key_env
        self._extensions = extensions
        self._free = asyncio.Semaphore(concurrency)
        self._tls = httpx2.create_ssl_context()
        self._asking: dict[str, set[asyncio.Task[Completion]]] = {}
        self._aborted: set[asyncio.Task[Completion]] = set()
        self._told_of_text = False

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        """See `Engine`.

        Raises:
            EngineError: the prompt does not fit, or the server gave no completion, with what it said.
            ConfigError: what no second try would change: the model's name, the key, the address.
        """
        room = min(sampling.max_tokens, self.max_context - len(prompt.ids))
        if room < 1:
            raise EngineError(
                f"a prompt of {len(prompt.ids)} tokens leaves no room in a context of {self.max_context}"
            )
        asking = asyncio.ensure_future(self._complete(prompt, sampling, room, seed))
        ours = self._asking.setdefault(session_id, set())
        ours.add(asking)
        try:
            await asyncio.wait({asking})
            if asking.cancelled() and asking in self._aborted:
                return self._completion([], None, "abort")
            return asking.result()
        finally:
            asking.cancel()
            ours.discard(asking)
            self._aborted.discard(asking)

    async def abort(self, session_id: str) -> None:
        """The session's requests in flight return empty with finish "abort"; the server is hung up on."""
        for asking in self._asking.get(session_id, set()):
            self._aborted.add(asking)
            asking.cancel()

    def release(self, session_id: str) -> None:
        """The server keeps what it likes; here is nothing to let go but the session's name."""
        self._asking.pop(session_id, None)

    async def sync(self, source: WeightSource, version: int) -> None:
        """Raises EngineError: a server's weights are its own."""
        raise EngineError(f"engine 'openai' takes no weights: {self.evaluation_only}")

    # ── asking ────────────────────────────────────────────────────────────────────────────────────

    async def _complete(self, prompt: Prompt, sampling: Sampling, room: int, seed: int) -> Completion:
        ids = prompt.ids.tolist()
        async with self._free:
            body = await self._answer(self._request(ids, sampling, room, seed))
        try:
            return self._read(body["choices"][0], ids, sampling)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self._url} answered with what is no completion ({type(error).__name__}: {error}): "
                f"{short(str(body))}"
            ) from error

    def _request(self, ids: list[int], sampling: Sampling, room: int, seed: int) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "model": self._model,
            "prompt": ids,
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % _SEEDS,
            "logprobs": 1,
        }
        if sampling.stop:
            asked["stop"] = list(sampling.stop)
        if sampling.top_k:
            asked["top_k"] = sampling.top_k
        if self._extensions:
            asked |= {
                "return_token_ids": True,
                "stop_token_ids": list(sampling.stop_ids),
                "skip_special_tokens": False,
                "include_stop_str_in_output": True,
            }
        return asked

    async def _answer(self, asked: Mapping[str, Any]) -> Any:
        """The JSON of an answer; tries again where that may help."""
        for attempt in range(self._retries + 1):
            response: httpx2.Response | None = None
            try:
                response = await self._send("POST", "/completions", asked)
                fault = f"{response.status_code}: {message(response)}"
            except httpx2.TransportError as error:
                fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if response is not None and response.status_code == 200:
                return parsed(response, self._url)
            if response is not None and response.status_code not in (408, 429) and response.status_code < 500:
                await self._refuse(response)
            if attempt < self._retries:
                await asyncio.sleep(self._pause(attempt, response))
        raise EngineError(
            f"{self._url} gave no completion in {self._retries + 1} tries; the last one: {fault}"
        )

    async def _send(self, method: str, path: str, asked: Mapping[str, Any] | None) -> httpx2.Response:
        key = None if self._key_env is None else os.environ.get(self._key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # a client per request: connections belong to an event loop, and an engine may outlive one
        try:
            async with (
                asyncio.timeout(self._timeout),
                httpx2.AsyncClient(verify=self._tls, timeout=None, headers=headers) as client,
            ):
                return await client.request(method, self._url + path, json=asked)
        except TimeoutError:
            raise EngineError(
                f"{self._url} gave no answer within {self._timeout:g} s. Raise engine.args.timeout, or ask "
                f"less at once (engine.args.concurrency)."
            ) from None

    def _pause(self, attempt: int, response: httpx2.Response | None) -> float:
        named = None if response is None else response.headers.get("retry-after")
        if named is not None and named.isdecimal():
            return min(float(named), _LONGEST_PAUSE)
        return min(self._backoff * 2.0**attempt, _LONGEST_PAUSE)

    async def _refuse(self, response: httpx2.Response) -> None:
        """Raise what a refusal means."""
        status, said = response.status_code, message(response)
        if status in (401, 403):
            raise ConfigError(
                f"{self._url} wants a key, or another one ({status}: {said}). Put it into an environment "
                f"variable and name that with engine.args.api_key_env, which is {self._key_env!r}."
            )
        if status == 404:
            raise ConfigError(
                f"{self._url} has no model '{self._model}' or no /completions ({status}: {said}). "
                f"{await self._served()}"
            )
        raise EngineError(
            f"{self._url} refused a request ({status}): {said}. If it finds the prompt too long, lower "
            f"engine.max_context ({self.max_context}) to what the server was started with; if it does not "
            f"know an option, set engine.args.extensions = false."
        )

    async def _served(self) -> str:
        try:
            listed = parsed(await self._send("GET", "/models", None), self._url)
            names = ", ".join(str(found["id"]) for found in listed["data"])
        except (httpx2.TransportError, EngineError, KeyError, TypeError):
            return "Name the model with engine.args.model, and the address with engine.args.url (…/v1)."
        return f"It serves {names}: set engine.args.model."

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def _read(self, choice: Mapping[str, Any], asked: list[int], sampling: Sampling) -> Completion:
        read = choice.get("prompt_token_ids")
        if read is not None and list(read) != asked:
            raise EngineError(
                f"{self._url} read other prompt tokens than it was sent ({len(asked)} sent, {len(read)} read)"
            )
        finish = choice["finish_reason"]
        if finish not in get_args(Finish):
            raise ValueError(f"finish_reason is {finish!r}")
        ids, logprobs = tokens(choice)
        if ids is None:
            if not self._told_of_text:
                self._told_of_text = True
                logger.warning(
                    "%s returns no token ids: its text is tokenised again to be recorded", self._url
                )
            return self._completion(list(self._encode(whole_text(choice))), None, finish)
        exact = sampling.temperature == 1.0 and sampling.neutral
        return self._completion(ids, logprobs if exact else None, finish)

    def _completion(self, ids: list[int], logprobs: list[float] | None, finish: str) -> Completion:
        return Completion(
            ids=np.asarray(ids, dtype=np.int64),
            logprobs=None if logprobs is None else np.asarray(logprobs, dtype=np.float32),
            policy_versions=np.full(len(ids), self.version, dtype=np.int32),
            finish=cast(Finish, finish),
        )
