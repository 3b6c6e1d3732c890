"""What a hostile client may try on the wire, byte by byte, against a real Envoy with the real picker behind it.

Protects that no engine sees a request whose end is ambiguous, a tunnel, an upgrade, a path that means something else
after decoding, or a header that only the picker may set; and that the connection is then closed or goes on in step.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from support.gateway import raw_http2
from support.gateway.fleet import CANARY, STABLE, Fleet, running, until

BODY = b'{"model":"smol","messages":[]}'
PATH = b"/team/chat/v1/chat/completions"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        yield fleet


def post(*headers: bytes, path: bytes = PATH, body: bytes = BODY, length: bool = True) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: gateway", b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % len(body)] if length else []
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body


async def exchange(fleet: Fleet, *data: bytes) -> tuple[list[int], bytes]:
    """Send `data`. Return the statuses of all answers until the gateway closes or is silent, and everything that it sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.port)
    got = b""
    with closing(writer):
        for part in data:
            writer.write(part)
            await writer.drain()
        try:
            async with asyncio.timeout(1.0):
                while part := await reader.read(65536):
                    got += part
        except (TimeoutError, ConnectionError):
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", got)], got


async def test_a_sound_request_passes(fleet: Fleet) -> None:
    statuses, got = await exchange(fleet, post(), post())
    assert statuses == [200, 200] and len(fleet.engines[0].requests) == 2
    assert b"x-envoy-" not in got.lower() and b"x-gateway-" not in got.lower()


SMUGGLED = b"0\r\n\r\nGET /team/chat/v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"Transfer-Encoding: chunked", body=SMUGGLED),
        post(b"Transfer-Encoding: chunked, identity", body=SMUGGLED, length=False),
        post(b"Transfer-Encoding: xchunked", body=SMUGGLED, length=False),
        post(b"Transfer-Encoding : chunked", body=SMUGGLED, length=False),
        post(b"Content-Length: 5"),
        post(b"Content-Length: +30", length=False),
        post(b"Content-Length: 30, 5", length=False),
        post(b"X-Nul: a\x00b"),
        post(b"Bad Name: 1"),
        post(b"X_Gateway_Destination_Endpoint: 127.0.0.1:1"),
        post(b"x-gateway_destination-endpoint: 127.0.0.1:1"),
        post(b": 1"),
    ],
    ids=lambda data: data.partition(b"\r\n\r\n")[0].split(b"\r\n")[-1].decode("latin-1").replace("\0", "NUL"),
)
async def test_ambiguous_lengths_and_malformed_headers_are_refused(fleet: Fleet, request_bytes: bytes) -> None:
    statuses, _ = await exchange(fleet, request_bytes)
    assert statuses in ([400], [501])
    assert not fleet.engines[0].requests


async def test_a_folded_header_stays_one_header_and_a_lone_return_ends_none(fleet: Fleet) -> None:
    """RFC 9112, 5.2 and 2.2: replaced by a space, or taken out; what stands behind them is never a header."""
    for header in (b"X-Odd: one\r\n injected: two", b"X-Odd: one\r\n\tinjected: two", b"X-Odd: a\rinjected: b"):
        statuses, _ = await exchange(fleet, post(header))
        assert statuses in ([200], [400])
    for request in fleet.engines[0].requests:
        assert "injected" not in {name.lower() for name in request.headers}
        assert "\r" not in request.headers["x-odd"] and "\n" not in request.headers["x-odd"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"CONNECT engine:8000 HTTP/1.1\r\nHost: engine:8000\r\n\r\n", {403, 404, 405, 400}),
        (b"GET / HTTP/0.9\r\n\r\n", {400, 426}),
        (b"GET /team/chat/v1/models HTTP/3.0\r\nHost: g\r\n\r\n", {400, 426, 505}),
        (b"GET /team/chat/v1/models HTTP/1.1\r\n\r\n", {400}),
        (b"TRACE /team/chat/v1/models HTTP/1.1\r\nHost: g\r\n\r\n", {400, 403, 404, 405}),
        (
            b"GET /team/chat/v1/realtime HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            {403, 400},
        ),
    ],
    ids=["connect", "0.9", "3.0", "no host", "trace", "websocket"],
)
async def test_tunnels_upgrades_and_other_protocols_are_refused(fleet: Fleet, data: bytes, expected: set[int]) -> None:
    statuses, _ = await exchange(fleet, data, post())
    assert not statuses or (statuses[0] in expected and 101 not in statuses)
    assert all(request.method == "POST" for request in fleet.engines[0].requests)


async def test_an_upgrade_to_h2c_is_no_upgrade(fleet: Fleet) -> None:
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    statuses, _ = await exchange(fleet, post(*upgrade))
    assert 101 not in statuses
    for request in fleet.engines[0].requests:
        assert not {"upgrade", "http2-settings"} & {name.lower() for name in request.headers}


@pytest.mark.parametrize(
    ("path", "status", "engine_path"),
    [
        (b"/team/chat/v1/chat%2fcompletions", 400, ""),
        (b"/team/chat/v1/%2e%2e%2f%2e%2e%2fmetrics", 400, ""),
        (b"/team/chat/v1/..%5c..%5cmetrics", 400, ""),
        (b"/team/chat/v1/../metrics", 404, ""),
        (b"/team/chat/v1/%2e%2e/drain", 404, ""),
        (b"/team/chat/v1/../../../drain", 404, ""),
        (b"/team/chat/metrics", 404, ""),
        (b"/drain", 404, ""),
        (b"//team//chat//v1//chat//completions", 200, "/v1/chat/completions"),
        (b"/team/./chat/v1/./chat/completions", 200, "/v1/chat/completions"),
        (b"/other/../team/chat/v1/chat/completions", 200, "/v1/chat/completions"),
        (b"http://engine/team/chat/v1/chat/completions", 200, "/v1/chat/completions"),
        (b"http://127.0.0.1:9901/quitquitquit", 404, ""),
        (b"http://engine/team/chat/v1/../drain", 404, ""),
        (b"/team/chat/v1/chat/completions#/../drain", 400, ""),
        (b"*", 400, ""),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else None,
)
async def test_a_path_means_what_it_says_once_decoded(fleet: Fleet, path: bytes, status: int, engine_path: str) -> None:
    statuses, _ = await exchange(fleet, post(path=path))
    assert statuses == [status]
    assert [request.path for request in fleet.engines[0].requests] == ([engine_path] if engine_path else [])


async def test_headers_of_the_picker_are_not_taken_from_a_client_in_any_spelling(fleet: Fleet) -> None:
    other = await fleet.engine(CANARY)
    address = f"{other.host}:{other.port}".encode()
    forged = [
        b"X-Gateway-Destination-Endpoint: " + address,
        b"x-gateway-destination-endpoint: " + address,
        b"x-gateway-destination-endpoint-subset: " + address,
        b"x-gateway-mirror-endpoint: " + address,
        b"x-pagefleet-mirror-cluster: mirrors",
        b"x-pagefleet-stream-timeout: attempt-1",
        b"x-pagefleet-output-tokens: 5",
        b"x-envoy-auth-headers-to-remove: content-type",
        b"x-envoy-retry-on: 5xx",
        b"x-envoy-upstream-rq-per-try-timeout-ms: 1",
        b"x-envoy-internal: true",
        b"x-envoy-decorator-operation: x",
    ]
    statuses, got = await exchange(fleet, post(*forged))
    assert statuses == [200] and not other.requests
    assert f"x-pagefleet-revision: {STABLE}".encode() in got
    received = {name.lower(): value for name, value in fleet.engines[0].requests[0].headers.items()}
    assert "x-pagefleet-mirror-cluster" not in received and "x-envoy-internal" not in received
    assert received["content-type"] == "application/json"
    # A hop-by-hop list may not take the picker's word away again.
    statuses, got = await exchange(fleet, post(b"Connection: keep-alive, x-gateway-destination-endpoint, x-request-id"))
    assert statuses in ([200], [400]) and not other.requests


async def test_what_is_too_large_is_refused_before_an_engine_sees_it(fleet: Fleet) -> None:
    assert (await exchange(fleet, post(b"X-Large: " + b"a" * 70_000)))[0] == [431]
    assert (await exchange(fleet, post(*(b"X-%d: 1" % n for n in range(200)))))[0] == [431]
    assert (await exchange(fleet, post(path=PATH + b"?" + b"a" * 70_000)))[0] in ([431], [414], [400])
    statuses, got = await exchange(fleet, post(body=b"x" * 70_000))
    assert statuses == [413]
    error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "request_too_large"
    chunks = b"".join(b"1000\r\n" + b"x" * 4096 + b"\r\n" for _ in range(20)) + b"0\r\n\r\n"
    assert (await exchange(fleet, post(b"Transfer-Encoding: chunked", body=chunks, length=False)))[0] == [413]
    assert not fleet.engines[0].requests


@pytest.mark.parametrize(("method", "query"), [(b"POST", b"?\xc3\xa9"), (b"FOO", b"")])
async def test_what_is_no_http_is_the_client_s_error(method: bytes, query: bytes) -> None:
    async with running() as fleet:
        await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        path = b"/team/chat/v1/chat/completions" + query
        await raw_http2.send(fleet.gateway.port, method, path, b'{"model":"smol","messages":[]}')
        await until(lambda: bool(fleet.lines))
        assert fleet.lines[0]["code"] == 400
