"""Protects an engine and the streams on it from single requests. A request whose sampling would end the engine is refused.
A request that cannot be computed ends alone and is not to be sent on. An engine that does end reports it to the gateway."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, TIMEOUT_SECONDS, Serving, make_model, serving
from support.engine.failing_runner import FIRST, KILLS, RAISES, environment, fault
from support.engine.files import SMOLLM2

LENGTH = 400  # tokens of the stream beside
ERROR = "x-pagefleet-error"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("culprits") / "model")


@pytest.fixture(scope="module")
def faulty(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    log = tmp_path_factory.mktemp("faulty") / "termination"
    with serving(model, log, extra=environment(), first=FIRST) as running:
        yield running


class Beside:
    """A greedy stream that is open during another request, and must end as it would alone."""

    def __init__(self, served: Serving, tokens: int = LENGTH) -> None:
        self._served, self._tokens = served, tokens
        self._body = {"model": NAME, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        self._alone = served.answer("/v1/completions", self._body)["choices"][0]["text"]
        self._pid = served.engine_pid()

    def __enter__(self) -> Beside:
        self._stream = self._served.open_stream(prompt="Once", max_tokens=self._tokens, temperature=0)
        self._seen = b""
        while b"data: " not in self._seen:
            self._seen += self._more()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._stream:
            if kind is not None:
                return
            assert self._served.metric("pagefleet_num_requests_running") == 1, "the stream was over too early"
            while not self._seen.endswith(b"0\r\n\r\n"):
                self._seen += self._more()
        assert "".join(event["choices"][0]["text"] for event in events(self._seen)) == self._alone
        assert b"data: [DONE]" in self._seen
        assert self._served.engine_pid() == self._pid and self._served.ready()

    def _more(self) -> bytes:
        part = self._stream.recv(65536)
        assert part, "the stream was cut"
        return part


def events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def test_what_ended_an_engine_is_refused_and_the_stream_beside_goes_on(tmp_path: Path) -> None:
    """The model's vocabulary is large enough for its penalised logits to lose their way in."""
    culprit = {"model": NAME, "prompt": "Hello, my name is", "max_tokens": 64, "repetition_penalty": 1e-40}
    with serving(SMOLLM2, tmp_path / "termination") as served, Beside(served, 120):
        for stream in (False, True):
            refused = served.post("/v1/completions", {**culprit, "stream": stream})
            assert refused.status == 400, refused.body
            assert refused.error["param"] == "repetition_penalty"
            assert "from 0.01 to 2" in refused.error["message"]
        for name, least in (
            ("top_p", 5e-324),
            ("min_p", 5e-324),
            ("temperature", 5e-324),
            ("repetition_penalty", 0.01),
        ):
            document = {**culprit, "max_tokens": 4, "repetition_penalty": 0.01, name: least, "seed": 1}
            assert served.answer("/v1/completions", document)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("changes", [{}, {"n": 3}, {"prompt": ["a", "b"]}, {"logprobs": 2}], ids=str)
def test_a_request_that_cannot_be_computed_ends_alone_with_a_500(faulty: Serving, changes: dict[str, Any]) -> None:
    before = faulty.metric("pagefleet_request_success_total", finished_reason="error")
    with Beside(faulty):
        document = {"model": NAME, "prompt": "hi", "max_tokens": 20, **fault(RAISES), **changes}
        failed = faulty.post("/v1/completions", document)
    assert failed.status == 500, failed.body
    assert (failed.error["type"], failed.error["code"]) == ("server_error", "request_failed")
    assert "not send it again" in failed.error["message"] and "Traceback" not in failed.error["message"]
    assert failed.headers[ERROR] == "request_failed" and "retry-after" not in failed.headers
    assert faulty.metric("pagefleet_request_success_total", finished_reason="error") > before


def test_a_stream_that_cannot_be_computed_further_ends_with_an_event(faulty: Serving) -> None:
    document = {"model": NAME, "prompt": "hi", "max_tokens": 20, "stream": True, **fault(RAISES, 3)}
    document |= {"ignore_eos": True, "temperature": 0}  # a token drawn by lot may be a special one, which has no text
    body = json.dumps(document).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nContent-Length: {len(body)}\r\n\r\n"
    with Beside(faulty), socket.create_connection(("127.0.0.1", faulty.port), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while b"\r\n0\r\n" not in received or not received.endswith(b"\r\n\r\n"):
            part = connection.recv(65536)
            assert part, received
            received += part
    assert received.startswith(b"HTTP/1.1 200")
    *texts, last = events(received)
    assert sum(len(event["choices"][0]["text"]) for event in texts) == 3
    assert last["error"]["code"] == "request_failed" and b"[DONE]" not in received
    assert received.endswith(f"\r\n0\r\n{ERROR}: request_failed\r\n\r\n".encode())


@pytest.mark.parametrize(("attempt", "status"), [(None, 503), ("2", 500)])
def test_an_engine_s_end_is_a_503_and_on_a_retry_the_last_word(
    model: str, tmp_path: Path, attempt: str | None, status: int
) -> None:
    """The gateway sends a 503 on to another pod, and a 500 to the client."""
    with serving(model, tmp_path / "termination", extra=environment(), first=FIRST) as served:
        document = {"model": NAME, "prompt": "hi", "max_tokens": 9, **fault(KILLS)}
        headers = {"Content-Type": "application/json", **({"x-envoy-attempt-count": attempt} if attempt else {})}
        answer = served.ask("POST", "/v1/completions", json.dumps(document).encode(), headers)
        assert (answer.status, answer.error["code"], answer.headers[ERROR]) == (status, "engine_died", "engine_died")
        assert served.process.wait(TIMEOUT_SECONDS) == 1
