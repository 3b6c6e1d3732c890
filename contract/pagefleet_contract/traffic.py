"""Bounds and defaults of `spec.traffic`: the InferenceService offers them, the gateway keeps to them."""

from __future__ import annotations

DEFAULT_TIMEOUT = "10m"  # of a whole request, retries included; Envoy's own limit is the same
MAX_RETRIES, DEFAULT_RETRIES = 10, 2

# Requests that wait for an engine pod: at most, of one service in all gateway pods by default, and of all services in one of them.
MAX_HOLD_SECONDS = 300
IDLE_HOLD_SECONDS = 60  # by default, with scaling.idleToZero or mode external; others' requests do not wait
DEFAULT_HELD_REQUESTS, DEFAULT_HELD_BYTES = 256, 64 * 1024 * 1024
MAX_HELD_REQUESTS, MAX_HELD_BYTES = 4096, 256 * 1024 * 1024


def hold_seconds(timeout: float | None, *, may_sleep: bool) -> float:
    """Return for how long a request waits for an engine pod: for `traffic.queue.timeout`, and without it only where a service may have no
    replica by intention. In mode external another controller takes it there, and starts a replica when it sees a request that waits."""
    usual = IDLE_HOLD_SECONDS if may_sleep else 0.0
    return min(usual if timeout is None else timeout, MAX_HOLD_SECONDS)
