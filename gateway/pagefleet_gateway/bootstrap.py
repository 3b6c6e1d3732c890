"""Envoy's configuration, written once at start: its listeners, clusters, admin socket and limits.

Pure: builds dicts. Nothing in it changes while Envoy runs, but the endpoints file (endpoints.py) and certificates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .clusters import MIRROR, MIRRORS, Paths, engines_cluster, picker_cluster
from .connections import Limits, connection_manager
from .overload import overload
from .tls import transport

PLAIN, SECURE = "ingress", "ingress-tls"  # the listeners' names


@dataclass(frozen=True)
class Entry:
    """Where clients come in. A port of None: no such listener; of 0: one that the system chooses."""

    address: str
    port: int | None
    tls_port: int | None = None


def bootstrap(node: str, entry: Entry, paths: Paths, limits: Limits) -> dict[str, object]:
    """The whole static configuration."""
    listeners = []
    if entry.port is not None:
        listeners.append(_listener(PLAIN, entry.address, entry.port, limits))
    if entry.tls_port is not None:
        listeners.append(_listener(SECURE, entry.address, entry.tls_port, limits, transport(paths.certificate)))
    return {
        "node": {"id": node, "cluster": "pagefleet-gateway"},
        "admin": {"address": {"pipe": {"path": str(paths.admin), "mode": 0o600}}},
        "static_resources": {
            "listeners": listeners,
            "clusters": [picker_cluster(paths), engines_cluster(paths), engines_cluster(paths, MIRRORS, MIRROR)],
        },
        "overload_manager": overload(limits.max_heap_bytes, limits.max_connections),
    }


def _listener(
    name: str, address: str, port: int, limits: Limits, socket: Mapping[str, object] | None = None
) -> dict[str, object]:
    chain: dict[str, object] = {"filters": [connection_manager(limits)]}
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
