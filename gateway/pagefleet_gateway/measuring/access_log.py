"""Reads Envoy's access log: what a line means for the windows, the ledger and the metrics.

Pure but for the ledger it closes. Never judges a revision: it only counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.measuring.trace_context import trace_id
from pagefleet_gateway.measuring.windows import Outcome
from pagefleet_gateway.picking.ledger import Ledger, Ticket
from pagefleet_gateway.picking.routing import Refusal

# Envoy's response flags. Downstream: the client went away or broke the protocol, which says nothing about a
# revision.
CANCELLED = frozenset({"DC", "DR", "DPE"})
TOKENS = ("tokens_trailer", "tokens_header", "tokens_usage")  # where a line may hold an answer's output tokens
UNREACHED = frozenset({"UF", "UH", "UC", "UR", "UO", "LR", "UPE"})
CUT = frozenset({"UC", "UR", "UPE"})  # the connection ended after the request had been sent on it
ENGINE_DIED = "engine_died"  # our engine's API says it of its engine process


@dataclass(frozen=True)
class Ended:
    """A request that was sent to a pod and is over."""

    namespace: str
    service: str
    revision: str  # the one that answered, or the one picked when none did
    code: int
    cancelled: bool
    outcome: Outcome | None  # None: it does not count in the windows
    key: str = ""  # name of the API key that asked


@dataclass(frozen=True)
class Line:
    """One access-log line. Times in seconds; `started` is Unix time."""

    id: str
    started: float
    code: int
    flags: frozenset[str]
    ttft: float | None
    duration: float
    attempts: int
    upstream: str
    streamed: bool
    fields: Mapping[str, object]
    tokens: int | None = None  # output tokens; None: the engine did not say
    trace_id: str | None = None  # of the trace that the request is in
    error: str = ""  # the code of the error that ended its answer, where the engine says it


@dataclass(frozen=True)
class Attempt:
    """An attempt of a request at a pod that did not answer it well. Its line comes before the request's own."""

    id: str
    upstream: str
    flags: frozenset[str]
    error: str


def parse(text: bytes) -> Line | Attempt | None:
    """A line of LOG_FIELDS or ATTEMPT_FIELDS; None when it is neither (Envoy was cut off)."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
        return None
    flags = frozenset(flag for flag in str(fields.get("flags") or "").split(",") if flag not in ("", "-"))
    error = str(fields.get("error") or "")
    if "attempt" in fields:
        return Attempt(fields["id"], str(fields["attempt"] or ""), flags, error)
    ttft = fields.get("ttft_us")
    return Line(
        id=fields["id"],
        started=_number(fields.get("start")),
        code=int(_number(fields.get("code"))),
        flags=flags,
        ttft=None if ttft is None else _number(ttft) / 1e6,
        duration=_number(fields.get("duration_us")) / 1e6,
        attempts=int(_number(fields.get("attempts"))),
        upstream=str(fields.get("upstream") or ""),
        streamed=str(fields.get("content_type") or "").startswith("text/event-stream"),
        fields=fields,
        tokens=_tokens(fields),
        trace_id=_trace(fields),
        error=error,
    )


def attempted(attempt: Attempt, ledger: Ledger, now: float) -> None:
    """Remember what the pod's engine had when it ended."""
    ticket = ledger.ticket(attempt.id)
    if ticket is not None and (attempt.flags & CUT or attempt.error == ENGINE_DIED):
        for pod in ticket.choices:
            if pod.address == attempt.upstream:
                ledger.deaths.died(ticket.content, pod.uid, now)


def settle(line: Line, ledger: Ledger, now: float) -> Ended | None:
    """Close the request's ticket, eject pods that failed it, and say how it counts; None for a refused
    request.

    When another revision had to answer, the picked one has failed the request: it is counted there as an
    error, and not at the other, whose latency would hold the failed attempt's time.
    """
    ticket = ledger.close(line.id)
    if ticket is None:
        return None
    answered = _answering(ticket, line)
    cancelled = bool(line.flags & CANCELLED)
    failing = _failed(ticket, line, cancelled)
    for pod in failing:
        ledger.outliers.failed(pod.uid, now)
    if answered is not None and answered not in failing and not cancelled and line.code:
        judge = ledger.outliers.errored if line.code >= 500 else ledger.outliers.answered
        judge(answered.uid, now)
    ledger.retries.settle(ticket.service.key, max(line.attempts - 1, 0), answered=0 < line.code < 500)
    if line.error == ENGINE_DIED and answered is not None:
        ledger.deaths.died(ticket.content, answered.uid, now)
    elif 200 <= line.code < 300 and not line.flags:
        ledger.deaths.answered(ticket.content)
    moved = answered is not None and answered.revision != ticket.revision
    failed = moved or line.code >= 500 or bool(line.flags - CANCELLED)
    counts = not cancelled and (failed or not 400 <= line.code < 500)
    service = ticket.service
    ttft = line.ttft - ticket.held if line.streamed and line.ttft is not None else None
    if ttft is not None and not failed and answered is ticket.choices[0]:
        ledger.backlogs.measured(answered, ticket.fresh, ttft)
    outcome = Outcome(
        namespace=service.namespace,
        service=service.name,
        revision=ticket.revision,
        stratum=ticket.stratum,
        ended=line.started + line.duration,
        failed=failed,
        ttft=ttft,
        e2e=line.duration - ticket.held,
        tokens=line.tokens,
    )
    revision = answered.revision if answered else ticket.revision
    return Ended(
        service.namespace, service.name, revision, line.code, cancelled, outcome if counts else None, ticket.key
    )


def shown(line: Line, ended: Ended | None, refusal: Refusal | None = None) -> bytes:
    """The line as the gateway's own log shows it: Envoy's fields and what the picker knows, or why it refused."""
    document: dict[str, object] = {"request_id": line.id, "trace_id": line.trace_id}
    document |= {name: value for name, value in line.fields.items() if name not in (*TOKENS, *document, "id")}
    document["output_tokens"] = line.tokens
    if ended is not None:
        document |= {"namespace": ended.namespace, "service": ended.service, "revision": ended.revision}
        if ended.outcome is not None:
            document |= {"stratum": ended.outcome.stratum, "picked": ended.outcome.revision}
        if ended.key:
            document["key"] = ended.key
    elif refusal is not None:
        document["refused"] = refusal.code
        if refusal.service is not None:
            document |= {"namespace": refusal.service[0], "service": refusal.service[1]}
        if refusal.key:
            document["key"] = refusal.key
    document["streamed"] = line.streamed
    return msgspec.json.encode(document) + b"\n"


def _tokens(fields: Mapping[str, object]) -> int | None:
    """As our engine says them, else as OpenAI's `usage` does."""
    for name in TOKENS:
        value = fields.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
    return None


def _trace(fields: Mapping[str, object]) -> str | None:
    """As Envoy's own span says where it makes any, else as the request's `traceparent` does."""
    told, parent = fields.get("trace_id"), fields.get("traceparent")
    if isinstance(told, str) and told not in ("", "-"):
        return told
    return trace_id(parent) if isinstance(parent, str) else None


def _answering(ticket: Ticket, line: Line) -> Pod | None:
    return next((pod for pod in ticket.choices if pod.address == line.upstream), None)


def _failed(ticket: Ticket, line: Line, cancelled: bool) -> list[Pod]:
    """The pods of the attempts before the last, and the last one's too if it was not reached, not ready or too slow."""
    tried = max(1, min(line.attempts, len(ticket.choices)))
    # Not every timeout: a long answer that its service's whole `timeout` cut says nothing of the pod.
    silent = str(line.fields.get("details") or "").startswith("upstream_per_try")
    last_failed = not cancelled and (bool(line.flags & UNREACHED) or line.code == 503 or silent)
    return list(ticket.choices[: tried if last_failed else tried - 1])


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else 0.0
    except ValueError:
        return 0.0
