"""A gateway of somebody else: a real Envoy with ext_proc to our endpoint picker, as a conforming gateway configures it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_gateway.envoy import process
from pagefleet_gateway.fronts.ext_proc_tls import Pair

TYPE, PICKER = "type.googleapis.com/envoy.", "picker"
HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
DESTINATION, SERVED = "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-served"


@asynccontextmanager
async def envoy(folder: Path, bootstrap: Mapping[str, object], *listeners: str) -> AsyncIterator[dict[str, int]]:
    """Run an Envoy, with its admin interface at `folder`/admin. The ports of these listeners."""
    config = folder / "envoy.json"
    config.write_text(json.dumps({"admin": {"address": {"pipe": {"path": str(folder / "admin")}}}, **bootstrap}))
    options = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    running = await asyncio.create_subprocess_exec(str(process.executable()), "-c", str(config), *options)
    try:
        admin = process.Admin(folder / "admin")
        try:
            async with asyncio.timeout(30):
                while not await admin.ready():
                    assert running.returncode is None, "the other gateway's Envoy ended"
                    await asyncio.sleep(0.05)
            ports = {name: await admin.port(name) for name in listeners}
        finally:
            await admin.close()
        yield ports
    finally:
        await process.stop(running, 5.0)


@dataclass
class OtherEnvoy:
    """`pods` are the addresses that it knows; `own` is the certificate that it shows to the picker."""

    folder: Path
    picker_port: int
    pods: Sequence[str]
    picker: Pair
    own: Pair | None = None
    bodies: str = "FULL_DUPLEX_STREAMED"  # the mode in which answers' bodies go to the picker
    requests: str = "FULL_DUPLEX_STREAMED"  # the mode for the bodies of requests
    wait: str = "10s"  # for an answer of the picker
    prefix: str = "/team/chat/"  # of the paths that lead to the pool; it is taken away
    port: int = field(default=0, init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run it; the base URL of a service named team/chat."""
        async with envoy(self.folder, self._bootstrap(), "clients") as ports:
            self.port = ports["clients"]
            yield f"http://127.0.0.1:{self.port}/team/chat"

    def _bootstrap(self) -> Mapping[str, object]:
        return {
            "static_resources": {
                "listeners": [self._listener()],
                "clusters": [
                    picker_cluster("picker", self.picker_port, self.picker, self.own),
                    pool_cluster("pool", self.pods),
                ],
            },
        }

    def _listener(self) -> Mapping[str, object]:
        picker = ext_proc("picker", self.requests, self.bodies, self.wait)
        return listener("clients", [{"name": "all", "domains": ["*"], "routes": [_route(self.prefix)]}], picker)


def listener(name: str, hosts: Sequence[object], *filters: object, host: str = "127.0.0.1") -> Mapping[str, object]:
    """Return a listener at a free port, with these virtual hosts and HTTP filters."""
    router = {"name": "router", "typed_config": {"@type": TYPE + "extensions.filters.http.router.v3.Router"}}
    manager = {
        "@type": TYPE + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [*filters, router],
    }
    return {
        "name": name,
        "address": {"socket_address": {"address": host, "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def ext_proc(cluster: str, requests: str, answers: str, wait: str = "10s") -> Mapping[str, object]:
    """Return the filter that asks a picker: `requests` and `answers` are the modes in which bodies go to it, and
    `wait` how long an answer may take, unless the picker asks for more time, of which it may have a minute."""
    config = {
        "@type": TYPE + "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": cluster}, "timeout": "60s"},
        "message_timeout": wait,
        "max_message_timeout": "60s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": requests,
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": answers,
            "response_trailer_mode": "SEND" if answers != "NONE" else "SKIP",
        },
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    return {"name": PICKER, "typed_config": config}


def _route(prefix: str) -> Mapping[str, object]:
    retries = {"retry_on": "connect-failure,reset", "num_retries": 2}
    route = {"cluster": "pool", "prefix_rewrite": "/", "timeout": "0s", "retry_policy": retries}
    return {"match": {"prefix": prefix}, "route": route}


def picker_cluster(name: str, port: int | None, picker: Pair, own: Pair | None) -> Mapping[str, object]:
    """Return the cluster of an endpoint picker that shows the certificate `picker`. Without a port there is none."""
    certificates = [{"certificate_chain": _text(own.chain), "private_key": _text(own.key)}] if own else []
    tls = {
        "@type": TYPE + "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": "localhost",
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": certificates,
            "validation_context": {"trusted_ca": _text(picker.chain)},
        },
    }
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": _assignment(name, [] if port is None else [f"127.0.0.1:{port}"]),
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "typed_extension_protocol_options": http2(),
    }


def pool_cluster(name: str, pods: Sequence[str]) -> Mapping[str, object]:
    """Return the cluster of a pool's endpoints, among which the picker's metadata decides: one after the other where attempts fail.
    Without such metadata the endpoint is a random one."""
    override = {
        "@type": TYPE + "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": SERVED}]},
        "fallback_policy": {"policies": [{"typed_extension_config": _random()}]},
    }
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _assignment(name, pods),
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
    }


def http2() -> Mapping[str, object]:
    """Return a cluster's options for HTTP/2 without an upgrade."""
    return {HTTP: {"@type": TYPE + HTTP.removeprefix("envoy."), "explicit_http_config": {"http2_protocol_options": {}}}}


def _assignment(name: str, addresses: Sequence[str]) -> Mapping[str, object]:
    endpoints = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        endpoints.append({"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}})
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _random() -> Mapping[str, object]:
    kind = TYPE + "extensions.load_balancing_policies.random.v3.Random"
    return {"name": "envoy.load_balancing_policies.random", "typed_config": {"@type": kind}}


def _text(pem: bytes) -> Mapping[str, str]:
    return {"inline_string": pem.decode()}
