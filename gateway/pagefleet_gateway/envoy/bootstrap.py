"""Envoy's configuration, written once at start: its listeners, clusters, admin socket and limits.

Pure: builds dicts. While Envoy runs, only two files that it names change: endpoints (endpoints.py) and certificates (tls.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract.names import GATEWAY
from pagefleet_gateway.envoy.clusters import (
    DESTINATION,
    ENGINES,
    MIRROR,
    MIRRORS,
    Paths,
    batches_cluster,
    engines_cluster,
    picker_cluster,
)
from pagefleet_gateway.envoy.connections import EnvoyLimits, connection_manager
from pagefleet_gateway.envoy.module.filters import engine_filters
from pagefleet_gateway.envoy.overload import overload_manager
from pagefleet_gateway.envoy.tls import transport_socket
from pagefleet_gateway.envoy.tracing import Collector, collector_cluster

PLAIN, SECURE = "ingress", "ingress-tls"  # the listeners' names
# Envoy keeps no other statistics. The last one counts the scripts that ended with an error.
STATISTICS = [{"suffix": ".version_text"}, {"prefix": "server."}, {"suffix": ".lua.errors"}]


@dataclass(frozen=True)
class ListenAddress:
    """The address and ports of the clients' listeners. A port of None: no such listener; of 0: the system chooses one."""

    address: str
    port: int | None
    tls_port: int | None = None


def bootstrap(
    node: str,
    listen: ListenAddress,
    paths: Paths,
    limits: EnvoyLimits,
    spans: Collector | None = None,
    batches: tuple[str, int] | None = None,
) -> dict[str, object]:
    """Build the whole static configuration. `spans`: their collector; None: Envoy makes no spans. `batches`: host and port of
    the batches server; None: there is none."""
    listeners, manager = [], connection_manager(limits, spans, batches is not None)
    if listen.port is not None:
        listeners.append(_listener(PLAIN, listen.address, listen.port, manager))
    if listen.tls_port is not None:
        listeners.append(
            _listener(SECURE, listen.address, listen.tls_port, manager, transport_socket(paths.certificate))
        )
    # A mirrored copy has its request's id: no first token of it is reported.
    engines = [
        engines_cluster(paths, ENGINES, DESTINATION, engine_filters(paths.first_tokens)),
        engines_cluster(paths, MIRRORS, MIRROR),
    ]
    optional = [collector_cluster(spans)] if spans is not None else []
    if batches is not None:
        optional.append(batches_cluster(batches))
    return {
        "node": {"id": node, "cluster": GATEWAY},
        "admin": {"address": {"pipe": {"path": str(paths.admin), "mode": 0o600}}},
        "static_resources": {
            "listeners": listeners,
            "clusters": [picker_cluster(paths), *engines, *optional],
        },
        # The other statistics count every piece of an answer, in memory that all threads share, and nobody reads them.
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": STATISTICS}}},
        "overload_manager": overload_manager(limits.max_heap_bytes, limits.max_connections),
    }


def _listener(
    name: str, address: str, port: int, manager: Mapping[str, object], socket: Mapping[str, object] | None = None
) -> dict[str, object]:
    chain: dict[str, object] = {"filters": [manager]}
    if socket is not None:
        chain["transport_socket"] = socket
    return {
        "name": name,
        "address": {"socket_address": {"address": address, "port_value": port, "ipv4_compat": address == "::"}},
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "filter_chains": [chain],
    }


def to_json(document: Mapping[str, object]) -> str:
    """Return the text of a configuration file: Envoy reads JSON as YAML."""
    return json.dumps(document, indent=1)
