"""What Envoy answers when it answers itself: OpenAI's error shape, and the statuses that the contract names.

Pure: builds dicts.
"""

from __future__ import annotations

# ext_authz takes every 5xx for a picker that failed, so a refusal with 503 travels under a code of its own.
REFUSED_503 = 460


def local_replies() -> dict[str, object]:
    return {
        "mappers": [
            {"filter": _status_is(REFUSED_503, "refused"), "status_code": 503},
            _reply(413, 413, "invalid_request_error", "request_too_large", "the request's body is too large"),
            _reply(
                500,
                503,
                "server_error",
                "picker_unavailable",
                "the gateway cannot choose a pod now",
                retry=True,
            ),
            _reply(
                503,
                503,
                "server_error",
                "upstream_unavailable",
                "no engine pod could answer",
                upstream=True,
                retry=True,
            ),
            _reply(504, 504, "server_error", "upstream_timeout", "the engine did not answer in time"),
            _reply(408, 408, "invalid_request_error", "request_timeout", "the request did not arrive in time"),
        ]
    }


def _reply(
    code: int, answer: int, kind: str, name: str, message: str, upstream: bool = False, retry: bool = False
) -> dict[str, object]:
    """Envoy's own answer `code` in OpenAI's shape; with `upstream` it leaves the picker's refusals alone."""
    status = _status_is(code, name)
    flags = ["UF", "UH", "UC", "UO", "URX", "UR", "UT", "LR", "UPE", "OM"]
    error = {"message": message, "type": kind, "param": None, "code": name}
    reply: dict[str, object] = {
        "filter": {"and_filter": {"filters": [status, {"response_flag_filter": {"flags": flags}}]}}
        if upstream
        else status,
        "status_code": answer,
        "body_format_override": {"json_format": {"error": error}, "content_type": "application/json"},
    }
    if retry:
        reply["headers_to_add"] = [{"header": {"key": "retry-after", "value": "1"}}]
    return reply


def _status_is(code: int, name: str) -> dict[str, object]:
    value = {"default_value": code, "runtime_key": f"reply.{name}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}
