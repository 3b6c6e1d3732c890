"""Envoy's clusters: the picker on its Unix socket, the engines, chosen by the picker's header alone, and the batches server.

Pure: builds dicts. Holds the names that the gateway shares with Envoy.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_gateway.envoy import timeouts
from pagefleet_gateway.envoy.timeouts import envoy_duration

DESTINATION = "x-gateway-destination-endpoint"  # the endpoint-picker protocol's header: ip:port[,ip:port...]
ENGINES = "engines"
MIRRORS = "mirrors"  # the same endpoints, chosen by MIRROR: where copies go
MIRROR = "x-gateway-mirror-endpoint"
MIRROR_CLUSTER = "x-pagefleet-mirror-cluster"  # names the cluster that gets a copy; without it Envoy sends none
PICKER = "picker"
BATCHES = "batches"  # the batches server, where one is installed
METADATA = "pagefleet"  # namespace of the endpoint metadata: namespace, service, revision, pod
TYPE = "type.googleapis.com/envoy."
TCP_USER_TIMEOUT = 18  # of Linux, as Envoy runs there; Python has the name on Linux only


@dataclass(frozen=True)
class Paths:
    """The files that Envoy and the picker share, in one private folder."""

    folder: Path

    @property
    def bootstrap(self) -> Path:
        return self.folder / "envoy.json"

    @property
    def endpoints(self) -> Path:
        return self.folder / "endpoints.json"

    @property
    def certificate(self) -> Path:
        """The file that names the certificate's files to Envoy (tls.py)."""
        return self.folder / "certificate.json"

    @property
    def admin(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def picker(self) -> Path:
        return self.folder / "picker.sock"

    @property
    def picker_health(self) -> Path:
        """The socket on which a thread of the picker says whether its event loop runs."""
        return self.folder / "health.sock"  # no longer than the others: a Unix socket's path has 107 bytes at most

    @property
    def first_tokens(self) -> Path:
        """The pipe by which Envoy reports first tokens (measuring/first_tokens.py)."""
        return self.folder / "first-tokens"


def extension(name: str, kind: str, **fields: object) -> dict[str, object]:
    """Build an extension: its name and its typed configuration."""
    return {"name": name, "typed_config": {"@type": TYPE + kind, **fields}}


def picker_cluster(paths: Paths) -> dict[str, object]:
    endpoint = {
        "address": {"pipe": {"path": str(paths.picker)}},
        "health_check_config": {"address": {"pipe": {"path": str(paths.picker_health)}}},
    }
    return {
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": envoy_duration(timeouts.PICKER_CONNECT_SECONDS),
        "circuit_breakers": _circuit_breakers(),
        "health_checks": [
            {
                "interval": envoy_duration(timeouts.PICKER_CHECK_SECONDS),
                "no_traffic_interval": envoy_duration(timeouts.PICKER_CHECK_SECONDS),
                "timeout": envoy_duration(timeouts.PICKER_CHECK_ANSWER_SECONDS),
                "unhealthy_threshold": timeouts.PICKER_CHECKS,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/"},
            }
        ],
        "close_connections_on_host_health_failure": True,  # answers the requests that wait in it
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
    }


def batches_cluster(server: tuple[str, int]) -> dict[str, object]:
    """Build the cluster of the batches server at this host and port: one pod behind a Service."""
    address = {"socket_address": {"address": server[0], "port_value": server[1]}}
    return {
        "name": BATCHES,
        "type": "STRICT_DNS",
        "connect_timeout": envoy_duration(timeouts.BATCHES_CONNECT_SECONDS),
        "load_assignment": {
            "cluster_name": BATCHES,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def engines_cluster(
    paths: Paths, name: str = ENGINES, header: str = DESTINATION, filters: Sequence[object] = ()
) -> dict[str, object]:
    """Build the cluster of all engine pods. `header` alone chooses one. `filters`: those of each attempt."""
    override = {
        "@type": TYPE + "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": header}],
        "fallback_policy": {"policies": [{"typed_extension_config": _no_host_policy()}]},
    }
    return {
        "name": name,
        "type": "EDS",
        "connect_timeout": envoy_duration(timeouts.ENGINE_CONNECT_SECONDS),
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": timeouts.KEEPALIVE_SECONDS,
                "keepalive_interval": timeouts.KEEPALIVE_INTERVAL_SECONDS,
                "keepalive_probes": timeouts.KEEPALIVE_PROBES,
            }
        },
        "upstream_bind_config": {"socket_options": [_give_up_unacknowledged()]},
        "circuit_breakers": _circuit_breakers(),
        "eds_cluster_config": {
            "service_name": ENGINES,
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": str(paths.endpoints),
                    "watched_directory": {"path": str(paths.folder)},
                },
            },
        },
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.override_host",
                        "typed_config": override,
                    }
                }
            ]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": envoy_duration(timeouts.ENGINE_IDLE_SECONDS)},
                "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}},
                **({"http_filters": list(filters)} if filters else {}),
            }
        },
    }


def _no_host_policy() -> dict[str, object]:
    """Build a policy that never finds a host. Without the picker's header any pod would be wrong: it may belong to another
    service.
    """
    return extension(
        "envoy.load_balancing_policies.subset",
        "extensions.load_balancing_policies.subset.v3.Subset",
        fallback_policy="NO_FALLBACK",
        subset_selectors=[{"keys": ["never"]}],
        subset_lb_policy={
            "policies": [
                {
                    "typed_extension_config": extension(
                        "envoy.load_balancing_policies.round_robin",
                        "extensions.load_balancing_policies.round_robin.v3.RoundRobin",
                    )
                }
            ]
        },
    )


def _give_up_unacknowledged() -> dict[str, object]:
    """The socket option that closes a connection whose other end acknowledges nothing any more."""
    return {
        "description": "TCP_USER_TIMEOUT",
        "level": socket.IPPROTO_TCP,
        "name": TCP_USER_TIMEOUT,
        "int_value": 1000 * timeouts.UNACKNOWLEDGED_SECONDS,
        "state": "STATE_PREBIND",
    }


def _circuit_breakers() -> dict[str, object]:
    """Build limits that a sound fleet never reaches, except on retries: above 100 in flight, they may be half of the requests."""
    limits = {
        "max_connections": 65536,
        "max_pending_requests": 65536,
        "max_requests": 65536,
        "retry_budget": {"budget_percent": {"value": 50.0}, "min_retry_concurrency": 100},
    }
    return {"thresholds": [{"priority": "DEFAULT", **limits}]}
