"""Envoy's two clusters: the picker on its Unix socket, and the engines, chosen by the picker's header alone.

Pure: builds dicts, and holds the names that the gateway shares with Envoy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DESTINATION = "x-gateway-destination-endpoint"  # the endpoint-picker protocol's header: ip:port[,ip:port...]
ENGINES = "engines"
MIRRORS = "mirrors"  # the same endpoints, chosen by MIRROR: where copies go
MIRROR = "x-gateway-mirror-endpoint"
MIRROR_CLUSTER = "x-pagefleet-mirror-cluster"  # Envoy sends a copy to the cluster that it names, and none without it
FALLBACK = "x-pagefleet-fallback"  # namespace/name of the service that answers instead
PICKER = "picker"
METADATA = "pagefleet"  # namespace of the endpoint metadata: namespace, service, revision, pod
TYPE = "type.googleapis.com/envoy."


@dataclass(frozen=True)
class Paths:
    """The files Envoy and the picker share, in one private folder."""

    folder: Path

    @property
    def bootstrap(self) -> Path:
        return self.folder / "envoy.json"

    @property
    def endpoints(self) -> Path:
        return self.folder / "endpoints.json"

    @property
    def certificate(self) -> Path:
        """Where Envoy reads where the certificate is."""
        return self.folder / "certificate.json"

    @property
    def admin(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def picker(self) -> Path:
        return self.folder / "picker.sock"


def typed(name: str, kind: str, **fields: object) -> dict[str, object]:
    """An extension: its name and its typed configuration."""
    return {"name": name, "typed_config": {"@type": TYPE + kind, **fields}}


def picker_cluster(paths: Paths) -> dict[str, object]:
    address = {"pipe": {"path": str(paths.picker)}}
    return {
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": _breakers(),
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def engines_cluster(paths: Paths, name: str = ENGINES, header: str = DESTINATION) -> dict[str, object]:
    """The engine pods, chosen by `header` alone."""
    override = {
        "@type": TYPE + "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": header}],
        "fallback_policy": {"policies": [{"typed_extension_config": _nowhere()}]},
    }
    return {
        "name": name,
        "type": "EDS",
        "connect_timeout": "1s",
        # A node that lost its power answers nothing, not even a reset.
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_time": 10, "keepalive_interval": 5, "keepalive_probes": 3}
        },
        "circuit_breakers": _breakers(),
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
                # Below the engine's keep-alive (75 s): a connection is never reused while its peer closes it.
                "common_http_protocol_options": {"idle_timeout": "30s"},
                "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}},
            }
        },
    }


def _nowhere() -> dict[str, object]:
    """A policy that never finds a host: without the picker's word no pod is right, it may be another
    service's.
    """
    return typed(
        "envoy.load_balancing_policies.subset",
        "extensions.load_balancing_policies.subset.v3.Subset",
        fallback_policy="NO_FALLBACK",
        subset_selectors=[{"keys": ["never"]}],
        subset_lb_policy={
            "policies": [
                {
                    "typed_extension_config": typed(
                        "envoy.load_balancing_policies.round_robin",
                        "extensions.load_balancing_policies.round_robin.v3.RoundRobin",
                    )
                }
            ]
        },
    )


def _breakers() -> dict[str, object]:
    """No bound that a sound fleet meets, but one on retries: above 100, at most every second request is one."""
    high = {
        "max_connections": 65536,
        "max_pending_requests": 65536,
        "max_requests": 65536,
        "retry_budget": {"budget_percent": {"value": 50.0}, "min_retry_concurrency": 100},
    }
    return {"thresholds": [{"priority": "DEFAULT", **high}]}
