"""How Envoy treats a client's connection: what it accepts, which filters a request passes, what it logs.

Pure: builds dicts. Refused here, before the picker: CONNECT, upgrades, headers with underscores, paths with encoded
slashes, ambiguous lengths, headers above 60 KiB or 100 in number, bodies above the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_gateway.envoy.answer_tokens import ERROR, SEEN, TOKENS, USAGE, watcher
from pagefleet_gateway.envoy.clusters import DESTINATION, FALLBACK, MIRROR, MIRROR_CLUSTER, PICKER, typed
from pagefleet_gateway.envoy.replies import local_replies
from pagefleet_gateway.envoy.routes import PATIENCE, routes
from pagefleet_gateway.envoy.tracing import Collector, provider

STRIPPED_PREFIXES = ("x-gateway-", "x-pagefleet-", "x-envoy-")

# One JSON line per request, for the picker. Times are microseconds from the request's first byte.
LOG_FIELDS = {
    "id": "%REQ(X-REQUEST-ID)%",
    "traceparent": "%REQ(TRACEPARENT)%",
    "trace_id": "%TRACE_ID%",
    "start": "%START_TIME(%s.%6f)%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "protocol": "%PROTOCOL%",
    "code": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "ttft_us": "%COMMON_DURATION(DS_RX_BEG:US_RX_BEG:us)%",
    "duration_us": "%COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "upstream": "%UPSTREAM_HOST%",
    "content_type": "%RESP(CONTENT-TYPE)%",
    "tokens_trailer": f"%TRAILER({TOKENS})%",
    "tokens_header": f"%RESP({TOKENS})%",
    "tokens_usage": f"%DYNAMIC_METADATA({SEEN}:tokens)%",
    "error": f"%TRAILER({ERROR})%",
}

# One more line per attempt that an engine did not end well, before the request's own. No other line has "attempt".
ATTEMPT_FIELDS = {
    "id": "%REQ(X-REQUEST-ID)%",
    "attempt": "%UPSTREAM_HOST%",
    "flags": "%RESPONSE_FLAGS%",
    "error": f"%RESP({ERROR})%",
}

# What the picker may set on a request that it lets through.
PICKED = (
    DESTINATION,
    MIRROR,
    MIRROR_CLUSTER,
    FALLBACK,
    PATIENCE,
    USAGE,
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-max-retries",
    "traceparent",
)


@dataclass(frozen=True)
class Limits:
    max_request_bytes: int
    max_connections: int = 20000
    max_heap_bytes: int = 1024 * 1024 * 1024
    request_seconds: int = 600  # a service's traffic.timeout goes before it
    hold_seconds: int = 300  # longest time the picker may take: it holds requests that way
    idle_seconds: int = 600  # without a byte in either direction


def connection_manager(limits: Limits, spans: Collector | None = None) -> dict[str, object]:
    """`spans`: where they are sent, None: none are made."""
    mutations: list[dict[str, object]] = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix, "ignore_case": True}}} for prefix in STRIPPED_PREFIXES
    ]
    # The request's id is the key of its ticket, so it must be ours.
    mutations.append({"remove": "x-request-id"})
    return typed(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="ingress",
        server_name="pagefleet",
        use_remote_address=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        request_headers_timeout="15s",
        request_timeout="120s",
        stream_idle_timeout=f"{limits.idle_seconds}s",
        # The longest a stopping gateway waits for an HTTP/2 client to have heard of it.
        drain_timeout="2s",
        common_http_protocol_options={
            "idle_timeout": "900s",
            "max_headers_count": 100,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        http2_protocol_options={
            "max_concurrent_streams": 1000,
            "initial_stream_window_size": 65536,
            "initial_connection_window_size": 1048576,
        },
        early_header_mutation_extensions=[
            typed(
                "envoy.http.early_header_mutation.header_mutation",
                "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=mutations,
            )
        ],
        access_log=[
            typed(
                "envoy.access_loggers.stdout",
                "extensions.access_loggers.stream.v3.StdoutAccessLog",
                log_format={"json_format": LOG_FIELDS},
            )
        ],
        local_reply_config=local_replies(),
        http_filters=[_authorization(limits), watcher(), _router()],
        route_config=routes(limits.max_request_bytes, limits.request_seconds, limits.idle_seconds),
        **({"tracing": provider(spans)} if spans is not None else {}),
    )


def _router() -> dict[str, object]:
    failed = {"comparison": {"op": "GE", "value": {"default_value": 500, "runtime_key": "log.attempts"}}}
    cut = {"response_flag_filter": {"flags": ["UC", "UR", "UPE"]}}
    attempts = typed(
        "envoy.access_loggers.stdout",
        "extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"json_format": ATTEMPT_FIELDS},
    )
    return typed(
        "envoy.filters.http.router",
        "extensions.filters.http.router.v3.Router",
        upstream_log=[{**attempts, "filter": {"or_filter": {"filters": [cut, {"status_code_filter": failed}]}}}],
    )


def _authorization(limits: Limits) -> dict[str, object]:
    return typed(
        "envoy.filters.http.ext_authz",
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        failure_mode_allow=False,
        clear_route_cache=True,  # the picker says which route: how long the answer may pause
        # 500 is what tells a picker that failed from one that refused; the local reply turns it into a 503.
        status_on_error={"code": "InternalServerError"},
        with_request_body={"max_request_bytes": limits.max_request_bytes, "allow_partial_message": False},
        allowed_headers={"patterns": [{"safe_regex": {"regex": ".*"}}]},
        http_service={
            "server_uri": {"uri": "http://picker", "cluster": PICKER, "timeout": f"{limits.hold_seconds + 10}s"},
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"exact": name} for name in PICKED]},
                "dynamic_metadata_from_headers": {"patterns": [{"exact": USAGE}]},
                "allowed_client_headers": {
                    "patterns": [{"exact": name} for name in ("content-type", "retry-after", "www-authenticate")]
                },
            },
        },
    )
