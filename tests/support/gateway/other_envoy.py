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

TYPE = "type.googleapis.com/envoy."
DESTINATION, SERVED = "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-served"


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
    port: int = field(default=0, init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run it; the base URL of a service named team/chat."""
        config = self.folder / "envoy.json"
        config.write_text(json.dumps(self._bootstrap()))
        command = [
            str(process.executable()),
            "-c",
            str(config),
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "error",
        ]
        envoy = await asyncio.create_subprocess_exec(*command)
        try:
            admin = process.Admin(self.folder / "admin")
            try:
                async with asyncio.timeout(30):
                    while not await admin.ready():
                        assert envoy.returncode is None, "the other gateway's Envoy ended"
                        await asyncio.sleep(0.05)
                self.port = await admin.port("clients")
            finally:
                await admin.close()
            yield f"http://127.0.0.1:{self.port}/team/chat"
        finally:
            await process.stop(envoy, 5.0)

    def _bootstrap(self) -> Mapping[str, object]:
        return {
            "admin": {"address": {"pipe": {"path": str(self.folder / "admin")}}},
            "static_resources": {"listeners": [self._listener()], "clusters": [self._picker_cluster(), self._pool()]},
        }

    def _listener(self) -> Mapping[str, object]:
        manager = {
            "@type": TYPE + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "clients",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
            "http_filters": [
                {"name": "picker", "typed_config": self._ext_proc()},
                {"name": "router", "typed_config": {"@type": TYPE + "extensions.filters.http.router.v3.Router"}},
            ],
        }
        address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
        return {
            "name": "clients",
            "address": address,
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
        }

    def _ext_proc(self) -> Mapping[str, object]:
        namespaces = {"untyped": ["envoy.lb"]}
        return {
            "@type": TYPE + "extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": self.requests,
                "request_trailer_mode": "SEND",
                "response_header_mode": "SEND",
                "response_body_mode": self.bodies,
                "response_trailer_mode": "SEND" if self.bodies != "NONE" else "SKIP",
            },
            "metadata_options": {"forwarding_namespaces": namespaces, "receiving_namespaces": namespaces},
        }

    def _picker_cluster(self) -> Mapping[str, object]:
        certificates = (
            [{"certificate_chain": _text(self.own.chain), "private_key": _text(self.own.key)}] if self.own else []
        )
        tls = {
            "@type": TYPE + "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "localhost",
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_certificates": certificates,
                "validation_context": {"trusted_ca": _text(self.picker.chain)},
            },
        }
        return {
            "name": "picker",
            "type": "STATIC",
            "load_assignment": _assignment("picker", [f"127.0.0.1:{self.picker_port}"]),
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}},
                }
            },
        }

    def _pool(self) -> Mapping[str, object]:
        override = {
            "@type": TYPE + "extensions.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
            "selected_host_key": {"key": "envoy.lb", "path": [{"key": SERVED}]},
            "fallback_policy": {"policies": [{"typed_extension_config": _random()}]},
        }
        policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
        return {
            "name": "pool",
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": _assignment("pool", self.pods),
            "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        }


def _route() -> Mapping[str, object]:
    retries = {"retry_on": "connect-failure,reset", "num_retries": 2}
    route = {"cluster": "pool", "prefix_rewrite": "/", "timeout": "0s", "retry_policy": retries}
    return {"match": {"prefix": "/team/chat/"}, "route": route}


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
