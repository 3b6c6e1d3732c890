"""Envoy's configuration, written once at start: listener, ext_authz to the picker, the engines' cluster,
access log.

Pure: builds dicts. Nothing in it changes while Envoy runs, but the endpoints file (endpoints.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .clusters import (
    DESTINATION,
    ENGINES,
    FALLBACK,
    METADATA,
    MIRROR,
    MIRROR_CLUSTER,
    MIRRORS,
    PICKER,
    TYPE,
    Paths,
    engines_cluster,
    picker_cluster,
    typed,
)
from .overload import overload
from .replies import local_replies

STRIPPED_PREFIXES = ("x-gateway-", "x-pagefleet-", "x-envoy-")
OVERWRITE = "OVERWRITE_IF_EXISTS_OR_ADD"
NO_PATH = json.dumps(
    {
        "error": {
            "message": "there is no such path; use /<namespace>/<service>/v1/... or /v1/...",
            "type": "not_found_error",
            "param": None,
            "code": "path_not_found",
        }
    }
)

# One JSON line per request, for the picker. Times are microseconds from the request's first byte.
LOG_FIELDS = {
    "id": "%REQ(X-REQUEST-ID)%",
    "start": "%START_TIME(%s.%6f)%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
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
}


@dataclass(frozen=True)
class Limits:
    max_request_bytes: int
    max_connections: int = 20000
    max_heap_bytes: int = 1024 * 1024 * 1024
    request_seconds: int = 600  # a service's traffic.timeout goes before it
    hold_seconds: int = 300  # longest time the picker may take: it holds requests that way
    idle_seconds: int = 600  # without a byte in either direction


def bootstrap(node: str, address: str, port: int, paths: Paths, limits: Limits) -> dict[str, object]:
    """The whole static configuration."""
    return {
        "node": {"id": node, "cluster": "pagefleet-gateway"},
        "admin": {"address": {"pipe": {"path": str(paths.admin), "mode": 0o600}}},
        "static_resources": {
            "listeners": [_listener(address, port, limits)],
            "clusters": [picker_cluster(paths), engines_cluster(paths), engines_cluster(paths, MIRRORS, MIRROR)],
        },
        "overload_manager": overload(limits.max_heap_bytes, limits.max_connections),
    }


def _listener(address: str, port: int, limits: Limits) -> dict[str, object]:
    return {
        "name": "ingress",
        "address": {"socket_address": {"address": address, "port_value": port}},
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "filter_chains": [{"filters": [_connection_manager(limits)]}],
    }


def _connection_manager(limits: Limits) -> dict[str, object]:
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
        common_http_protocol_options={"idle_timeout": "900s"},
        http2_protocol_options={"max_concurrent_streams": 1000},
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
        http_filters=[_authorization(limits), _router()],
        route_config=_routes(limits),
    )


def _router() -> dict[str, object]:
    return typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router")


def _authorization(limits: Limits) -> dict[str, object]:
    upstream = [DESTINATION, MIRROR, MIRROR_CLUSTER, FALLBACK, "x-envoy-upstream-rq-timeout-ms", "x-envoy-max-retries"]
    return typed(
        "envoy.filters.http.ext_authz",
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        failure_mode_allow=False,
        # 500 is what tells a picker that failed from one that refused; the local reply turns it into a 503.
        status_on_error={"code": "InternalServerError"},
        with_request_body={"max_request_bytes": limits.max_request_bytes, "allow_partial_message": False},
        allowed_headers={"patterns": [{"safe_regex": {"regex": ".*"}}]},
        http_service={
            "server_uri": {"uri": "http://picker", "cluster": PICKER, "timeout": f"{limits.hold_seconds + 10}s"},
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"exact": name} for name in upstream]},
                "allowed_client_headers": {"patterns": [{"exact": name} for name in ("content-type", "retry-after")]},
            },
        },
    )


def _routes(limits: Limits) -> dict[str, object]:
    unchecked = {
        "envoy.filters.http.ext_authz": {
            "@type": TYPE + "extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
            "disabled": True,
        }
    }
    return {
        "name": "ingress",
        "response_headers_to_remove": ["x-envoy-upstream-service-time"],
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "routes": [
                    _engine_route("/[^/]+/[^/]+/v1/.*", limits),
                    _engine_route("/v1/.*", limits),
                    {
                        "match": {"prefix": "/"},
                        "direct_response": {"status": 404, "body": {"inline_string": NO_PATH}},
                        "response_headers_to_add": [
                            {
                                "header": {"key": "content-type", "value": "application/json"},
                                "append_action": OVERWRITE,
                            }
                        ],
                        "typed_per_filter_config": unchecked,
                    },
                ],
            }
        ],
    }


def _engine_route(pattern: str, limits: Limits) -> dict[str, object]:
    return {
        "match": {"safe_regex": {"regex": pattern}},
        "request_body_buffer_limit": limits.max_request_bytes,
        "response_headers_to_add": [
            {
                "header": {
                    "key": "x-pagefleet-revision",
                    "value": f"%UPSTREAM_METADATA({METADATA}:revision)%",
                },
                "append_action": OVERWRITE,
            },
            # Without the request header there is no value, and then no header either.
            {"header": {"key": FALLBACK, "value": f"%REQ({FALLBACK})%"}, "append_action": OVERWRITE},
        ],
        "route": {
            "request_mirror_policies": [{"cluster_header": MIRROR_CLUSTER, "disable_shadow_host_suffix_append": True}],
            "cluster": ENGINES,
            "timeout": f"{limits.request_seconds}s",
            "idle_timeout": f"{limits.idle_seconds}s",
            "regex_rewrite": {
                "pattern": {"regex": r"^(?:/[^/]+/[^/]+)?(/v1/.*)$"},
                "substitution": r"\1",
            },
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
                "retriable_status_codes": [503],
                "num_retries": 2,
                "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.25s"},
            },
        },
    }


def written(document: Mapping[str, object]) -> str:
    """Envoy reads JSON as YAML."""
    return json.dumps(document, indent=1)
