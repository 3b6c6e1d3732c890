"""Who may use the endpoint picker's port, over real TLS, and what those who may not leave behind: nothing.

Protects TLS by default with a certificate of its own or a Secret's, a swap of the Secret under a running picker, that a
client without an authority's certificate changes no window and no ledger, that an answer from no picked pod counts in no measurement and is paid for,
the settings, and the gRPC health service.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from support.gateway.ext_proc import BODY, World, http_headers, pod
from support.gateway.fleet import until

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.fronts.ext_proc_health import HealthRequest, HealthResponse, Status
from pagefleet_gateway.fronts.ext_proc_tls import Pair, self_signed
from pagefleet_gateway.proxy import GatewayError
from pagefleet_gateway.settings import SettingError, Settings, settings_from

FORGED = 200
KEY = "sk-0123456789abcdef"
PICKER = "PAGEFLEET_GATEWAY_PICKER"


def mount(folder: Path, pair: Pair) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in (("tls.crt", pair.chain), ("tls.key", pair.key)):
        (folder / "fresh").write_bytes(text)
        (folder / "fresh").replace(folder / name)
    return folder


@asynccontextmanager
async def gateway(**options: object) -> AsyncIterator[Gateway]:
    state = State()
    weights = (("aaaaaaaa", 80), ("bbbbbbbb", 20))
    state.put_service(Service("team", "chat", "smol", weights))
    defaults: dict[str, object] = {"port": 0, "internal_port": 0, "picker_port": 0, "settle_seconds": 0}
    settings = Settings(**{"address": "127.0.0.1"} | defaults | options)  # type: ignore[arg-type]
    running = Gateway(settings, state, lambda _: None)
    try:
        await running.start()
        state.replace_pods([pod(1)])
        await until(lambda: state.are_confirmed(state.pods))  # Envoy knows it
        yield running
    finally:
        await running.close()


@asynccontextmanager
async def channel(
    running: Gateway, trusted: bytes, own: Pair | None = None, host: str = "localhost"
) -> AsyncIterator[grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials(trusted, *((own.key, own.chain) if own else ()))
    options = [("grpc.ssl_target_name_override", host)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{running.picker_port}", credentials, options) as found:
        yield found


def shown(running: Gateway) -> bytes:
    """The certificate that the picker shows now."""
    assert running.picker_port is not None
    return ssl.get_server_certificate(("127.0.0.1", running.picker_port)).encode()


def slices(running: Gateway, ahead: float = 10) -> str:
    """The slices that are closed `ahead` seconds from now."""
    found = running.windows.document("team", "chat", 0, time.monotonic() + ahead)["slices"]
    assert isinstance(found, msgspec.Raw)
    return bytes(found).decode()


def counted(running: Gateway, name: str) -> float:
    lines = running.metrics.text().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def forge(world: World, status: str = "200", served: str = "10.0.0.66:8000") -> None:
    """A whole exchange as a gateway would report it, with no engine anywhere."""
    call = world.call()
    await call.pick()
    await call.answered(served, status)
    await call.end()


async def test_forged_exchanges_without_a_gateways_certificate_add_nothing(tmp_path: Path) -> None:
    server, known, stranger = (self_signed([name]) for name in ("localhost", "gateway", "stranger"))
    (tmp_path / "ca.crt").write_bytes(known.chain)
    options = {"picker_tls_folder": mount(tmp_path / "tls", server), "picker_client_ca": tmp_path / "ca.crt"}
    async with gateway(**options) as running:
        plain = grpc.aio.insecure_channel(f"127.0.0.1:{running.picker_port}")
        async with channel(running, server.chain) as nobody, channel(running, server.chain, stranger) as other, plain:
            for refused in (nobody, other, plain):
                world = World(refused, running.state, running.ledger)
                forged = [forge(world, "200" if number % 5 else "500") for number in range(FORGED)]
                results = await asyncio.gather(*forged, return_exceptions=True)
                assert {type(result) for result in results} <= {grpc.aio.AioRpcError, asyncio.InvalidStateError}
        assert len(running.ledger) == 0
        assert "requests" not in slices(running) and "arrivals" not in slices(running)
        assert counted(running, "pagefleet_gateway_requests_total") == 0
        async with channel(running, server.chain, known) as trusted:
            await forge(World(trusted, running.state, running.ledger), served="10.0.0.1:8000")
        assert slices(running, ahead=30).count('"requests":1') == 1


async def test_an_answer_from_no_picked_pod_counts_nowhere() -> None:
    async with gateway(picker_tls=False) as running:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.picker_port}") as found:
            world = World(found, running.state, running.ledger)
            for number in range(FORGED):
                await forge(world, "200" if number % 5 else "500")
            await forge(world, served="")
        assert len(running.ledger) == 0
        assert counted(running, "pagefleet_gateway_requests_total") == 0
        assert '"requests":1' not in slices(running)
        assert counted(running, "pagefleet_gateway_picker_outcomes_dropped_total") == FORGED + 1
        assert not running.ledger.ejected(pod(1), time.monotonic())


async def test_without_a_secret_the_picker_signs_its_own_certificate_and_takes_the_secrets_once_it_is_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    async with gateway(picker_tls_folder=folder) as running:
        own = await asyncio.to_thread(shown, running)
        async with channel(running, own, host="pagefleet-gateway") as found:
            assert await World(found, running.state, running.ledger).call().pick() == ["10.0.0.1:8000"]
        first, second = self_signed(["localhost"]), self_signed(["localhost"])
        mount(folder, first)
        assert await asyncio.to_thread(shown, running) == first.chain
        async with channel(running, first.chain) as found:
            call = World(found, running.state, running.ledger).call()
            await call.pick()
            mount(folder, Pair(second.key, first.chain))  # the key does not fit: the pair before stays in force
            assert await asyncio.to_thread(shown, running) == first.chain
            mount(folder, second)
            assert await asyncio.to_thread(shown, running) == second.chain
            await call.answered("10.0.0.1:8000")  # its connection is the old one


async def test_the_port_takes_both_families() -> None:
    async with gateway(picker_tls=False, address="::") as running:
        for address in ("127.0.0.1", "[::1]"):
            async with grpc.aio.insecure_channel(f"{address}:{running.picker_port}") as found:
                assert await checked(found, "liveness") is Status.SERVING


async def test_a_file_of_authorities_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match=r"nothing\.pem"):
        async with gateway(picker_client_ca=tmp_path / "nothing.pem"):
            pass
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(GatewayError, match=r"bad\.pem must have PEM certificates"):
        async with gateway(picker_client_ca=tmp_path / "bad.pem"):
            pass


def test_the_settings_name_what_is_allowed() -> None:
    read = settings_from({f"{PICKER}_PORT": "9003", f"{PICKER}_TLS_FOLDER": "/tls", f"{PICKER}_CLIENT_CA_FILE": "/ca"})
    assert (read.picker_tls, read.picker_tls_folder, read.picker_client_ca) == (True, Path("/tls"), Path("/ca"))
    assert settings_from({f"{PICKER}_TLS": "off"}).picker_tls is False
    with pytest.raises(SettingError, match="on or off"):
        settings_from({f"{PICKER}_TLS": "maybe"})
    with pytest.raises(SettingError, match="needs PAGEFLEET_GATEWAY_PICKER_TLS=on"):
        settings_from({f"{PICKER}_TLS": "off", f"{PICKER}_CLIENT_CA_FILE": "/ca"})


async def checked(found: grpc.aio.Channel, service: str) -> Status:
    check = found.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthRequest.SerializeToString,
        response_deserializer=HealthResponse.FromString,
    )
    return Status((await check(HealthRequest(service=service))).status)


async def test_the_health_service_answers_liveness_and_readiness() -> None:
    async with gateway(picker_tls=False) as running:
        reason = "the API server has not sent the first list of InferencePool yet"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.picker_port}") as found:
            running.unsynced_reason = lambda: reason
            services = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
            assert [await checked(found, name) for name in services] == [Status.NOT_SERVING] * 3
            assert await checked(found, "liveness") is Status.SERVING
            watch = found.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=HealthRequest.SerializeToString,
                response_deserializer=HealthResponse.FromString,
            )(HealthRequest(service="readiness"))
            assert (await watch.read()).status == Status.NOT_SERVING
            running.unsynced_reason = lambda: ""
            assert (await asyncio.wait_for(watch.read(), 10)).status == Status.SERVING
            watch.cancel()
            assert [await checked(found, name) for name in services] == [Status.SERVING] * 3
            with pytest.raises(grpc.aio.AioRpcError, match="there is no service 'other'") as error:
                await checked(found, "other")
            assert error.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("served", ["10.0.0.1:8000", "", "10.0.0.66:8000"])
async def test_a_key_pays_for_an_answer_whatever_endpoint_is_named(tmp_path: Path, served: str) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- {{name: one, key: {KEY}, tokensPerMinute: 10000, tokensPerMonth: 1000000}}\n")
    async with gateway(picker_tls=False, api_keys_file=keys) as running:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.picker_port}") as found:
            call = World(found, running.state, running.ledger).call()
            headers = {":path": "/team/chat/v1/completions", ":method": "POST", "authorization": f"Bearer {KEY}"}
            modes = proto.ProtocolConfiguration(
                request_body_mode=ProcessingMode.BUFFERED, response_body_mode=ProcessingMode.NONE
            )
            await call.send(request_headers=http_headers(headers, False), protocol_config=modes)
            await call.read()
            await call.body(BODY)
            await call.read()
            await call.answered(served, x_pagefleet_output_tokens="40", x_pagefleet_prompt_tokens="250")
            await call.end()
        assert len(running.picker.charges) == 0
        assert running.picker.limits.budgets.used("one") == 290
        (bucket,) = running.picker.limits.buckets.keys.values()
        assert bucket.level == pytest.approx(10000 - 290, abs=200)
