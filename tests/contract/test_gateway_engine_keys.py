"""Engines that demand a key of their own behind a gateway that demands keys from its clients, with a real Envoy.

Protects that the gateway presents the engine's key and never the client's, to mirrored copies too; that it names the client; that a replaced key
refuses nobody; and that a Secret which cannot be read is a clear 503 and no 401. Every runtime's pods name their Secret
in a way that the gateway reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gateway.fleet import CANARY, STABLE, Engine, Fleet, running, until
from support.sample_service import sample

from pagefleet_contract.headers import CLIENT_HEADER
from pagefleet_gateway.cluster.objects import pod_from
from pagefleet_gateway.watching.engine_keys import ReadError, chosen
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.load_test_job import load_test_job

CLIENT = {"authorization": "Bearer sk-client-0123456789"}
KEY, NEW = "engine-key-1", "engine-key-2"
READ = {("team", "engine"): {"key": KEY.encode()}}


@asynccontextmanager
async def keyed(folder: Path, secrets: dict[tuple[str, str], dict[str, bytes]]) -> AsyncIterator[Fleet]:
    file = folder / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": "client", "key": CLIENT["authorization"].removeprefix("Bearer ")}]))

    async def read(namespace: str, name: str) -> Mapping[str, bytes]:
        if (namespace, name) not in secrets:
            raise ReadError("the API server answered 403 Forbidden")
        return secrets[namespace, name]

    async with running(api_keys_file=file) as fleet:
        fleet.gateway.read_engine_keys(read)
        yield fleet


async def known(fleet: Fleet, engine: Engine) -> None:
    await until(lambda: fleet.gateway.engine_keys.of(engine.pod()) is not None)


def keys_at(engine: Engine) -> set[str | None]:
    return {request.headers.get("authorization") for request in engine.requests}


async def test_the_engine_gets_its_own_key_and_never_the_clients(tmp_path: Path) -> None:
    async with keyed(tmp_path, READ) as fleet:
        engine = await fleet.engine(STABLE, demands=KEY)
        fleet.serve((STABLE, 100))
        await known(fleet, engine)
        assert (await fleet.chat(headers=CLIENT))[0] == 200
        assert keys_at(engine) == {f"Bearer {KEY}"}
        assert (await fleet.chat(headers=CLIENT | {CLIENT_HEADER: "another"}))[0] == 200
        assert [request.headers.getall(CLIENT_HEADER) for request in engine.requests] == [["client"], ["client"]]
        assert (await fleet.chat(headers={"authorization": f"Bearer {KEY}"}))[0] == 401  # it opens no gateway


async def test_a_clients_key_in_anthropics_header_does_not_come_along(tmp_path: Path) -> None:
    client = {"x-api-key": CLIENT["authorization"].removeprefix("Bearer ")}
    async with keyed(tmp_path, READ) as fleet:
        engine = await fleet.engine(STABLE, demands=KEY)
        copy = await fleet.engine(CANARY, demands=KEY)
        fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
        await known(fleet, engine)
        for headers in (client, CLIENT | client):
            assert (await fleet.chat(headers=headers))[0] == 200
        await until(lambda: len(copy.requests) == 2)
        for one in (engine, copy):
            assert keys_at(one) == {f"Bearer {KEY}"}
            assert all("x-api-key" not in request.headers for request in one.requests)


async def test_a_mirrored_copy_has_the_key_too(tmp_path: Path) -> None:
    async with keyed(tmp_path, READ) as fleet:
        engine = await fleet.engine(STABLE, demands=KEY)
        copy = await fleet.engine(CANARY, demands=KEY)
        fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
        await known(fleet, engine)
        assert (await fleet.chat(headers=CLIENT))[0] == 200
        await until(lambda: len(copy.requests) == 1)
        assert keys_at(copy) == {f"Bearer {KEY}"}


async def test_an_engine_without_a_key_gets_none(tmp_path: Path) -> None:
    async with keyed(tmp_path, READ) as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        assert (await fleet.chat(headers=CLIENT))[0] == 200
        assert keys_at(engine) == {None}


async def test_a_secret_that_cannot_be_read_is_a_clear_503(tmp_path: Path) -> None:
    async with keyed(tmp_path, {}) as fleet:
        engine = await fleet.engine(STABLE, demands=KEY)
        fleet.serve((STABLE, 100))
        status, body, headers = await fleet.chat(headers=CLIENT)
        assert status == 503 and headers["retry-after"] and "engine_key_unknown" in str(body)
        assert "team/chat" in str(body) and not engine.requests


async def test_without_keys_of_the_gateway_the_clients_key_is_the_engines() -> None:
    async with running() as fleet:
        engine = await fleet.engine(STABLE, demands=KEY)
        fleet.serve((STABLE, 100))
        assert (await fleet.chat(headers={"authorization": f"Bearer {KEY}"}))[0] == 200
        assert (await fleet.chat())[0] == 401
        assert (await fleet.chat(headers={"x-api-key": KEY}))[0] == 401  # this stub reads Authorization only
        assert len(engine.requests) == 3 and engine.requests[-1].headers["x-api-key"] == KEY


def test_a_key_stays_in_force_while_the_secret_lists_it() -> None:
    assert chosen(f"{KEY}\n{NEW}\n", "") == KEY
    assert chosen(f"{NEW}\n{KEY}\n", KEY) == KEY
    assert chosen(f"{NEW}\n", KEY) == NEW
    assert chosen("bad\tkey\n\n", "") == ""


def child(runtime: str) -> Child:
    spec: dict[str, Any] = sample()["spec"]
    engine = {"runtime": runtime, "apiKeySecretRef": {"name": "coding-keys", "key": "keys.txt"}}
    if runtime == "custom":
        engine |= {"image": "server:1", "command": ["serve"], "port": 8000}
    return Child("team", "chat", "uid", STABLE, {**spec, "engine": engine})


@pytest.mark.parametrize("runtime", ["pagefleet", "vllm", "sglang", "tgi", "custom"])
def test_the_gateway_reads_from_every_runtimes_pods_which_secret_they_use(runtime: str) -> None:
    template = deployment(child(runtime), 1)["spec"]["template"]
    raw = {**template, "status": {"podIP": "10.0.0.1", "phase": "Running"}}
    pod = pod_from(raw)
    assert pod is not None and pod.key_secret == ("coding-keys", "keys.txt")


def test_a_load_test_has_the_engines_key() -> None:
    pod = load_test_job(child("pagefleet"), "operator:1", {}, 60.0, 1.0)["spec"]["template"]["spec"]
    (volume,) = [one["secret"] for one in pod["volumes"] if "secret" in one]
    assert (volume["secretName"], volume["items"]) == ("coding-keys", [{"key": "keys.txt", "path": "key"}])
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "api-key"]
    assert mount["readOnly"]
    arguments = pod["containers"][0]["args"]
    assert arguments[arguments.index("--api-key-file") + 1] == f"{mount['mountPath']}/key"
