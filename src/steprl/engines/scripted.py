"""An engine that plays a script: a list of replies, or a function of what was asked. It drives tests,
documentation and cassettes with real token ids and no model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from steprl.errors import EngineError
from steprl.types import Completion, Prompt, Sampling, WeightSource

Reply = str | Sequence[int]
"""Text, or exact token ids."""

Script = Sequence[Reply] | Callable[[str, int], Reply]
"""Replies in order, or ``script(prompt_text, turn) -> reply``: the decoded prompt and how often this session
has asked before."""


@dataclass(slots=True, eq=False)
class _Request:
    session_id: str
    aborted: bool = False


class ScriptedEngine:
    """Replies from a script, tokenised with the policy's own tokenizer.

    Args:
        script: replies in order, per session, or a function of the prompt's text and the turn.
        encode, decode: the renderer's; a reply is encoded and closed with ``stop_ids[0]``.
        latency: seconds to wait before each answer.

    A reply may also be given as token ids, exactly: then nothing is encoded or added. Tokens carry
    log-probability 0: a script is certain.
    """

    def __init__(
        self,
        script: Script,
        *,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        max_context: int = 1 << 20,
        latency: float = 0.0,
    ) -> None:
        self.version = 0
        self.max_context = max_context
        self._script = script
        self._encode = encode
        self._decode = decode
        self._latency = latency
        self._turns: dict[str, int] = {}
        self._in_flight: list[_Request] = []

    async def generate(self, prompt: Prompt, sampling: Sampling, *, session_id: str, seed: int) -> Completion:
        """The script's next reply for this session, cut at ``max_tokens``.

        Raises:
            EngineError: the script has run out of replies, or the prompt does not fit.
        """
        if len(prompt.ids) >= self.max_context:
            raise EngineError(
                f"a prompt of {len(prompt.ids)} tokens leaves no room in a context of {self.max_context}"
            )
        turn = self._turns.get(session_id, 0)
        self._turns[session_id] = turn + 1
        request = _Request(session_id)
        self._in_flight.append(request)
        try:
            await asyncio.sleep(self._latency)
        finally:
            self._in_flight.remove(request)
        if callable(self._script):
            reply = self._script(self._decode(prompt.ids.tolist()), turn)
        elif turn < len(self._script):
            reply = self._script[turn]
        else:
            raise EngineError(f"the script has {len(self._script)} replies, this session asks for another")
        if isinstance(reply, str):
            ids = [*self._encode(reply), *sampling.stop_ids[:1]]
        else:
            ids = list(reply)
        room = min(sampling.max_tokens, self.max_context - len(prompt.ids))
        cut = [] if request.aborted else ids[:room]
        return Completion(
            ids=np.asarray(cut, dtype=np.int32),
            logprobs=np.zeros(len(cut), dtype=np.float32),
            policy_versions=np.full(len(cut), self.version, dtype=np.int32),
            finish="abort" if request.aborted else "length" if len(cut) < len(ids) else "stop",
        )

    async def abort(self, session_id: str) -> None:
        """The session's requests in flight return empty with finish "abort"; later ones are played."""
        for request in self._in_flight:
            if request.session_id == session_id:
                request.aborted = True

    def release(self, session_id: str) -> None:
        """Forget the session's turn."""
        self._turns.pop(session_id, None)

    async def sync(self, source: WeightSource, version: int) -> None:
        """A script has no weights; its tokens carry the new version all the same."""
        self.version = version
