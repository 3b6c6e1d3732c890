"""Envoy's protection against overload: limits on its heap and its connections. Pure: builds dicts."""

from __future__ import annotations

from pagefleet_gateway.envoy.clusters import extension


def overload_manager(max_heap_bytes: int, max_connections: int) -> dict[str, object]:
    heap = "envoy.resource_monitors.fixed_heap"
    connections = "envoy.resource_monitors.global_downstream_max_connections"
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            extension(
                heap,
                "extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                max_heap_size_bytes=max_heap_bytes,
            ),
            extension(
                connections,
                "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=max_connections,
            ),
        ],
        "actions": [
            {
                "name": "envoy.overload_actions.shrink_heap",
                "triggers": [{"name": heap, "threshold": {"value": 0.9}}],
            },
            {
                "name": "envoy.overload_actions.stop_accepting_requests",
                "triggers": [{"name": heap, "threshold": {"value": 0.95}}],
            },
        ],
    }
