"""Envoy's routes: files and batches, engines under the two kinds of paths, a refusal for everything else. Pure: builds dicts.

The engine routes differ in how long an engine may be silent (stream_timeout.py). The picker names one of them by header.
"""

from __future__ import annotations

import json

from pagefleet_contract.headers import ENGINE_FULL, ERROR_HEADER, FALLBACK_HEADER, PEAK_HEADER, REVISION_HEADER
from pagefleet_gateway.envoy import timeouts
from pagefleet_gateway.envoy.clusters import BATCHES, ENGINES, METADATA, MIRROR_CLUSTER, TYPE
from pagefleet_gateway.envoy.stream_timeout import ATTEMPT, HEADER, STREAM, route_name
from pagefleet_gateway.envoy.timeouts import SILENCE_STEPS, envoy_duration

ENGINE_PATH = "(?:/[^/]+/[^/]+)?/v1/.*"
BATCHES_PATH = "(?:/[^/]+/[^/]+)?/v1/(?:files|batches)(?:/.*)?"
OVERWRITE = "OVERWRITE_IF_EXISTS_OR_ADD"


def _error(code: str, message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "not_found_error", "param": None, "code": code}})


PATH_NOT_FOUND = _error("path_not_found", "there is no such path; use /<namespace>/<service>/v1/... or /v1/...")
NO_BATCHES = _error(
    "batches_not_installed",
    "this gateway has no batches server, so it has no files and no batches; its operator can install one"
    " (manifests/components/batches, or batches.enabled of the chart)",
)


def routes(max_request_bytes: int, batches: bool = False) -> dict[str, object]:
    """Build every route, the most specific first. `batches`: whether there is a batches server."""
    bounded = [
        _engine_route(max_request_bytes, scope, seconds) for scope in (ATTEMPT, STREAM) for seconds in SILENCE_STEPS
    ]
    return {
        "name": "ingress",
        "response_headers_to_remove": ["x-envoy-upstream-service-time"],
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "include_request_attempt_count": True,  # our engine answers a retry that ends it as the last one
                "routes": [
                    _batches_route() if batches else _refusal({"safe_regex": {"regex": BATCHES_PATH}}, NO_BATCHES),
                    *bounded,
                    _engine_route(max_request_bytes, "", timeouts.NO_LIMIT),
                    _refusal({"prefix": "/"}, PATH_NOT_FOUND),
                ],
            }
        ],
    }


# The picker is not asked.
_UNCHECKED = {
    "envoy.filters.http.ext_authz": {
        "@type": TYPE + "extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
        "disabled": True,
    }
}


def _batches_route() -> dict[str, object]:
    """Send files and batches to their server, which reads the client's key itself. A file may be larger than a request to an
    engine may be; the server bounds it. Fetching one may take as long as its bytes move: only silence ends it."""
    return {
        "match": {"safe_regex": {"regex": BATCHES_PATH}},
        "route": {
            "cluster": BATCHES,
            "timeout": envoy_duration(timeouts.NO_LIMIT),
            "idle_timeout": envoy_duration(timeouts.STREAM_IDLE_SECONDS),
        },
        "typed_per_filter_config": _UNCHECKED,
    }


def _refusal(match: dict[str, object], error: str) -> dict[str, object]:
    """Answer 404 to the paths that match."""
    return {
        "match": match,
        "direct_response": {"status": 404, "body": {"inline_string": error}},
        "response_headers_to_add": [
            {"header": {"key": "content-type", "value": "application/json"}, "append_action": OVERWRITE}
        ],
        "typed_per_filter_config": _UNCHECKED,
    }


def _engine_route(max_request_bytes: int, scope: str, silence_seconds: int) -> dict[str, object]:
    """Build the route whose timer of this scope ends after `silence_seconds`. Scope "" matches without a header."""
    match: dict[str, object] = {"safe_regex": {"regex": ENGINE_PATH}}
    if scope:
        match["headers"] = [{"name": HEADER, "string_match": {"exact": route_name(scope, silence_seconds)}}]
    stream_idle = timeouts.NO_LIMIT if scope == ATTEMPT else silence_seconds  # `timeout` bounds the whole request
    return {
        "match": match,
        "request_body_buffer_limit": max_request_bytes,
        # Our engine then sends the number of its answer's tokens.
        "request_headers_to_add": [{"header": {"key": "te", "value": "trailers"}, "append_action": OVERWRITE}],
        "response_headers_to_add": [
            {
                "header": {
                    "key": REVISION_HEADER,
                    "value": f"%UPSTREAM_METADATA({METADATA}:revision)%",
                },
                "append_action": OVERWRITE,
            },
            # Without the request header there is no value, and then no header either.
            *(
                {"header": {"key": name, "value": f"%REQ({name})%"}, "append_action": OVERWRITE}
                for name in (FALLBACK_HEADER, PEAK_HEADER)
            ),
        ],
        "route": {
            "request_mirror_policies": [{"cluster_header": MIRROR_CLUSTER, "disable_shadow_host_suffix_append": True}],
            "cluster": ENGINES,
            "timeout": envoy_duration(timeouts.REQUEST_SECONDS),
            "idle_timeout": envoy_duration(stream_idle),
            "regex_rewrite": {
                "pattern": {"regex": r"^(?:/[^/]+/[^/]+)?(/v1/.*)$"},
                "substitution": r"\1",
            },
            "retry_policy": _retry_policy(silence_seconds if scope == ATTEMPT else None),
        },
    }


def _retry_policy(silence_seconds: int | None) -> dict[str, object]:
    """Build the retry policy. `reset` is a connection that ended or an engine that was silent for too long. An
    engine whose queue is full states it in a header, which our filter adds where an engine states it in other words
    (module/source/first_token.c). Envoy never tries again once a byte of an answer went on to the client.
    """
    policy: dict[str, object] = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes,retriable-headers",
        "retriable_status_codes": [503],
        # Not every 429: an engine may also limit one client, and another pod would then be a way round that limit.
        "retriable_headers": [{"name": ERROR_HEADER, "string_match": {"exact": ENGINE_FULL}}],
        "num_retries": 2,
        "retry_back_off": {
            "base_interval": envoy_duration(timeouts.RETRY_BASE_SECONDS),
            "max_interval": envoy_duration(timeouts.RETRY_MAX_SECONDS),
        },
    }
    return policy if silence_seconds is None else {**policy, "per_try_idle_timeout": envoy_duration(silence_seconds)}
