"""Envoy's configuration, written once at start: its listeners, clusters, admin socket and limits.

Pure: builds dicts. Nothing in it changes while Envoy runs, but the endpoints file (endpoints.py) and certificates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_gateway.envoy.clusters import MIRROR, MIRRORS, Paths, engines_cluster, picker_cluster
from pagefleet_gateway.envoy.connections import Limits, connection_manager
from pagefleet_gateway.envoy.overload import overload
from pagefleet_gateway.envoy.tls import transport
from pagefleet_gateway.envoy.tracing import Collector, cluster

PLAIN, SECURE = "ingress", "ingress-tls"  # the listeners' names


@dataclass(frozen=True)
class Entry:
    """Where clients come in. A port of None: no such listener; of 0: one that the system chooses."""

    address: str
    port: int | None
    tls_port: int | None = None


def bootstrap(
    node: str, entry: Entry, paths: Paths, limits: Limits, spans: Collector | None = None
) -> dict[str, object]:
    """The whole static configuration. `spans`: where they are sent, None: none are made."""
    listeners, manager = [], connection_manager(limits, spans)
    if entry.port is not None:
        listeners.append(_listener(PLAIN, entry.address, entry.port, manager))
    if entry.tls_port is not None:
        listeners.append(_listener(SECURE, entry.address, entry.tls_port, manager, transport(paths.certificate)))
    engines = [engines_cluster(paths), engines_cluster(paths, MIRRORS, MIRROR)]
    return {
        "node": {"id": node, "cluster": "pagefleet-gateway"},
        "admin": {"address": {"pipe": {"path": str(paths.admin), "mode": 0o600}}},
        "static_resources": {
            "listeners": listeners,
            "clusters": [picker_cluster(paths), *engines, *([cluster(spans)] if spans is not None else [])],
        },
        # The others count every piece of an answer, in memory that all threads share, and nobody reads them.
        "stats_config": {
            "stats_matcher": {"inclusion_list": {"patterns": [{"suffix": ".version_text"}, {"prefix": "server."}]}}
        },
        "overload_manager": overload(limits.max_heap_bytes, limits.max_connections),
    }


def _listener(
    name: str, address: str, port: int, manager: Mapping[str, object], socket: Mapping[str, object] | None = None
) -> dict[str, object]:
    chain: dict[str, object] = {"filters": [manager]}
    if socket is not None:
        chain["transport_socket"] = socket
    return {
        "name": name,
        "address": {"socket_address": {"address": address, "port_value": port}},
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "filter_chains": [chain],
    }


def written(document: Mapping[str, object]) -> str:
    """Envoy reads JSON as YAML."""
    return json.dumps(document, indent=1)
