"""Protects what the gateway counts an answer's tokens by: the trailer of a stream, the headers of an answer, and
that a connection stays in step after a trailer. A client that did not ask for trailers gets none.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine.api_process import NAME, TIMEOUT_SECONDS, Serving, make_model, serving

NAMED = b"x-pagefleet-output-tokens"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("trailers")
    with serving(make_model(folder / "model"), folder / "termination") as running:
        yield running


def asked(tokens: int, *headers: bytes, stream: bool = True) -> bytes:
    document = {"model": NAME, "prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    body = json.dumps(document).encode()
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: e", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body


def streamed(connection: socket.socket, request: bytes) -> tuple[bytes, bytes]:
    """One streamed answer: everything up to its last chunk, and what follows that (trailers)."""
    connection.sendall(request)
    got = b""
    while b"\r\n0\r\n" not in got or not got.endswith(b"\r\n\r\n"):
        part = connection.recv(65536)
        assert part, got
        got += part
    head, _, rest = got.rpartition(b"\r\n0\r\n")
    return head, rest


def test_tokens_follow_a_stream_as_a_trailer_and_the_connection_goes_on(served: Serving) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=TIMEOUT_SECONDS) as connection:
        for tokens in (3, 7):
            head, rest = streamed(connection, asked(tokens, b"TE: trailers"))
            assert head.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in head
            assert b"trailer: " + NAMED in head.lower()
            assert rest.strip() == NAMED + b": %d" % tokens
        head, rest = streamed(connection, asked(2))
        assert NAMED not in head.lower() and rest.strip() == b""


def test_a_whole_answer_says_its_tokens_in_a_header(served: Serving) -> None:
    document = {"model": NAME, "prompt": ["hi", "ho"], "max_tokens": 4, "ignore_eos": True}
    assert served.post("/v1/completions", document).headers[NAMED.decode()] == "8"


def test_every_answer_has_its_prompts_tokens_in_a_header(served: Serving) -> None:
    name = "x-pagefleet-prompt-tokens"
    whole = served.post("/v1/completions", {"model": NAME, "prompt": ["hi", "ho"], "max_tokens": 4})
    assert int(whole.headers[name]) == json.loads(whole.body)["usage"]["prompt_tokens"] > 0
    embedded = served.post("/v1/embeddings", {"model": NAME, "input": ["hi", "ho"]})
    assert int(embedded.headers[name]) == json.loads(embedded.body)["usage"]["prompt_tokens"] > 0
    one = served.post("/v1/completions", {"model": NAME, "prompt": "hi", "max_tokens": 1})
    with socket.create_connection(("127.0.0.1", served.port), timeout=TIMEOUT_SECONDS) as connection:
        head, _ = streamed(connection, asked(3))
        assert f"{name}: {one.headers[name]}".encode() in head.lower()
