"""Protects that one request is one trace from the client through Envoy to the engine: a real gateway and a real engine
process send their spans to an OTLP receiver; logs of both have the trace's and the request's id; who samples nothing sends
nothing; a collector that is not there disturbs nobody."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.engine.api_process import NAME, Serving, make_model, serving
from support.gateway.fleet import STABLE, Fleet, running, until
from support.otlp_collector import collector, values

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.envoy import process
from pagefleet_gateway.envoy.tracing import Collector
from pagefleet_gateway.envoy.tracing import collector_from as named
from pagefleet_gateway.settings import SettingError, settings_from
from pagefleet_local.base.certificates import Authority

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY: dict[str, Any] = {"model": NAME, "prompt": "abc", "max_tokens": 4, "ignore_eos": True}
SERVER, CLIENT = Span.SpanKind.SPAN_KIND_SERVER, Span.SpanKind.SPAN_KIND_CLIENT


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield make_model(tmp_path_factory.mktemp("model") / "model")


def sent_to(address: str, **more: str) -> Collector:
    exporter = named({"OTEL_EXPORTER_OTLP_ENDPOINT": address, **more})
    if exporter is None:
        raise ValueError(address)
    return exporter


async def joined(fleet: Fleet, engine: Serving) -> None:
    """Make the engine the only pod of team/chat."""
    pod = Pod("one", "chat-one", "team", "chat", STABLE, f"127.0.0.1:{engine.port}", ready=True)
    fleet.state.put_pod(pod)
    fleet.serve((STABLE, 100))
    await until(lambda: pod in fleet.serving())


async def ask(fleet: Fleet, traceparent: str | None = None, path: str = "/team/chat/v1/completions") -> dict[str, str]:
    """Send a request and return the answer's headers."""
    headers = {"traceparent": traceparent} if traceparent else {}
    async with fleet.http.post(fleet.url + path, json=BODY, headers=headers) as response:
        assert response.status == (200 if path.startswith("/team/chat") else 404), await response.text()
        return {name.lower(): value for name, value in response.headers.items()}


async def test_a_request_is_one_trace_of_gateway_and_engine(model: str, tmp_path: Path) -> None:
    async with collector() as (address, spans):
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with serving(model, tmp_path / "log", extra=settings) as engine:
            async with running(spans=sent_to(address)) as fleet:
                await joined(fleet, engine)
                headers = await ask(fleet, f"00-{TRACE}-{PARENT}-01")
                await until(lambda: len(fleet.lines) == 1)
                await until(lambda: {service for service, _ in spans} == {"pagefleet-gateway", "pagefleet-engine"})
                # The attempt's span leaves with the request's.
                await until(lambda: any(span.kind == SERVER for span in of("pagefleet-gateway", spans)))
                (line,) = fleet.lines
        request = headers["x-request-id"]
        (server,) = (span for span in of("pagefleet-gateway", spans) if span.kind == SERVER)
        (attempt,) = (
            span
            for span in of("pagefleet-gateway", spans)
            if span.kind == CLIENT and "pagefleet.revision" in values(span)
        )
        (answer,) = of("pagefleet-engine", spans)
        assert {span.trace_id.hex() for _, span in spans} == {TRACE}
        assert server.parent_span_id.hex() == PARENT
        assert (attempt.parent_span_id, answer.parent_span_id) == (server.span_id, attempt.span_id)
        assert server.start_time_unix_nano <= answer.start_time_unix_nano
        assert answer.end_time_unix_nano <= server.end_time_unix_nano
        attributes = values(attempt)
        assert (attributes["pagefleet.service"], attributes["pagefleet.revision"]) == ("chat", STABLE)
        for span in (server, answer):
            assert values(span)["http.request.header.x-request-id"] == request
        assert (line["trace_id"], line["request_id"]) == (TRACE, request)
        logged = [json.loads(text) for text in (tmp_path / "log.out").read_text().splitlines() if text.startswith("{")]
        (entry,) = (one for one in logged if one["message"].startswith("POST"))
        assert (entry["trace_id"], entry["request_id"]) == (TRACE, request)


async def test_what_the_caller_does_not_sample_is_not_sent_and_is_in_the_log(model: str, tmp_path: Path) -> None:
    """The request after it is sampled: when its spans are there, those of the first would be."""
    async with collector() as (address, spans):
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with serving(model, tmp_path / "log", extra=settings) as engine:
            async with running(spans=sent_to(address)) as fleet:
                await joined(fleet, engine)
                await ask(fleet, f"00-{TRACE}-{PARENT}-00")
                await ask(fleet)
                await until(lambda: len(fleet.lines) == 2)
                await until(lambda: {service for service, _ in spans} == {"pagefleet-gateway", "pagefleet-engine"})
                unsampled, begun = fleet.lines
        assert unsampled["trace_id"] == TRACE
        assert {span.trace_id.hex() for _, span in spans} == {begun["trace_id"]} != {TRACE}


async def test_a_gateway_without_a_collector_names_the_trace_all_the_same(model: str, tmp_path: Path) -> None:
    with serving(model, tmp_path / "log") as engine:
        async with running() as fleet:
            await joined(fleet, engine)
            await ask(fleet, f"00-{TRACE}-{PARENT}-01")
            await ask(fleet)
            await ask(fleet, path="/nowhere/v1/completions")
            await until(lambda: len(fleet.lines) == 3)
            given, begun, _ = fleet.lines
    logged = [json.loads(text) for text in (tmp_path / "log.out").read_text().splitlines() if text.startswith("{")]
    answered = [(one["trace_id"], one["request_id"]) for one in logged if one["message"].startswith("POST")]
    assert answered == [(one["trace_id"], one["request_id"]) for one in (given, begun)]
    assert given["trace_id"] == TRACE


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "https://localhost:9"])
async def test_a_collector_that_is_not_there_delays_nobody(model: str, tmp_path: Path, address: str) -> None:
    """Nor does one whose certificates nobody signed: Envoy takes the configuration with TLS."""
    with serving(model, tmp_path / "log") as engine:
        spans = sent_to(address, OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority(tmp_path)))
        async with running(spans=spans) as fleet:
            await joined(fleet, engine)
            await asyncio.wait_for(asyncio.gather(*(ask(fleet) for _ in range(8))), 30)


@pytest.mark.parametrize(
    ("host", "address"), [("localhost", "127.0.0.1"), ("localhost", "::1"), ("127.0.0.1", "127.0.0.1")]
)
async def test_spans_reach_a_collector_by_its_name_or_its_address_over_tls(
    tmp_path: Path, host: str, address: str
) -> None:
    """The name has an address of each family, and the collector answers at one of them only."""
    trusted = authority(tmp_path)
    pair = Authority(tmp_path / "pki").issue("collector", "collector", hosts=[host])
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(pair.certificate, pair.key)
    async with (
        collector(address, host, secure) as (url, spans),
        running(spans=sent_to(url, OTEL_EXPORTER_OTLP_CERTIFICATE=str(trusted))) as fleet,
    ):
        await ask(fleet, path="/nowhere/v1/completions")
        await until(lambda: bool(of("pagefleet-gateway", spans)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, Collector("c", 4318, "/v1/traces")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/base/"}, Collector("c", 80, "/base/v1/traces")),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/spans",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other",
                "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20a,x=b",
                "OTEL_TRACES_SAMPLER": "traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "0.25",
                "OTEL_SERVICE_NAME": "edge",
            },
            Collector(
                "c", 443, "/spans", True, (("authorization", "Bearer a"), ("x", "b")), "edge", 0.25, parents=False
            ),
        ),
    ],
)
def test_opentelemetrys_own_variables_are_read(given: dict[str, str], expected: Collector | None) -> None:
    assert settings_from(given).spans == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:port"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no pair"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(name: str, value: str) -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
    with pytest.raises(SettingError, match=name):
        settings_from({**base, name: value})


def test_envoys_own_log_is_json_lines_too(tmp_path: Path) -> None:
    """That includes its message about a configuration with quotes and line breaks."""
    wrong = json.dumps({"admin": {"address": {"pipe": {"path": 'a "quoted"\nname'}}}, "no_such_field": 1})
    command = [
        str(process.executable()),
        "--mode",
        "validate",
        "--log-format",
        process.LOG_FORMAT,
        "--config-yaml",
        wrong,
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stderr.splitlines()
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert any("no_such_field" in line["message"] for line in lines), printed
    assert all(isinstance(line["time"], float) and line["logger"].startswith("envoy.") for line in lines)


def authority(folder: Path) -> Path:
    made = Authority(folder / "pki")
    made.ensure()
    return made.pair.certificate


def of(service: str, spans: list[tuple[str, Span]]) -> list[Span]:
    return [span for name, span in spans if name == service]
