"""Every time limit that Envoy has, in seconds: routes, connections, clusters and the process read them here. Pure.

The limits of one service (`spec.traffic`) go before these where Envoy lets them.
"""

from __future__ import annotations

from pagefleet_contract.quantity import seconds
from pagefleet_contract.traffic import DEFAULT_TIMEOUT, MAX_HOLD_SECONDS

# A whole request, retries included, of a service without `traffic.timeout`.
REQUEST_SECONDS = seconds(DEFAULT_TIMEOUT)
# A stream without a byte in either direction, before its route is known. From then on the request's own limit bounds it.
STREAM_IDLE_SECONDS = 600
NO_LIMIT = 0  # Envoy's word for a timer that is off
# How long an engine may be silent: Envoy has one route for each of these (stream_timeout.py). `spec.traffic` allows 24 h.
HOUR = 3600
SILENCE_STEPS = (
    *(1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 2400),
    *(HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 16 * HOUR, 24 * HOUR),
)

# The picker holds a request for MAX_HOLD_SECONDS at most; the rest is for its answer to arrive.
PICKER_ANSWER_SECONDS = MAX_HOLD_SECONDS + 10
PICKER_CONNECT_SECONDS = 2
# Envoy asks the picker whether it lives, because a held request may wait for minutes. A picker that hangs misses two answers
# within 4 s: requests get 503 then, those that wait too.
PICKER_CHECK_SECONDS, PICKER_CHECK_ANSWER_SECONDS, PICKER_CHECKS = 0.5, 1.5, 2

# Clients.
REQUEST_HEADERS_SECONDS = 15
REQUEST_BODY_SECONDS = 120
CLIENT_IDLE_SECONDS = 900  # a connection without a request
# A connection's life: after it the client connects again, and so reaches gateway pods that are new. Its open streams go on.
CLIENT_CONNECTION_SECONDS = 600
# Between a stopping gateway's two GOAWAYs: an HTTP/2 client needs them to learn of the stop.
GOAWAY_SECONDS = 2
DRAIN_SECONDS = 10  # over which a stopping Envoy closes its clients' connections

# Engines.
ENGINE_CONNECT_SECONDS = 1
# Below every engine's keep-alive (uvicorn's, and so vLLM's and SGLang's, is 5 s): a connection that its engine closes at that
# moment is not reused.
ENGINE_IDLE_SECONDS = 4
# A node that lost its power answers nothing, not even a reset. TCP keep-alive finds that where nothing is sent. It pauses while
# something that was sent is not acknowledged, and Linux sends that again for a quarter of an hour: UNACKNOWLEDGED_SECONDS ends it
# (TCP_USER_TIMEOUT, RFC 5482). It is no shorter than all probes together, because it ends them too.
KEEPALIVE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 4, 2, 3
UNACKNOWLEDGED_SECONDS = KEEPALIVE_SECONDS + KEEPALIVE_INTERVAL_SECONDS * KEEPALIVE_PROBES
RETRY_BASE_SECONDS, RETRY_MAX_SECONDS = 0.01, 0.25  # the pause before a retry, at first and at most

# The batches server.
BATCHES_CONNECT_SECONDS = 2

# The collector of spans.
COLLECTOR_CONNECT_SECONDS = 2
COLLECTOR_EXPORT_SECONDS = 5


def envoy_duration(seconds: float) -> str:
    """Return `seconds` as a protobuf duration in JSON: `600s`, `0.25s`."""
    return f"{seconds:g}s"
