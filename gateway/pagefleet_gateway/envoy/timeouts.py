"""Every time limit that Envoy has, in seconds: routes, connections, clusters and the process read them here. Pure.

The limits of one service (`spec.traffic`) go before these where Envoy lets them.
"""

from __future__ import annotations

from pagefleet_contract.quantity import seconds
from pagefleet_contract.traffic import DEFAULT_TIMEOUT, MAX_HOLD_SECONDS

# A whole request, retries included, of a service without `traffic.timeout`.
REQUEST_SECONDS = seconds(DEFAULT_TIMEOUT)
# A stream without a byte in either direction, where no route bounds it more tightly.
STREAM_IDLE_SECONDS = 600
# How long an engine may be silent: Envoy has one route for each of these (stream_timeout.py).
SILENCE_STEPS = (1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, STREAM_IDLE_SECONDS)

# The picker holds a request for MAX_HOLD_SECONDS at most; the rest is for its answer to arrive.
PICKER_ANSWER_SECONDS = MAX_HOLD_SECONDS + 10
PICKER_CONNECT_SECONDS = 2

# Clients.
REQUEST_HEADERS_SECONDS = 15
REQUEST_BODY_SECONDS = 120
CLIENT_IDLE_SECONDS = 900  # a connection without a request
# Between a stopping gateway's two GOAWAYs: an HTTP/2 client needs them to learn of the stop.
GOAWAY_SECONDS = 2
DRAIN_SECONDS = 10  # over which a stopping Envoy closes its clients' connections

# Engines.
ENGINE_CONNECT_SECONDS = 1
# Below the engine's keep-alive (75 s): a connection is never reused while its peer closes it.
ENGINE_IDLE_SECONDS = 30
# TCP keep-alive: a node that lost its power answers nothing, not even a reset.
KEEPALIVE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 10, 5, 3
RETRY_BASE_SECONDS, RETRY_MAX_SECONDS = 0.01, 0.25  # the pause before a retry, at first and at most

# The collector of spans.
COLLECTOR_CONNECT_SECONDS = 2
COLLECTOR_EXPORT_SECONDS = 5


def envoy_duration(seconds: float) -> str:
    """Return `seconds` as a protobuf duration in JSON: `600s`, `0.25s`."""
    return f"{seconds:g}s"
