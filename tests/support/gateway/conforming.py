"""A gateway that conforms to the Gateway API Inference Extension, for the cases of its conformance suite: one Envoy that is all
Gateways of a case, InferencePools with echo servers as model servers, and for each pool our picker as its endpoint picker.

What the suite does with the header `test-epp-endpoint-selection`, which its own picker obeys, Envoy does here with the protocol's
subset hint: the header names the endpoints that the picker may pick.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from support.gateway import behind_envoy, other_envoy
from support.gateway.behind_envoy import GATEWAY, options
from support.gateway.fleet import Fleet, running, until
from support.gateway.other_envoy import PICKER, TYPE, ext_proc, http2, listener, picker_cluster, pool_cluster

H2C = "kubernetes.io/h2c"
SELECTION = "test-epp-endpoint-selection"
BODY = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic: San Francisco"}
WORKER = int(re.sub("[^0-9]", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
_hosts = (f"127.{WORKER + 1}.{number // 250}.{number % 250 + 1}" for number in itertools.count())


@dataclass
class Pool:
    """An InferencePool. `pods` are the addresses of its model servers by name; each listens at all of `ports`. `picker` is None
    where its endpointPickerRef names a Service that does not exist."""

    name: str
    pods: dict[str, str]
    ports: tuple[int, ...]
    picker: Fleet | None = None
    app_protocol: str = ""  # "": left out
    fails_open: bool = False  # failureMode: FailOpen
    seen: list[tuple[str, str]] = field(default_factory=list)  # pod and path of each request

    @property
    def endpoints(self) -> list[str]:
        return [f"{host}:{port}" for host in self.pods.values() for port in self.ports]

    @property
    def document(self) -> dict[str, Any]:
        return {
            "metadata": {"namespace": "team", "name": self.name},
            "spec": {
                "selector": {"matchLabels": {"app": self.name}},
                "targetPorts": [{"number": port} for port in self.ports],
                **({"appProtocol": self.app_protocol} if self.app_protocol else {}),
                "endpointPickerRef": {"name": "picker", "port": {"number": 9003}},
            },
        }

    async def known(self) -> None:
        """Have the picker know the pool and its pods, as its watch would."""
        assert self.picker is not None and self.picker.gateway.pools is not None
        state = self.picker.state
        self.picker.gateway.pools.put(self.document)
        for name, host in self.pods.items():
            metadata = {"namespace": "team", "name": name, "uid": name, "labels": {"app": self.name}}
            status = {"podIP": host, "conditions": [{"type": "Ready", "status": "True"}]}
            self.picker.gateway.pools.put_pod({"metadata": metadata, "status": status})
        await until(lambda: len(state.pods) == len(self.endpoints) and state.are_confirmed(state.pods))


@dataclass(frozen=True)
class Rule:
    """A rule of an HTTPRoute: a path's prefix and pools with weights."""

    path: str
    backends: tuple[tuple[Pool, int], ...]
    hostname: str = "*"


def to(path: str, pool: Pool, hostname: str = "*") -> Rule:
    return Rule(path, ((pool, 1),), hostname)


@dataclass
class Answer:
    status: int
    pod: str = ""
    port: int = 0
    path: str = ""


@dataclass
class Gateways:
    """The Gateways of a case, by name."""

    ports: Mapping[str, int]
    http: aiohttp.ClientSession

    async def ask(
        self,
        path: str,
        pods: Sequence[str] | None = None,
        gateway: str = "primary",
        host: str = "",
        method: str = "POST",
    ) -> Answer:
        """Send a request of the suite; `pods` are the endpoints that may be picked."""
        headers = {"Host": host} if host else {}
        headers |= {SELECTION: ",".join(pods) or ","} if pods is not None else {}
        body = BODY if method == "POST" else None
        url = f"http://127.0.0.1:{self.ports[gateway]}{path}"
        async with self.http.request(method, url, json=body, headers=headers) as response:
            text = await response.text()
            return Answer(response.status, **json.loads(text)) if response.status == 200 else Answer(response.status)


@asynccontextmanager
async def pools(
    folder: Path, *names: str, pods: int = 3, ports: int = 1, picker: bool = True
) -> AsyncIterator[list[Pool]]:
    """Run pools of echo servers, each with a picker of its own."""
    async with AsyncExitStack() as stack:
        made = []
        for name in names:
            servers, seen = (
                {f"{name}-{number}": next(_hosts) for number in range(pods)},
                list[tuple[str, str]](),
            )
            listening = [0] * ports
            for pod, host in servers.items():
                runner = web.AppRunner(echo(pod, seen), access_log=None, shutdown_timeout=0.5)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                for port in listening:
                    await web.TCPSite(runner, host, port).start()
                listening = [address[1] for address in runner.addresses]
            pool = Pool(name, servers, tuple(listening), seen=seen)
            made.append(pool)
            if picker:
                await with_picker(stack, folder, pool)
        yield made


async def with_picker(stack: AsyncExitStack, folder: Path, pool: Pool) -> None:
    """Run a picker for the pool."""
    pool.picker = await stack.enter_async_context(running(**options(folder), pools="picker", namespace="team"))
    await pool.known()


@asynccontextmanager
async def h2c_pool(folder: Path, name: str) -> AsyncIterator[Pool]:
    """Run a pool with one model server that speaks HTTP/2 without an upgrade, and nothing else."""
    own = folder / name
    own.mkdir()
    pod, host = f"{name}-0", next(_hosts)
    answer = {"status": 200, "body": {"inline_string": json.dumps({"pod": pod})}}
    server = listener(
        "h2c",
        [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": answer}]}],
        host=host,
    )
    server["filter_chains"][0]["filters"][0]["typed_config"]["codec_type"] = "HTTP2"  # type: ignore[index]
    async with AsyncExitStack() as stack:
        bootstrap = {"static_resources": {"listeners": [server]}}
        ports = await stack.enter_async_context(other_envoy.envoy(own, bootstrap, "h2c"))
        pool = Pool(name, {pod: host}, (ports["h2c"],), app_protocol=H2C)
        await with_picker(stack, own, pool)
        yield pool


def echo(pod: str, seen: list[tuple[str, str]]) -> web.Application:
    """Return a model server that answers any request but one for its metrics with what it is."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            raise web.HTTPNotFound
        await request.read()
        seen.append((pod, request.path))
        port = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
        return web.json_response({"pod": pod, "port": port, "path": request.path})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@asynccontextmanager
async def gateways(
    folder: Path, *, requests: str = "FULL_DUPLEX_STREAMED", **rules: Sequence[Rule]
) -> AsyncIterator[Gateways]:
    """Run Gateways with these rules. `requests` is the mode in which requests' bodies go to the pickers."""
    own = folder / "gateways"
    own.mkdir(exist_ok=True)
    used = {pool.name: pool for some in rules.values() for rule in some for pool, _ in rule.backends}
    clusters = []
    for pool in used.values():
        port = None if pool.picker is None else pool.picker.gateway.picker_port
        http = {"typed_extension_protocol_options": http2()} if pool.app_protocol == H2C else {}
        clusters += [
            picker_cluster(f"{PICKER}-{pool.name}", port, behind_envoy.PICKER, GATEWAY),
            pool_cluster(pool.name, pool.endpoints) | http,
        ]
    any_picker = ext_proc(clusters[0]["name"], requests, "FULL_DUPLEX_STREAMED")
    listeners = [listener(name, _virtual_hosts(some), _selection(), any_picker) for name, some in rules.items()]
    bootstrap = {"static_resources": {"listeners": listeners, "clusters": clusters}}
    async with other_envoy.envoy(own, bootstrap, *rules) as ports, aiohttp.ClientSession() as http_client:
        yield Gateways(ports, http_client)


def _virtual_hosts(rules: Sequence[Rule]) -> list[Mapping[str, object]]:
    hosts: dict[str, list[Mapping[str, object]]] = {}
    for rule in rules:
        hosts.setdefault(rule.hostname, []).append({"match": {"prefix": rule.path}, "route": _action(rule)})
    return [{"name": host, "domains": [host], "routes": routes} for host, routes in hosts.items()]


def _action(rule: Rule) -> Mapping[str, object]:
    clusters = [
        {"name": pool.name, "weight": weight, "typed_per_filter_config": _asks(pool)} for pool, weight in rule.backends
    ]
    retries = {"retry_on": "connect-failure,reset", "num_retries": 2}
    return {"weighted_clusters": {"clusters": clusters}, "timeout": "0s", "retry_policy": retries}


def _asks(pool: Pool) -> Mapping[str, object]:
    """Return the configuration by which requests to a pool go to its own picker."""
    overrides = {
        "grpc_service": {"envoy_grpc": {"cluster_name": f"{PICKER}-{pool.name}"}, "timeout": "60s"},
        "failure_mode_allow": pool.fails_open,
    }
    return {PICKER: {"@type": TYPE + "extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "overrides": overrides}}


def _selection() -> Mapping[str, object]:
    """Return the filter that makes a subset hint of the suite's header."""
    hint = {
        "metadata_namespace": "envoy.lb.subset_hint",
        "key": "x-gateway-destination-endpoint-subset",
        "type": "STRING",
    }
    config = {
        "@type": TYPE + "extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [{"header": SELECTION, "on_header_present": hint, "remove": True}],
    }
    return {"name": "selection", "typed_config": config}
