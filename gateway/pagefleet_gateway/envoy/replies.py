"""Envoy's own answers: OpenAI's error shape, and the statuses that the contract names.

Pure: builds dicts.
"""

from __future__ import annotations

from dataclasses import dataclass

# ext_authz takes every 5xx for a picker that failed, so a refusal with 503 travels under a code of its own.
REFUSED_503 = 460
RETRY_AFTER_SECONDS = 1
MIB = 1024 * 1024


@dataclass(frozen=True)
class _Reply:
    """One answer in OpenAI's shape. `envoy_status` is the status that Envoy itself would send."""

    envoy_status: int
    status: int
    error_type: str
    code: str
    message: str
    upstream: bool = False  # only when Envoy failed at an engine: the picker's refusals stay as they are
    retry: bool = False  # whether the client should try again


REPLIES = (
    _Reply(
        500,
        503,
        "server_error",
        "picker_unavailable",
        "the gateway's picker does not answer, so it cannot choose a pod; the model's pods may be healthy;"
        f" retry in {RETRY_AFTER_SECONDS} s",
        retry=True,
    ),
    _Reply(
        503,
        503,
        "server_error",
        "upstream_unavailable",
        f"the gateway reached no engine pod that could answer, retries included; retry in {RETRY_AFTER_SECONDS} s",
        upstream=True,
        retry=True,
    ),
    _Reply(
        502,  # Envoy's status for a pod whose connection ended within an answer that has not begun for the client
        503,
        "server_error",
        "upstream_unavailable",
        f"the engine pods ended their connections before a first token, retries included; retry in {RETRY_AFTER_SECONDS} s",
        upstream=True,
        retry=True,
    ),
    _Reply(
        504,
        504,
        "server_error",
        "upstream_timeout",
        "the engine did not answer within the time limits of the service (spec.traffic)",
    ),
    _Reply(
        408,
        408,
        "invalid_request_error",
        "request_timeout",
        "the request did not arrive in full within the gateway's time limit",
    ),
)


_NO_BATCHES = _Reply(
    503,
    503,
    "server_error",
    "batches_unavailable",
    f"the batches server does not answer; its files and batches are kept; retry in {RETRY_AFTER_SECONDS} s",
    retry=True,
)
_BATCHES = {
    "header_filter": {
        "header": {
            "name": ":path",
            "string_match": {"safe_regex": {"regex": r"(?:/[^/]+/[^/]+)?/v1/(?:files|batches)(?:[/?].*)?"}},
        }
    }
}


def local_replies(max_request_bytes: int) -> dict[str, object]:
    message = f"the request's body is larger than {max_request_bytes / MIB:g} MiB, the limit of this gateway"
    too_large = _Reply(413, 413, "invalid_request_error", "request_too_large", message)
    no_batches: dict[str, object] = {
        **_mapper(_NO_BATCHES),
        "filter": {"and_filter": {"filters": [_status_is(503, _NO_BATCHES.code), _BATCHES]}},
    }
    refused = {"filter": _status_is(REFUSED_503, "refused"), "status_code": 503}
    return {"mappers": [refused, no_batches, *(_mapper(reply) for reply in (too_large, *REPLIES))]}


def _mapper(reply: _Reply) -> dict[str, object]:
    status = _status_is(reply.envoy_status, reply.code)
    flags = ["UF", "UH", "UC", "UO", "URX", "UR", "UT", "LR", "UPE", "OM"]
    error = {"message": reply.message, "type": reply.error_type, "param": None, "code": reply.code}
    mapper: dict[str, object] = {
        "filter": {"and_filter": {"filters": [status, {"response_flag_filter": {"flags": flags}}]}}
        if reply.upstream
        else status,
        "status_code": reply.status,
        "body_format_override": {"json_format": {"error": error}, "content_type": "application/json"},
    }
    if reply.retry:
        header = {"key": "retry-after", "value": str(RETRY_AFTER_SECONDS)}
        mapper["headers_to_add"] = [{"header": header}]
    return mapper


def _status_is(code: int, name: str) -> dict[str, object]:
    value = {"default_value": code, "runtime_key": f"reply.{name}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}
