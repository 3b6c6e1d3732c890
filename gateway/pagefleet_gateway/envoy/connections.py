"""Envoy's treatment of a client's connection: the requests that it accepts, their filters and their log line.

Pure: builds dicts. Envoy refuses before the picker sees them: CONNECT, upgrades, headers with underscores, paths with
encoded slashes, ambiguous lengths, headers above 60 KiB or 100 in number, bodies above the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_contract.headers import (
    CLIENT_HEADER,
    ERROR_HEADER,
    FALLBACK_HEADER,
    OUTPUT_TOKENS_HEADER,
    PEAK_HEADER,
    PREFILL_HEADER,
    PREFILLED_HEADER,
    PROMPT_TOKENS_HEADER,
    REQUEST_ID_HEADER,
    RESERVED_PREFIXES,
)
from pagefleet_gateway.envoy import answer_tokens, body_edits, timeouts
from pagefleet_gateway.envoy.answer_tokens import TOKENS_METADATA, USAGE
from pagefleet_gateway.envoy.clusters import DESTINATION, MIRROR, MIRROR_CLUSTER, PICKER, extension
from pagefleet_gateway.envoy.module.filters import arrival_filter
from pagefleet_gateway.envoy.replies import local_replies
from pagefleet_gateway.envoy.routes import routes
from pagefleet_gateway.envoy.stream_timeout import HEADER as STREAM_TIMEOUT
from pagefleet_gateway.envoy.timeouts import envoy_duration
from pagefleet_gateway.envoy.tracing import Collector, tracing_config

# One JSON line per request, for the picker. Times are microseconds: the duration from the request's first byte, the times to
# the first token and to the answer's end from its last. The answer is held until its first token, so that is when its first byte goes to the client.
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
    "ttft_us": "%COMMON_DURATION(DS_RX_END:DS_TX_BEG:us)%",
    "e2e_us": "%COMMON_DURATION(DS_RX_END:DS_TX_END:us)%",
    "duration_us": "%COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "upstream": "%UPSTREAM_HOST%",
    "content_type": "%RESP(CONTENT-TYPE)%",
    "tokens_trailer": f"%TRAILER({OUTPUT_TOKENS_HEADER})%",
    "tokens_header": f"%RESP({OUTPUT_TOKENS_HEADER})%",
    "prompt_header": f"%RESP({PROMPT_TOKENS_HEADER})%",
    "prompt_usage": f"%DYNAMIC_METADATA({TOKENS_METADATA}:prompt)%",
    "tokens_usage": f"%DYNAMIC_METADATA({TOKENS_METADATA}:tokens)%",
    "error": f"%TRAILER({ERROR_HEADER})%",
    "prefilled": f"%RESP({PREFILLED_HEADER})%",
    "reading": "%DYNAMIC_METADATA(pagefleet.client:reading)%",
}

# One more line for each attempt that failed, before the request's own line. No other line has "attempt".
ATTEMPT_FIELDS = {
    "id": "%REQ(X-REQUEST-ID)%",
    "attempt": "%UPSTREAM_HOST%",
    "flags": "%RESPONSE_FLAGS%",
    "error": f"%RESP({ERROR_HEADER})%",
}

# The headers that the picker may set on a request that it lets through.
PICKER_HEADERS = (
    DESTINATION,
    MIRROR,
    MIRROR_CLUSTER,
    FALLBACK_HEADER,
    STREAM_TIMEOUT,
    USAGE,
    body_edits.EDITS,
    PEAK_HEADER,
    PREFILL_HEADER,
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-max-retries",
    "traceparent",
    "authorization",  # the engine's own key, where the client has one of the gateway's
    CLIENT_HEADER,
)


@dataclass(frozen=True)
class EnvoyLimits:
    """Sizes and numbers that Envoy bounds; its time limits are in timeouts.py."""

    max_request_bytes: int
    max_connections: int = 20000
    max_heap_bytes: int = 1024 * 1024 * 1024


def connection_manager(limits: EnvoyLimits, spans: Collector | None = None, batches: bool = False) -> dict[str, object]:
    """Build the filter chain of every listener. `spans`: their collector; None: Envoy makes no spans. `batches`: whether
    there is a batches server."""
    mutations: list[dict[str, object]] = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix, "ignore_case": True}}} for prefix in RESERVED_PREFIXES
    ]
    # The request's id is the key of its ticket, so a client must not choose it.
    mutations.append({"remove": REQUEST_ID_HEADER})
    return extension(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="ingress",
        server_name="pagefleet",
        use_remote_address=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        request_headers_timeout=envoy_duration(timeouts.REQUEST_HEADERS_SECONDS),
        request_timeout=envoy_duration(timeouts.REQUEST_BODY_SECONDS),
        stream_idle_timeout=envoy_duration(timeouts.STREAM_IDLE_SECONDS),
        drain_timeout=envoy_duration(timeouts.GOAWAY_SECONDS),
        common_http_protocol_options={
            "idle_timeout": envoy_duration(timeouts.CLIENT_IDLE_SECONDS),
            "max_connection_duration": envoy_duration(timeouts.CLIENT_CONNECTION_SECONDS),
            "max_headers_count": 100,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        http2_protocol_options={
            "max_concurrent_streams": 1000,
            # A prompt of 1 MiB comes without waiting for a window.
            "initial_stream_window_size": 1024 * 1024,
            "initial_connection_window_size": 4 * 1024 * 1024,
        },
        early_header_mutation_extensions=[
            extension(
                "envoy.http.early_header_mutation.header_mutation",
                "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=mutations,
            )
        ],
        access_log=[
            extension(
                "envoy.access_loggers.stdout",
                "extensions.access_loggers.stream.v3.StdoutAccessLog",
                log_format={"json_format": LOG_FIELDS},
            )
        ],
        local_reply_config=local_replies(limits.max_request_bytes),
        http_filters=[arrival_filter(), _authorization(limits), _scripts(), _router()],
        route_config=routes(limits.max_request_bytes, batches),
        **({"tracing": tracing_config(spans)} if spans is not None else {}),
    )


def _scripts() -> dict[str, object]:
    return extension(
        "envoy.filters.http.lua",
        "extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": body_edits.SCRIPT + answer_tokens.SCRIPT},
    )


def _router() -> dict[str, object]:
    failed = {"comparison": {"op": "GE", "value": {"default_value": 500, "runtime_key": "log.attempts"}}}
    full = {"comparison": {"op": "EQ", "value": {"default_value": 429, "runtime_key": "log.full"}}}
    cut = {"response_flag_filter": {"flags": ["UC", "UR", "UPE"]}}
    filters = [cut, {"status_code_filter": failed}, {"status_code_filter": full}]
    attempts = extension(
        "envoy.access_loggers.stdout",
        "extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"json_format": ATTEMPT_FIELDS},
    )
    return extension(
        "envoy.filters.http.router",
        "extensions.filters.http.router.v3.Router",
        upstream_log=[{**attempts, "filter": {"or_filter": {"filters": filters}}}],
    )


def _authorization(limits: EnvoyLimits) -> dict[str, object]:
    return extension(
        "envoy.filters.http.ext_authz",
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        failure_mode_allow=False,
        clear_route_cache=True,  # the picker's header chooses the route, and with it the stream timeout
        # 500 distinguishes a picker that failed from one that refused. The local reply turns it into a 503.
        status_on_error={"code": "InternalServerError"},
        with_request_body={"max_request_bytes": limits.max_request_bytes, "allow_partial_message": False},
        allowed_headers={"patterns": [{"safe_regex": {"regex": ".*"}}]},
        http_service={
            "server_uri": {
                "uri": "http://picker",
                "cluster": PICKER,
                "timeout": envoy_duration(timeouts.PICKER_ANSWER_SECONDS),
            },
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"exact": name} for name in PICKER_HEADERS]},
                "dynamic_metadata_from_headers": {"patterns": [{"exact": USAGE}]},
                "allowed_client_headers": {
                    "patterns": [{"exact": name} for name in ("content-type", "retry-after", "www-authenticate")]
                },
            },
        },
    )
