"""Envoy's routes: engines under the two kinds of paths, a refusal for everything else. Pure: builds dicts.

They differ in how long an engine may send nothing (patience.py): the picker names one.
"""

from __future__ import annotations

import json
from functools import partial

from pagefleet_gateway.envoy.clusters import ENGINES, FALLBACK, METADATA, MIRROR_CLUSTER, TYPE
from pagefleet_gateway.envoy.stream_timeout import ATTEMPT, STEPS, STREAM, route_name

PATIENCE = "x-pagefleet-patience"  # a header from the picker: the name of a route (patience.py)
ENGINE_PATH = "(?:/[^/]+/[^/]+)?/v1/.*"
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


def routes(max_request_bytes: int, request_seconds: int, idle_seconds: int) -> dict[str, object]:
    """Every route. `request_seconds` is for services that name no timeout of their own."""
    engine = partial(_engine_route, max_request_bytes, request_seconds)
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
                "include_request_attempt_count": True,  # our engine answers a retry that ends it as the last one
                "routes": [
                    *(engine(whose, seconds) for whose in (ATTEMPT, STREAM) for seconds in STEPS),
                    engine("", idle_seconds),
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


def _engine_route(max_request_bytes: int, request_seconds: int, whose: str, silence: int) -> dict[str, object]:
    match: dict[str, object] = {"safe_regex": {"regex": ENGINE_PATH}}
    if whose:
        match["headers"] = [{"name": PATIENCE, "string_match": {"exact": route_name(whose, silence)}}]
    return {
        "match": match,
        "request_body_buffer_limit": max_request_bytes,
        # Our engine then says how many tokens its answer had.
        "request_headers_to_add": [{"header": {"key": "te", "value": "trailers"}, "append_action": OVERWRITE}],
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
            "timeout": f"{request_seconds}s",
            "idle_timeout": f"{silence if whose != ATTEMPT else STEPS[-1]}s",
            "regex_rewrite": {
                "pattern": {"regex": r"^(?:/[^/]+/[^/]+)?(/v1/.*)$"},
                "substitution": r"\1",
            },
            "retry_policy": _retries(silence if whose == ATTEMPT else None),
        },
    }


def _retries(silence: int | None) -> dict[str, object]:
    """`reset` is a connection that ended or an engine that was silent for too long. Envoy never tries again once a byte
    of an answer went on to the client.
    """
    policy: dict[str, object] = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 2,
        "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.25s"},
    }
    return policy if silence is None else {**policy, "per_try_idle_timeout": f"{silence}s"}
