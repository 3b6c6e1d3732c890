"""What an answer of the gateway means for a line: it is over, or it is sent again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from pagefleet_batches.jobs.batch import NO_USAGE, Usage

# The gateway's codes for a client that is over its quota of a minute, or has used its tokens of the month.
OVER_QUOTA = ("rate_limit_exceeded", "insufficient_quota")
# Pods read a changed Secret at different times: for a minute the gateway may not know a new client that this server knows.
CLIENT_UNKNOWN = "client_unknown"
MAX_TRIES = 3  # of a line that a server answers with an error of its own
BUSY_SECONDS, FAILED_SECONDS, QUOTA_SECONDS, KEY_SECONDS = 1.0, 2.0, 5.0, 30.0  # without Retry-After
MAX_RETRY_AFTER = 300.0
SPARE_LEVELS = 100  # of nesting, for the levels of a row around its answer and for the calls around whoever reads it


class Why(Enum):
    """Why a line is sent again: the fleet is busy, the client is over its quota, a server failed, or our key is refused."""

    BUSY = "busy"
    QUOTA = "quota"
    FAILED = "failed"
    KEY = "key"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. Status 0: none came."""

    status: int
    body: bytes = b""
    retry_after: float | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Again:
    why: Why
    seconds: float  # before the next try


@dataclass(frozen=True)
class Over:
    """The line's end: `record` is its row of the output file, or of the error file where `ok` is false."""

    ok: bool
    record: dict[str, object]
    usage: Usage = NO_USAGE


def judge(answer: Answer, line_id: str, custom_id: str, tries: int, own_key: bool) -> Again | Over:
    """Return what follows. `tries`: with this one. `own_key`: whether the gateway gets a key of ours; else a 401 is an engine's."""
    document = _decoded(answer.body)
    wait = None if answer.retry_after is None else min(max(answer.retry_after, 0.1), MAX_RETRY_AFTER)
    match answer.status:
        case 429 if _code(document) in OVER_QUOTA:
            return Again(Why.QUOTA, wait or QUOTA_SECONDS)
        case 429 | 503 | 0:
            return Again(Why.BUSY, wait or BUSY_SECONDS)
        case 401 if own_key:
            return Again(Why.KEY, wait or KEY_SECONDS)
        case 403 if _code(document) == CLIENT_UNKNOWN and tries < MAX_TRIES:
            return Again(Why.FAILED, wait or KEY_SECONDS)
        case status if (status >= 500 or not isinstance(document, dict)) and tries < MAX_TRIES:
            return Again(Why.FAILED, wait or FAILED_SECONDS)
        case status:
            ok = status == 200 and isinstance(document, dict)
            body: object = document if isinstance(document, dict) else {"error": _not_json(answer)}
            if ok and b"\n" not in answer.body:
                body = msgspec.Raw(answer.body)  # as the engine wrote it
            response = {"status_code": status, "request_id": answer.request_id, "body": body}
            record: dict[str, object] = {"id": line_id, "custom_id": custom_id, "response": response, "error": None}
            return Over(ok, record, _usage(document) if ok else NO_USAGE)


def expired(line_id: str, custom_id: str) -> dict[str, object]:
    """Return the row of the error file for a line that the window's end found without an answer."""
    message = "This request could not be executed before the completion window expired."
    return {"id": line_id, "custom_id": custom_id, "response": None,
            "error": {"code": "batch_expired", "message": message}}  # fmt: skip


def _decoded(body: bytes) -> object:
    """Return what a body says; None for what is no JSON, or is nested too deeply to be read again in a row of the journal."""
    try:
        document = msgspec.json.decode(body)
        msgspec.json.decode(b"[" * SPARE_LEVELS + body + b"]" * SPARE_LEVELS, type=msgspec.Raw)
        return document
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _code(document: object) -> object:
    error = document.get("error") if isinstance(document, dict) else None
    return error.get("code") if isinstance(error, dict) else None


def _not_json(answer: Answer) -> dict[str, object]:
    text = answer.body[:200].decode("utf-8", "replace")
    return {
        "message": f"the answer is no JSON object: {text!r}",
        "type": "server_error",
        "param": None,
        "code": "invalid_answer",
    }


def _usage(document: object) -> Usage:
    """Read `usage` in the shape of chat completions, completions and embeddings, or of Responses."""
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, Mapping):
        return NO_USAGE
    details = {
        side: usage.get(f"{one}_details") or usage.get(f"{two}_details") or {}
        for side, one, two in (
            ("in", "prompt_tokens", "input_tokens"),
            ("out", "completion_tokens", "output_tokens"),
        )
    }
    return Usage(
        _count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        _count(details["in"], "cached_tokens"),
        _count(usage, "completion_tokens") or _count(usage, "output_tokens"),
        _count(details["out"], "reasoning_tokens"),
    )


def _count(fields: object, name: str) -> int:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
