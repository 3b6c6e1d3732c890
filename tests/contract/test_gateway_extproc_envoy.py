"""A real Envoy of another gateway in front of the endpoint picker, over mutual TLS, with engines behind it.

Protects that a conforming gateway's requests go where the picker says, that the served endpoint, the end and the first token of
each come back, that a request's InferenceObjective is in force (and at our own Envoy is not), that an engine that is gone is tried around and blamed, that clients' keys reach no engine, that a changed body
reaches the engine whole, that a gateway waits while the picker holds a request, and that a gateway
without a certificate serves nothing and counts nowhere.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.gateway.behind_envoy import CHAT, GATEWAY, PICKER, options, other
from support.gateway.fleet import CANARY, STABLE, Engine, Fleet, running, until
from support.gateway.other_envoy import OtherEnvoy

from pagefleet_contract.engine_metrics import HIGHER_FIRST
from pagefleet_contract.headers import CLIENT_HEADER, PEAK_HEADER
from pagefleet_gateway.cluster import engines
from pagefleet_gateway.cluster.service import OBJECTIVE_HEADER
from pagefleet_gateway.fronts.ext_proc_messages import MODEL_REWRITE
from pagefleet_gateway.fronts.ext_proc_tls import self_signed


def counted(fleet: Fleet, name: str, labels: str = "") -> float:
    lines = fleet.gateway.metrics.text().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and labels in line)


@pytest.mark.parametrize("headers", ["late", "first", "role"])
@pytest.mark.parametrize("bodies", ["FULL_DUPLEX_STREAMED", "STREAMED", "NONE"])
async def test_a_streams_first_token_is_the_clients_where_the_answers_body_comes(
    tmp_path: Path, headers: str, bodies: str
) -> None:
    async with running(**options(tmp_path)) as fleet:
        await fleet.engine(STABLE, first_token=0.4, headers=headers, between=0.05)
        fleet.serve((STABLE, 100))
        async with other(fleet, tmp_path, bodies=bodies).running() as url:
            began = time.monotonic()
            async with fleet.http.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
                assert response.headers["x-pagefleet-revision"] == STABLE
                text = b""
                while b'"content": "one"' not in text:
                    text += await response.content.readany()
                first = time.monotonic() - began
                text += await response.read()
            whole = time.monotonic() - began
            assert response.status == 200 and text.endswith(b"data: [DONE]\n\n")
            await until(lambda: counted(fleet, "pagefleet_gateway_requests_total") == 1)
        known = bodies != "NONE"
        assert counted(fleet, "pagefleet_gateway_ttft_seconds_count") == known
        ttft = counted(fleet, "pagefleet_gateway_ttft_seconds_sum")
        e2e = counted(fleet, "pagefleet_gateway_e2e_seconds_sum")
        assert 0.4 <= ttft <= first if known else ttft == 0
        assert 0.5 <= e2e <= whole + 0.1 if known else e2e == 0  # the exchange is over with the headers
        assert counted(fleet, "pagefleet_gateway_picker_outcomes_dropped_total") == 0


async def test_an_engine_that_is_gone_is_tried_around_and_left_alone(tmp_path: Path) -> None:
    async with running(**options(tmp_path)) as fleet:
        engines = [await fleet.engine(revision) for revision in (STABLE, STABLE)]
        fleet.serve((STABLE, 100))
        async with other(fleet, tmp_path).running() as url:
            engines[0].die()
            ejected, asked = [False, False], 0
            while not ejected[0]:
                asked += 1
                assert asked <= 60, "no request was picked for the engine that is gone"
                async with fleet.http.post(f"{url}/v1/chat/completions", json=CHAT) as response:
                    assert response.status == 200
                await until(lambda: len(fleet.gateway.ledger) == 0)
                now = time.monotonic()
                ejected = [fleet.gateway.ledger.ejected(engine.pod(), now) for engine in engines]
        assert len(engines[1].requests) == asked and not ejected[1]


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_the_cap_of_a_peak_changes_the_body_that_the_engine_gets(tmp_path: Path, mode: str) -> None:
    async with running(**options(tmp_path)) as fleet:
        engine = await fleet.engine(STABLE, waiting=3)
        fleet.serve((STABLE, 100), peak_output_tokens=64)
        await until(lambda: fleet.gateway.readings.of(engine.pod(), time.monotonic()).waiting > 0)
        envoy = other(fleet, tmp_path)
        envoy.requests = mode
        for text in ("hello", "é" * 10_200):
            asked = CHAT | {"messages": [{"role": "user", "content": text}], "max_tokens": 9000}
            async with envoy.running() as url, fleet.http.post(f"{url}/v1/chat/completions", json=asked) as response:
                assert (response.status, response.headers[PEAK_HEADER]) == (200, "64")
                await response.read()
            assert json.loads(await engine.requests[-1].read()) == asked | {"max_tokens": 64}


async def test_an_objective_is_the_engines_priority_and_a_negative_one_is_shed_under_load(tmp_path: Path) -> None:
    async with running(**options(tmp_path)) as fleet:
        engine = await fleet.engine(STABLE)
        pod = replace(engine.pod(), engine=engines.Engine(priority=HIGHER_FIRST))
        fleet.state.put_pod(pod)
        fleet.serve((STABLE, 100))
        fleet.state.set_request_priorities({("team", "chat"): (("live", 10), ("batch", -2))})
        await until(lambda: pod in fleet.serving())
        async with other(fleet, tmp_path).running() as url:

            async def asked(name: str) -> int:
                headers = {OBJECTIVE_HEADER: name}
                async with fleet.http.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) as response:
                    await response.read()
                return response.status

            assert [await asked(name) for name in ("live", "batch", "unknown")] == [200, 200, 200]
            bodies = [json.loads(await one.read()) for one in engine.requests]
            assert bodies == [CHAT | {"priority": 10}, CHAT | {"priority": -2}, CHAT]
            engine.waiting = 3
            await until(lambda: fleet.gateway.readings.of(pod, time.monotonic()).waiting > 0)
            assert [await asked(name) for name in ("batch", "live")] == [429, 200]
            own = f"{fleet.url}/team/chat"  # our own Envoy takes the header away
            for name in ("batch", "live"):
                headers = {OBJECTIVE_HEADER: name}
                async with fleet.http.post(f"{own}/v1/chat/completions", json=CHAT, headers=headers) as response:
                    assert response.status == 200
                assert json.loads(await engine.requests[-1].read()) == CHAT


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED", "NONE"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_a_gateway_waits_for_a_request_that_the_picker_holds(tmp_path: Path, mode: str, path: str) -> None:
    async with running(**options(tmp_path)) as fleet:
        fleet.serve((STABLE, 100), hold_seconds=30.0)
        engine = Engine("127.0.0.9", STABLE)
        await engine.start()
        fleet.stack.push_async_callback(engine.stop)
        assert fleet.gateway.picker_port is not None
        envoy = OtherEnvoy(tmp_path, fleet.gateway.picker_port, [engine.pod().address], PICKER, GATEWAY)
        envoy.requests, envoy.wait = mode, "0.3s"
        async with envoy.running() as url:
            began = time.monotonic()
            method, body = ("GET", None) if path == "/v1/models" else ("POST", CHAT)
            asked = asyncio.create_task(fleet.http.request(method, url + path, json=body))
            await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 1 and time.monotonic() - began > 1)
            fleet.state.put_pod(engine.pod())
            async with await asked as response:
                assert response.status == 200


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_gateways_name_of_the_model_replaces_that_of_the_body(tmp_path: Path, mode: str) -> None:
    async with running(**options(tmp_path)) as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        envoy = other(fleet, tmp_path)
        envoy.requests, envoy.prefix = mode, "/"
        asked = CHAT | {"model": "alias", "metadata": {"model": "alias"}}
        async with envoy.running() as url:
            base, headers = url.removesuffix("/team/chat"), {MODEL_REWRITE: "smol"}
            for given, status in (({}, 404), (headers, 200), ({MODEL_REWRITE: "none"}, 404)):
                async with fleet.http.post(f"{base}/v1/chat/completions", json=asked, headers=given) as response:
                    assert response.status == status
        (request,) = engine.requests
        assert json.loads(await request.read()) == asked | {"model": "smol"}


async def test_a_split_is_exact_through_another_gateway(tmp_path: Path) -> None:
    async with running(**options(tmp_path)) as fleet:
        engines = [await fleet.engine(revision) for revision in (STABLE, CANARY)]
        fleet.serve((STABLE, 75), (CANARY, 25))
        async with other(fleet, tmp_path).running() as url:
            for _ in range(20):
                async with fleet.http.post(f"{url}/v1/chat/completions", json=CHAT) as response:
                    assert response.status == 200
        assert [len(engine.requests) for engine in engines] == [15, 5]


async def test_no_engine_sees_the_clients_key_of_either_header(tmp_path: Path) -> None:
    file, key = tmp_path / "keys.yaml", "sk-one-0123456789"
    file.write_text(f"- {{name: one, key: {key}}}")
    async with running(**options(tmp_path), api_keys_file=file) as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        bearer, bare = {"authorization": f"Bearer {key}"}, {"x-api-key": key, CLIENT_HEADER: "another"}
        async with other(fleet, tmp_path).running() as url:
            for headers, status in ((bearer, 200), (bare, 200), (bearer | bare, 200), ({"x-api-key": "sk-wrong"}, 401)):
                async with fleet.http.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) as response:
                    assert response.status == status
        assert len(engine.requests) == 3
        assert not any({"authorization", "x-api-key"} & set(one.headers) for one in engine.requests)
        assert [one.headers.getall(CLIENT_HEADER) for one in engine.requests] == [["one"]] * 3


async def test_a_gateway_without_a_certificate_serves_nothing_and_counts_nowhere(tmp_path: Path) -> None:
    async with running(**options(tmp_path)) as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        for own in (None, self_signed(["stranger"])):
            async with (
                other(fleet, tmp_path, own).running() as url,
                fleet.http.post(f"{url}/v1/chat/completions", json=CHAT) as response,
            ):
                assert response.status >= 500
        assert engine.requests == [] and len(fleet.gateway.ledger) == 0
        assert counted(fleet, "pagefleet_gateway_requests_total") == 0
