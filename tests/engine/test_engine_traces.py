"""Protects that a request stays within its caller's trace: in the log always, by OTLP where a collector is named; and
that nothing of it is paid for elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.engine.api_process import NAME, make_model, serving
from support.otlp_collector import collector, values

from pagefleet_engine.api.observability import traces

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
COLLECTED = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def head(flags: str) -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "x-request-id": "r-1", "Content-Type": "application/json"}


async def test_requests_are_spans_of_their_callers_traces(tmp_path: Path) -> None:
    """Sent before the process ends; a caller that samples nothing gets no span, and its trace is in the log."""
    body: dict[str, Any] = {"model": NAME, "prompt": "abc", "max_tokens": 4, "ignore_eos": True}
    asked = [
        ({**body, "stream": True}, head("01")), ({**body, "n": 0}, head("01")), (body, head("00")), (body, {}),
    ]  # fmt: skip
    async with collector() as (address, spans):
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
        with serving(make_model(tmp_path / "model"), tmp_path / "log", extra=settings) as served:
            for document, headers in asked:
                send = json.dumps(document).encode()
                await asyncio.to_thread(served.ask, "POST", "/v1/completions", send, headers)
            await asyncio.to_thread(served.ask, "GET", "/health")
            served.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.process.wait, 60) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.out").read_text().splitlines() if line.startswith("{")]
    logged = [(line.get("trace_id"), line.get("request_id")) for line in lines if line["message"].startswith("POST")]
    assert logged[:3] == [(TRACE, "r-1")] * 3
    assert len(spans) == 3
    (service, streamed), (_, refused), (_, rootless) = spans
    assert (service, streamed.name, streamed.kind) == (
        "pagefleet-engine",
        "POST /v1/completions",
        Span.SpanKind.SPAN_KIND_SERVER,
    )
    for span in (streamed, refused):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        assert span.end_time_unix_nano > span.start_time_unix_nano
    attributes = values(streamed)
    assert (attributes["http.response.status_code"], attributes["http.request.header.x-request-id"]) == (200, "r-1")
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (3, 4)
    assert (attributes["gen_ai.request.model"], attributes["gen_ai.operation.name"]) == (NAME, "text_completion")
    assert (attributes["gen_ai.response.model"], attributes["gen_ai.provider.name"]) == (NAME, "pagefleet")
    assert (values(refused)["http.response.status_code"], refused.status.code) == (400, Status.STATUS_CODE_UNSET)
    assert rootless.parent_span_id == b""
    assert logged[3] == (rootless.trace_id.hex(), None)


async def test_a_collector_that_is_not_there_disturbs_nobody(tmp_path: Path) -> None:
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    with serving(make_model(tmp_path / "model"), tmp_path / "log", extra=settings) as served:
        for _ in range(3):
            served.answer("/v1/completions", {"model": NAME, "prompt": "abc", "max_tokens": 1})
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0


def test_without_a_collector_nothing_is_imported() -> None:
    program = (
        "import sys; from pagefleet_engine.api import server; from pagefleet_engine.api.observability import traces; "
        "assert isinstance(traces.start({}), traces.Off); "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_sdk_is_said_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, COLLECTED, None)
    assert isinstance(traces.start({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}), traces.Off)
    assert "the extra `otel`" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE),
        (f"00-{TRACE}-{PARENT}-00", TRACE),
        (f"cc-{TRACE}-{PARENT}-01-what-comes-next", TRACE),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}", None),
        ("", None),
        (None, None),
    ],
)
def test_the_trace_is_read_as_w3c_says(header: str | None, expected: str | None) -> None:
    assert traces.trace_id(header) == expected
