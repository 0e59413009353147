"""The client of OpenAI-compatible servers against a real one on this machine, in the shapes in which vLLM,
llama.cpp and plain servers answer, and in their moods: slow, failing, talking nonsense."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import guesses, renderer
from training import DICE, quiet, recipe_of

from steprl.engines.openai import OpenAIEngine
from steprl.errors import ConfigError, EngineError
from steprl.rollout import derive_seed
from steprl.trainers import api
from steprl.trainers.parts import build_parts
from steprl.types import Completion, Prompt, Sampling

Answer = tuple[int, Any, dict[str, str]]
STOP = renderer().stop_ids[0]


class Server:
    """Answers with ``answer(body, number)``: status, JSON (or raw text), headers; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.busy = self.busiest = 0
        self.answer: Callable[[dict[str, Any], int], Answer] = lambda body, number: vllm([1, 2, STOP])
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": "small"}, {"id": "large"}]}, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    outer.asked.append(body)
                    outer.keys.append(self.headers.get("authorization"))
                    number = len(outer.asked)
                    outer.busy += 1
                    outer.busiest = max(outer.busiest, outer.busy)
                try:
                    self._send(*outer.answer(body, number))
                finally:
                    with lock:
                        outer.busy -= 1

            def _send(self, status: int, content: Any, headers: dict[str, str]) -> None:
                raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except OSError:
                    pass  # whoever asked has hung up

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    found = Server()
    yield found
    found.close()


def vllm(ids: list[int], finish: str = "stop", **fields: Any) -> Answer:
    choice = {
        "text": renderer().decode(ids),
        "finish_reason": finish,
        "token_ids": ids,
        "logprobs": {"token_logprobs": [-0.5] * len(ids)},
        **fields,
    }
    return 200, {"choices": [choice]}, {}


def plain(text: str, finish: str = "stop", **fields: Any) -> Answer:
    return 200, {"choices": [{"text": text, "finish_reason": finish, "logprobs": None, **fields}]}, {}


def engine(server: Server, **options: Any) -> OpenAIEngine:
    options = {"model": "small", "backoff": 0.01, **options}
    return OpenAIEngine(encode=renderer().encode, url=server.url, **options)


def ask(asked: OpenAIEngine, ids: tuple[int, ...] = (5, 6, 7), seed: int = 3, **sampling: Any) -> Completion:
    settings = Sampling(**{"stop_ids": (STOP,), "max_tokens": 9, **sampling})
    prompt = Prompt(ids=np.asarray(ids, dtype=np.int32))
    return asyncio.run(asked.generate(prompt, settings, session_id="s", seed=seed))


# --- what is asked, what comes back -------------------------------------------------------------------


def test_ids_go_out_and_ids_with_log_probabilities_come_back(server: Server) -> None:
    found = ask(engine(server), seed=2**40 + 7, stop=("Observation:",))
    assert found.ids.tolist() == [1, 2, STOP] and found.finish == "stop"
    assert found.logprobs is not None and found.logprobs.tolist() == [-0.5] * 3
    assert server.asked == [
        {
            "model": "small",
            "prompt": [5, 6, 7],
            "max_tokens": 9,
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": 7,
            "logprobs": 1,
            "stop": ["Observation:"],
            "return_token_ids": True,
            "stop_token_ids": [STOP],
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }
    ]


def test_a_plain_server_is_asked_for_nothing_that_it_may_not_know(server: Server) -> None:
    ask(engine(server, extensions=False))
    assert server.asked[0].keys() == {
        "model", "prompt", "max_tokens", "temperature", "top_p", "seed", "logprobs"
    }  # fmt: skip


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}]
)
def test_log_probabilities_of_an_unknown_distribution_are_not_kept(
    server: Server, sampling: dict[str, Any]
) -> None:
    found = ask(engine(server), **sampling)
    assert found.logprobs is None and found.ids.tolist() == [1, 2, STOP]
    assert {name: server.asked[0][name] for name in sampling} == sampling


@pytest.mark.parametrize("values", [None, [-0.5], [-0.5, None, -0.5], [-0.5, float("-inf"), -0.5]])
def test_log_probabilities_that_do_not_fit_are_not_kept(server: Server, values: Any) -> None:
    server.answer = lambda body, number: vllm([1, 2, 3], logprobs={"token_logprobs": values})
    found = ask(engine(server))
    assert found.logprobs is None and found.ids.tolist() == [1, 2, 3]


def test_the_ids_of_llama_cpp_stand_beside_its_log_probabilities(server: Server) -> None:
    content = [{"id": 4, "token": "a", "logprob": -1.0}, {"id": 9, "token": "b", "logprob": -2.0}]
    server.answer = lambda body, number: plain("ab", logprobs={"content": content})
    found = ask(engine(server))
    assert found.ids.tolist() == [4, 9] and found.logprobs is not None
    assert found.logprobs.tolist() == [-1.0, -2.0]


def test_text_alone_is_tokenised_and_says_so(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = lambda body, number: plain("Rome", "length")
    asked = engine(server)
    found, again = ask(asked), ask(asked)
    assert found.ids.tolist() == again.ids.tolist() == list(renderer().encode("Rome"))
    assert found.logprobs is None and found.finish == "length"
    (record,) = caplog.records
    assert "returns no token ids: its text is tokenised again" in record.getMessage()


def test_a_stop_string_belongs_to_the_text_that_it_ended(server: Server) -> None:
    server.answer = lambda body, number: plain("Action Input: {}\n", stop_reason="Observation:")
    found = ask(engine(server), stop=("Observation:",))
    assert renderer().decode(found.ids.tolist()) == "Action Input: {}\nObservation:"


def test_an_action_never_outgrows_the_context(server: Server) -> None:
    ask(engine(server, max_context=6), max_tokens=50)
    assert server.asked[0]["max_tokens"] == 3
    with pytest.raises(EngineError, match="a prompt of 3 tokens leaves no room in a context of 3"):
        ask(engine(server, max_context=3))
    assert len(server.asked) == 1


def test_a_server_that_reads_another_prompt_is_refused(server: Server) -> None:
    server.answer = lambda body, number: vllm([1], prompt_token_ids=[0, *body["prompt"]])
    with pytest.raises(EngineError, match="read other prompt tokens than it was sent .3 sent, 4 read"):
        ask(engine(server))


def test_a_key_is_sent_where_there_is_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not asked for")
    ask(engine(server))
    monkeypatch.setenv("MY_KEY", "secret")
    ask(engine(server, api_key_env="MY_KEY"))
    assert server.keys == [None, "Bearer secret"]


# --- moods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_fails_twice_is_asked_a_third_time(server: Server, status: int) -> None:
    server.answer = lambda body, number: (status, "busy", {}) if number < 3 else vllm([1])
    assert ask(engine(server)).ids.tolist() == [1]
    assert len(server.asked) == 3 and server.asked[0] == server.asked[2]


def test_a_server_that_keeps_failing_is_told_with_what_it_says(server: Server) -> None:
    server.answer = lambda body, number: (503, {"error": {"message": "model is loading"}}, {})
    with pytest.raises(
        EngineError, match="gave no completion in 3 tries; the last one: 503: model is loading"
    ):
        ask(engine(server, retries=2))


def test_a_server_that_says_when_to_come_again_is_obeyed(server: Server) -> None:
    server.answer = lambda body, number: (429, "busy", {"retry-after": "0"}) if number < 2 else vllm([1])
    began = time.perf_counter()
    ask(engine(server, backoff=30.0))
    assert time.perf_counter() - began < 15


def test_nobody_there_is_tried_again_and_told() -> None:
    silent = OpenAIEngine(
        model="m", encode=renderer().encode, url="http://127.0.0.1:9/v1", retries=1, backoff=0.0
    )
    with pytest.raises(
        EngineError, match="127.0.0.1:9/v1 gave no completion in 2 tries; the last one: Connect"
    ):
        ask(silent)


def test_a_slow_server_is_given_up_and_the_message_says_after_how_long(server: Server) -> None:
    release = threading.Event()

    def slow(body: dict[str, Any], number: int) -> Answer:
        release.wait(20)
        return vllm([1])

    server.answer = slow
    try:
        with pytest.raises(EngineError, match="gave no answer within 0.2 s. Raise engine.args.timeout"):
            ask(engine(server, timeout=0.2))
    finally:
        release.set()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<html>not yours</html>", "answered with what is no JSON: <html>not yours</html>"),
        ({"choices": []}, "answered with what is no completion .IndexError"),
        ({"text": "hello"}, "answered with what is no completion .KeyError: 'choices'"),
        ([1, 2], "answered with what is no completion .TypeError"),
        ({"choices": [{"text": "a", "finish_reason": "boredom"}]}, "finish_reason is 'boredom'"),
        ({"choices": [{"text": 7, "finish_reason": "stop"}]}, "text is 7"),
        ({"choices": [{"token_ids": ["a"], "finish_reason": "stop"}]}, "answered with what is no completion"),
    ],
)
def test_nonsense_is_shown(server: Server, content: Any, message: str) -> None:
    server.answer = lambda body, number: (200, content, {})
    with pytest.raises(EngineError, match=message):
        ask(engine(server))
    assert len(server.asked) == 1


def test_a_wrong_model_is_told_which_there_are(server: Server) -> None:
    server.answer = lambda body, number: (404, {"error": {"message": "The model does not exist."}}, {})
    with pytest.raises(ConfigError, match="has no model 'tiny'.*404: The model does not exist.*small, large"):
        ask(engine(server, model="tiny"))


def test_a_wrong_key_is_told(server: Server) -> None:
    server.answer = lambda body, number: (401, {"message": "invalid key"}, {})
    with pytest.raises(
        ConfigError, match="wants a key, or another one .401: invalid key.*api_key_env, which is None"
    ):
        ask(engine(server))


def test_a_context_that_is_too_long_for_the_server_is_told(server: Server) -> None:
    said = "This model's maximum context length is 4 tokens."
    server.answer = lambda body, number: (400, {"message": said}, {})
    with pytest.raises(EngineError, match=f"400.: {said} If it .*lower engine.max_context .2048"):
        ask(engine(server))
    assert len(server.asked) == 1


def test_no_more_requests_at_once_than_allowed(server: Server) -> None:
    def slow(body: dict[str, Any], number: int) -> Answer:
        time.sleep(0.05)
        return vllm([1])

    server.answer = slow
    asked = engine(server, concurrency=3)

    async def many() -> list[Completion]:
        prompt, sampling = Prompt(ids=np.asarray([5], dtype=np.int32)), Sampling()
        return await asyncio.gather(
            *(asked.generate(prompt, sampling, session_id=f"s{n}", seed=n) for n in range(12))
        )

    assert len(asyncio.run(many())) == 12 and 1 < server.busiest <= 3


def test_an_aborted_request_returns_empty_and_a_later_one_is_answered(server: Server) -> None:
    release = threading.Event()

    def first_waits(body: dict[str, Any], number: int) -> Answer:
        if number == 1:
            release.wait(20)
        return vllm([1])

    server.answer = first_waits
    asked = engine(server)

    async def both() -> tuple[Completion, Completion]:
        prompt, sampling = Prompt(ids=np.asarray([5], dtype=np.int32)), Sampling()
        waiting = asyncio.create_task(asked.generate(prompt, sampling, session_id="s", seed=0))
        while not server.asked:
            await asyncio.sleep(0.01)
        await asked.abort("s")
        return await waiting, await asked.generate(prompt, sampling, session_id="s", seed=0)

    try:
        aborted, answered = asyncio.run(both())
    finally:
        release.set()
    assert aborted.finish == "abort" and len(aborted.ids) == 0
    assert answered.ids.tolist() == [1]


@pytest.mark.parametrize(
    "options", [{"url": "localhost:8000"}, {"max_context": 1}, {"concurrency": 0}, {"timeout": 0.0}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
        OpenAIEngine(**{"model": "m", "encode": renderer().encode, **options})


# --- in a recipe --------------------------------------------------------------------------------------


def table(server: Server) -> dict[str, Any]:
    args = {"url": server.url, "model": "small", "backoff": 0.01}
    return {**DICE, "engine": {"id": "openai", "max_context": 900, "args": args}}


def test_training_is_refused_before_anything_is_asked(
    server: Server, tiny_policy: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="engine 'openai' cannot be trained with: the weights are the server"
    ):
        build_parts(recipe_of(table(server), tiny_policy, tmp_path))
    with pytest.raises(EngineError, match="engine 'openai' takes no weights"):
        asyncio.run(engine(server).sync(None, 1))  # type: ignore[arg-type]
    assert server.asked == []


def test_an_evaluation_through_a_server(server: Server, tiny_policy: str, tmp_path: Path) -> None:
    """Every task twice; the server answers with what the seed says, as a sampler would."""
    ids = [[*renderer().encode(str(digit)), STOP] for digit in range(3)]
    server.answer = lambda body, number: vllm(ids[body["seed"] % 3])
    recipe = recipe_of(table(server), tiny_policy, tmp_path)
    found = api.evaluate_attempts(recipe, samples=2, display=quiet())
    assert found.report["errors"] == 0 and len(server.asked) == 8
    for place, group in enumerate(found.groups):
        for member, trajectory in enumerate(group.trajectories):
            sampling_seed = derive_seed(derive_seed(recipe.seed, "evaluation"), place, member)
            said = derive_seed(sampling_seed, 0) % 2**31 % 3
            assert trajectory.reward == float(said == guesses(4, first=90)[place].answer)
            assert trajectory.steps[0].action_ids.tolist() == ids[said]


def test_a_server_with_another_model_ends_the_evaluation_at_once(
    server: Server, tiny_policy: str, tmp_path: Path
) -> None:
    server.answer = lambda body, number: (404, {"message": "no such model"}, {})
    with pytest.raises(ConfigError, match="It serves small, large: set engine.args.model"):
        api.evaluate_attempts(recipe_of(table(server), tiny_policy, tmp_path), display=quiet())
