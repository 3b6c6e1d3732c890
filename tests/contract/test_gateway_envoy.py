"""The gateway as a client meets it: a real Envoy, the real picker, real HTTP servers as engine pods.

Protects the contract on requests: paths, split, weights in force at once, streaming and its timing, retries
before the first byte, refusals in OpenAI's shape, headers that a client may not set, /windows.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
from openai import AsyncOpenAI
from support.gateway.fleet import CANARY, HEADERS, STABLE, TOKENS, Fleet, running, until

from pagefleet_contract.sketch import quantile
from pagefleet_gateway.cluster.service import Service


@pytest.fixture
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with running() as fleet:
        fleet.headers = getattr(request, "param", "late")
        yield fleet


each_kind_of_engine = pytest.mark.parametrize("fleet", HEADERS, indirect=True)


async def test_split_is_exact_and_a_new_weight_is_in_force_at_the_next_request(fleet: Fleet) -> None:
    await fleet.engine(STABLE)
    await fleet.engine(STABLE)
    await fleet.engine(CANARY)
    fleet.serve((STABLE, 90), (CANARY, 10))
    seen: Counter[str] = Counter()
    for _ in range(50):
        for status, _, headers in await asyncio.gather(*(fleet.chat() for _ in range(10))):
            assert status == 200
            seen[headers["x-pagefleet-revision"]] += 1
    margin = 2.576 * math.sqrt(500 * 0.1 * 0.9)
    assert abs(seen[CANARY] - 50) <= margin
    assert seen == {STABLE: 450, CANARY: 50}

    fleet.serve((STABLE, 100), (CANARY, 0))
    answers = [await fleet.chat() for _ in range(20)]
    assert {headers["x-pagefleet-revision"] for _, _, headers in answers} == {STABLE}
    slices = await fleet.windows(requests=520)
    counted: Counter[object] = Counter()
    adjusted = [piece for piece in slices if piece["stratum"] == ""]  # load-adjusted times are in slices of their own
    assert adjusted and all(piece["requests"] == 0 and piece.get("wholeLoad") for piece in adjusted)
    for piece in slices:
        if piece in adjusted:
            continue
        counted[piece["revision"]] += piece["requests"]  # type: ignore[operator]
        assert piece["errors"] == 0 and piece["stratum"] == "0-63"
        assert piece["ttft"] == {}
        assert sum(piece["e2e"].values()) == piece["requests"]  # type: ignore[attr-defined]
    assert counted == {STABLE: 470, CANARY: 50}


@each_kind_of_engine
async def test_openai_client_streams_chunk_by_chunk_and_ttft_is_measured(fleet: Fleet) -> None:
    # Nothing is held back: the engine sends a token only when the client has the one before.
    gate = asyncio.Semaphore(0)
    await fleet.engine(STABLE, first_token=0.3, gate=gate)
    fleet.serve((STABLE, 100))
    async with AsyncOpenAI(base_url=f"{fleet.url}/team/chat/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in await client.models.list()] == ["smol"]
        began, tokens, first = time.monotonic(), [], 0.0
        stream = await client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        async for event in stream:
            if token := event.choices[0].delta.content:
                first = first or time.monotonic() - began
                tokens.append(token)
                gate.release()
        whole = await client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "hello"}])
    assert tuple(tokens) == TOKENS
    assert whole.choices[0].message.content == "".join(TOKENS)
    assert first >= 0.29
    slices = await fleet.windows(requests=3)
    ttft: Counter[int] = Counter()
    for piece in slices:
        ttft.update({int(bucket): count for bucket, count in piece["ttft"].items()})  # type: ignore[attr-defined]
    assert ttft.total() == 1  # only the request that streamed
    assert 0.29 <= quantile(ttft, 0.95) <= 0.5


@each_kind_of_engine
async def test_a_refused_connection_and_a_draining_pod_are_retried_elsewhere(fleet: Fleet) -> None:
    dead = await fleet.engine(STABLE)
    draining = await fleet.engine(STABLE, status=503)
    await fleet.engine(STABLE)
    await dead.stop()
    fleet.serve((STABLE, 100))
    answers = [await fleet.chat() for _ in range(40)]
    assert {status for status, _, _ in answers} == {200}
    # A pod that failed is left alone for some seconds: most requests never met it.
    assert len(draining.requests) <= 10
    # Each request was answered, and each attempt that failed is an error of the revision.
    await until(lambda: len(fleet.lines) == 40)
    attempts = sum(int(str(line["attempts"])) for line in fleet.lines)
    slices = await fleet.windows(requests=attempts)
    failed = [sum(int(str(piece.get(name, 0))) for piece in slices) for name in ("errors", "retried")]
    assert failed == [attempts - 40] * 2 and attempts > 40


@each_kind_of_engine
async def test_the_other_revision_carries_what_a_revision_without_pods_cannot(fleet: Fleet) -> None:
    fleet.serve((STABLE, 50), (CANARY, 50))
    await fleet.engine(STABLE)
    canary = await fleet.engine(CANARY)
    fleet.state.put_pod(canary.pod(ready=False))
    answers = [await fleet.chat() for _ in range(20)]
    assert {(status, headers["x-pagefleet-revision"]) for status, _, headers in answers} == {(200, STABLE)}
    # Still marked ready, but its process is gone: the stable one answers, and the canary has failed those.
    fleet.state.put_pod(canary.pod())
    await canary.stop()
    answers = [await fleet.chat() for _ in range(20)]
    assert {(status, headers["x-pagefleet-revision"]) for status, _, headers in answers} == {(200, STABLE)}
    slices = await fleet.windows(requests=40)
    errors = Counter({STABLE: 0, CANARY: 0})
    for piece in slices:
        errors[str(piece["revision"])] += int(str(piece["errors"]))
    assert errors[STABLE] == 0 and errors[CANARY] == 10


async def test_headers_a_client_may_not_set_are_removed(fleet: Fleet) -> None:
    other = await fleet.engine(CANARY)
    engine = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    forged = {
        "x-gateway-destination-endpoint": f"{other.host}:{other.port}",
        "x-pagefleet-anything": "1",
        "x-envoy-max-retries": "50",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "X-Envoy-Original-Path": "/admin",
        "x-request-id": "mine",
    }
    status, _, headers = await fleet.chat(headers=forged)
    assert status == 200 and headers["x-pagefleet-revision"] == STABLE
    assert headers["x-request-id"] not in ("", "mine")
    assert not other.requests
    received = {name.lower(): value for name, value in engine.requests[0].headers.items()}
    assert "x-pagefleet-anything" not in received
    assert f"{other.host}:{other.port}" not in received["x-gateway-destination-endpoint"]
    assert engine.requests[0].path == "/v1/chat/completions"


async def test_refusals_are_openai_shaped(fleet: Fleet) -> None:
    async def refusal(*arguments: str, **options: object) -> tuple[int, str, dict[str, str]]:
        status, body, headers = await fleet.chat(*arguments, **options)
        error = body["error"]
        assert isinstance(error, dict) and set(error) == {"message", "type", "param", "code"}
        assert headers["content-type"].startswith("application/json")
        return status, str(error["code"]), headers

    status, code, headers = await refusal("/team/chat/v1/chat/completions")
    assert (status, code) == (404, "service_not_found")
    fleet.serve()
    status, code, headers = await refusal()
    assert (status, code) == (503, "service_not_ready") and int(headers["retry-after"]) > 0
    fleet.serve((STABLE, 100))
    status, code, headers = await refusal()
    assert (status, code) == (503, "no_ready_pod") and int(headers["retry-after"]) > 0
    assert (await refusal("/nowhere"))[:2] == (404, "path_not_found")
    assert (await refusal("/v1/chat/completions", json={"model": "absent"}))[:2] == (404, "model_not_found")
    assert (await refusal("/v1/chat/completions", json={}))[:2] == (400, "model_required")
    fleet.state.put_service(Service("other", "chat", "smol", ((STABLE, 100),)))
    status, code, _ = await refusal("/v1/chat/completions")  # two services with one name are no error of the client
    assert (status, code) == (503, "no_ready_pod")
    assert (await refusal(data=b"x" * 70000, json=None))[:2] == (413, "request_too_large")


async def test_the_model_alone_routes_and_its_path_stays(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    assert (await fleet.chat("/v1/chat/completions"))[0] == 200
    assert engine.requests[0].path == "/v1/chat/completions"
    async with fleet.http.get(f"{fleet.url}/v1/models") as response:
        assert response.status == 200


async def test_canary_header_and_sticky_sessions(fleet: Fleet) -> None:
    await fleet.engine(STABLE)
    await fleet.engine(CANARY)
    fleet.serve(
        (STABLE, 50),
        (CANARY, 50),
        canary=CANARY,
        canary_headers=(("x-canary", "always"),),
        sticky_header="x-session-id",
    )
    forced = [await fleet.chat(headers={"X-Canary": "always"}) for _ in range(10)]
    assert {headers["x-pagefleet-revision"] for _, _, headers in forced} == {CANARY}
    await until(lambda: len(fleet.lines) == 10)  # the gateway knows that the canary answers: it is on trial no more
    sessions = {}
    for name in range(12):
        answers = [await fleet.chat(headers={"X-Session-Id": f"s{name}"}) for _ in range(3)]
        (sessions[name],) = {headers["x-pagefleet-revision"] for _, _, headers in answers}
    assert set(sessions.values()) == {STABLE, CANARY}


@each_kind_of_engine
async def test_errors_count_and_client_cancellations_do_not(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100), retries=0)
    engine.status = 500
    assert (await fleet.chat())[0] == 500
    engine.status = 400
    assert (await fleet.chat())[0] == 400
    engine.status, engine.truncate = 200, True
    with pytest.raises(aiohttp.ClientError):
        await fleet.chat(json={"model": "smol", "stream": True, "messages": []})
    engine.truncate, engine.first_token = False, 30
    with pytest.raises(TimeoutError):
        await fleet.chat(timeout=aiohttp.ClientTimeout(total=0.3))
    engine.first_token = 0
    assert (await fleet.chat())[0] == 200
    slices = await fleet.windows(requests=3)
    assert sum(int(str(piece["requests"])) for piece in slices) == 3  # 500, truncated, 200
    assert sum(int(str(piece["errors"])) for piece in slices) == 2
    await until(lambda: len(fleet.gateway.ledger) == 0)
    async with fleet.http.get(f"http://127.0.0.1:{fleet.gateway.internal_port}/metrics") as response:
        text = await response.text()
    labels = f'namespace="team",revision="{STABLE}",service="chat"'
    assert f'pagefleet_gateway_requests_total{{code="500",{labels}}} 1.0' in text


async def test_an_engine_that_queues_is_spared(fleet: Fleet) -> None:
    busy, idle = await fleet.engine(STABLE, waiting=50), await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    await until(lambda: fleet.gateway.readings.of(busy.pod(), time.monotonic()).waiting == 50)
    for _ in range(10):
        assert (await fleet.chat())[0] == 200
    assert (len(busy.requests), len(idle.requests)) == (0, 10)


@each_kind_of_engine
async def test_a_services_timeout_is_kept(fleet: Fleet) -> None:
    await fleet.engine(STABLE, first_token=5)
    fleet.serve((STABLE, 100), timeout_seconds=0.4)
    started = time.monotonic()
    status, body, _ = await fleet.chat()
    assert status == 504 and time.monotonic() - started < 3
    assert isinstance(body["error"], dict) and body["error"]["code"] == "upstream_timeout"


@each_kind_of_engine
async def test_a_stop_drains_what_is_in_flight(fleet: Fleet) -> None:
    engine = await fleet.engine(STABLE, first_token=0.5, between=0.3)
    fleet.serve((STABLE, 100))
    request = asyncio.create_task(fleet.chat())
    await until(lambda: len(engine.requests) == 1)
    stop = asyncio.Event()
    running = asyncio.create_task(fleet.gateway.run(stop))
    stop.set()
    await running
    assert (await request)[0] == 200
    assert fleet.gateway.not_ready_reason() == "the gateway drains: it is shutting down"
