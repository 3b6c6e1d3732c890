"""The limits of Envoy and of the picker beside it, with a real Envoy: requests longer than Envoy's own timers, connections that
end so that clients spread, both address families, and readiness only when every pod can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import threading
import time
from contextlib import AsyncExitStack

import aiohttp
import pytest
from support.gateway.fleet import STABLE, TOKENS, Engine, running, until

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.envoy import timeouts
from pagefleet_gateway.settings import Settings

BODY = {"model": "smol", "messages": [{"role": "user", "content": "hello"}]}


async def test_a_request_may_take_the_time_of_its_service_and_not_envoy_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "STREAM_IDLE_SECONDS", 1)
    async with running() as fleet:
        await fleet.engine(STABLE, first_token=2.5, headers="first")
        fleet.serve((STABLE, 100), timeout_seconds=3600.0)
        assert (await fleet.chat())[0] == 200
        async with fleet.http.post(
            f"{fleet.url}/team/chat/v1/chat/completions", json={**BODY, "stream": True}
        ) as answer:
            assert answer.status == 200 and b"[DONE]" in await answer.read()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_ends_so_that_clients_spread_and_its_open_answer_does_not(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Over HTTP/1.1; an answer that is open when the connection's time is over comes whole."""
    monkeypatch.setattr(timeouts, "CLIENT_CONNECTION_SECONDS", 1)
    monkeypatch.setattr(timeouts, "GOAWAY_SECONDS", 0.2)
    async with running() as fleet:
        await fleet.engine(STABLE, between=1.5)
        fleet.serve((STABLE, 100))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            url = f"{fleet.url}/team/chat/v1/chat/completions"
            async with http.post(url, json={**BODY, "stream": stream}) as answer:
                text = (await answer.read()).decode()
            assert answer.status == 200 and all(token.strip() in text for token in TOKENS)
            connector = http.connector
            assert connector is not None
            await until(lambda: not connector._conns)  # type: ignore[attr-defined]


async def test_ipv4_and_ipv6_clients_and_pods() -> None:
    async with running(address="::") as fleet:
        engine = Engine("::1", STABLE)
        await engine.start()
        fleet.stack.push_async_callback(engine.stop)
        pod = Pod("six", "chat-six", "team", "chat", STABLE, f"[::1]:{engine.port}")
        fleet.state.put_pod(pod)
        fleet.serve((STABLE, 100))
        await until(lambda: pod in fleet.serving())
        for host in ("127.0.0.1", "[::1]"):
            url = f"http://{host}:{fleet.gateway.port}/team/chat/v1/chat/completions"
            async with fleet.http.post(url, json=BODY) as answer:
                assert answer.status == 200
            async with fleet.http.get(f"http://{host}:{fleet.gateway.internal_port}/readyz") as answer:
                assert answer.status == 200
        assert len(engine.requests) == 2


async def test_a_gateway_is_ready_only_when_envoy_has_every_pod() -> None:
    state = State()
    state.replace_pods(
        Pod(f"u{n}", f"p{n}", "team", "chat", STABLE, f"127.1.{n // 250}.{n % 250}:8000") for n in range(3000)
    )
    state.put_service(Service("team", "chat", "smol", ((STABLE, 100),)))
    settings = Settings(port=0, internal_port=0, address="127.0.0.1", settle_seconds=0, drain_seconds=0)
    gateway = Gateway(settings, state, lambda _: None)
    assert gateway.not_ready_reason() == "Envoy is not live yet"
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        await gateway.start()
        assert "3000 engine pods" in gateway.not_ready_reason()
        late = Pod("late", "late", "team", "chat", STABLE, "127.2.0.1:8000")
        state.put_pod(late)  # no pod that comes later delays it
        await until(lambda: gateway.not_ready_reason() == "")
        assert len(state.snapshot.pods["team", "chat"][STABLE]) >= 3000
        state.put_pod(Pod("later", "later", "team", "chat", STABLE, "127.2.0.2:8000"))
        assert gateway.not_ready_reason() == ""


async def test_a_loop_that_hangs_ends_the_process() -> None:
    code = (
        "import asyncio, time\n"
        "from pagefleet_gateway.main import end_when_hung\n"
        "async def main():\n"
        "    task = asyncio.create_task(end_when_hung(1.0, 0.2))\n"
        "    await asyncio.sleep(3.0)\n"
        "    print('alive', flush=True)\n"
        "    time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    stdout, stderr = await asyncio.wait_for(process.communicate(), 40)
    assert (process.returncode, stdout) == (1, b"alive\n")
    assert b"in main" in stderr and time.monotonic() - begun < 40


async def test_requests_that_wait_in_a_picker_that_hangs_get_503_within_five_seconds() -> None:
    """One is held because no pod is there, one comes while the loop hangs."""
    async with running() as fleet:
        fleet.serve((STABLE, 100), hold_seconds=60.0)
        answers: list[tuple[int, str, float]] = []

        def ask(wait: float) -> None:
            time.sleep(wait)
            begun = time.monotonic()
            url = http.client.HTTPConnection("127.0.0.1", fleet.gateway.port, timeout=30)
            with contextlib.closing(url) as connection:
                connection.request("POST", "/team/chat/v1/chat/completions", json.dumps(BODY))
                response = connection.getresponse()
                code = json.loads(response.read())["error"]["code"]
            answers.append((response.status, code, time.monotonic() - begun))

        threads = [threading.Thread(target=ask, args=(wait,)) for wait in (0.0, 1.5)]
        for thread in threads:
            thread.start()
        await until(lambda: fleet.gateway.holding.held(("team", "chat")) == 1)
        time.sleep(8.0)  # the loop hangs  # noqa: ASYNC251
        assert [(status, code) for status, code, _ in answers] == [(503, "picker_unavailable")] * 2
        assert max(seconds for _, _, seconds in answers) < 5.5
        for thread in threads:
            thread.join(1.0)
        await until(lambda: not fleet.gateway.holding.queued_by_service())
        await fleet.engine(STABLE)

        async def answers_again() -> bool:
            return (await fleet.chat())[0] == 200

        await until(answers_again, 5.0)
