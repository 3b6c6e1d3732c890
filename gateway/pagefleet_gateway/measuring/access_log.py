"""Reads Envoy's access log: the effect of a line on the windows, the ledger and the metrics.

Pure except for the ledger, where it closes tickets. Never judges a revision: it only counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from pagefleet_contract.disaggregation import FAILED, PREFILL_FAILURES, REMOTE
from pagefleet_contract.headers import ENGINE_DIED, ENGINE_FULL
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.measuring.objectives import Judged, judge
from pagefleet_gateway.measuring.slices import End, Outcome
from pagefleet_gateway.measuring.trace_context import trace_id
from pagefleet_gateway.picking.ledger import AttemptEnd, Ledger, Ticket
from pagefleet_gateway.picking.routing import Refusal

# Envoy's response flags. Downstream: the client went away or broke the protocol, which is no revision's failure.
CANCELLED = frozenset({"DC", "DR", "DPE"})
PROMPT_FIELDS = ("prompt_header", "prompt_usage")  # a line has a prompt's tokens in one of them
TOKEN_FIELDS = (
    "tokens_trailer",
    "tokens_header",
    "tokens_usage",
)  # a line has an answer's output tokens in one of them
# Upstream: the pod was not reached, or it ended the connection before its answer was whole.
UNREACHED = frozenset({"UF", "UH", "UC", "UR", "UO", "LR", "UPE"})
# Upstream: the pod ended the connection after the request had been sent to it.
CUT = frozenset({"UC", "UR", "UPE"})
TIMED_OUT = frozenset({"UT", "SI", "DT", "UMSDR"})  # a time limit of the gateway ended the request


@dataclass(frozen=True)
class Completion:
    """A request that was sent to a pod and is over."""

    namespace: str
    service: str
    revision: str  # the one that answered, or the picked one when none did
    code: int
    outcome: Outcome
    api_key: str = ""  # the name of the client's API key
    judged: tuple[Judged, ...] = ()  # by the service's objectives
    prefilled: str = ""  # what became of its prefill leg, "" without one


@dataclass(frozen=True)
class LogLine:
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
    tokens: int | None = None  # output tokens; None: the engine did not report them
    prompt_tokens: int | None = None  # None: the engine did not report them
    body_bytes: int | None = None  # of the answer; None: not known
    trace_id: str | None = None
    error: str = ""  # the code of the error that ended its answer, where the engine reports it
    whole: bool = True  # False: it was reported before its answer's end, so its end is not known


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that a pod did not answer, or answered with 5xx. Its line comes before the request's own."""

    id: str
    upstream: str
    flags: frozenset[str]
    error: str


def parse(text: bytes) -> LogLine | FailedAttempt | None:
    """Read a line with LOG_FIELDS or ATTEMPT_FIELDS; None when it is neither (Envoy was cut off)."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
        return None
    flags = frozenset(flag for flag in str(fields.get("flags") or "").split(",") if flag not in ("", "-"))
    error = str(fields.get("error") or "")
    if "attempt" in fields:
        return FailedAttempt(fields["id"], str(fields["attempt"] or ""), flags, error)
    ttft = fields.get("ttft_us")
    return LogLine(
        id=fields["id"],
        started=_number(fields.get("start")),
        code=int(_number(fields.get("code"))),
        flags=flags,
        ttft=None if ttft is None else _number(ttft) / 1e6,
        # A client that left within its request has sent no last byte.
        duration=_number(fields.get("e2e_us") or fields.get("duration_us")) / 1e6,
        attempts=int(_number(fields.get("attempts"))),
        upstream=str(fields.get("upstream") or ""),
        streamed=str(fields.get("content_type") or "").startswith("text/event-stream"),
        fields=fields,
        tokens=_tokens(fields, TOKEN_FIELDS),
        prompt_tokens=_tokens(fields, PROMPT_FIELDS),
        body_bytes=int(_number(fields.get("bytes_sent"))),
        trace_id=_trace_id(fields),
        error=error,
    )


def record_attempt(attempt: FailedAttempt, ledger: Ledger, now: float) -> None:
    """Record a failed attempt: also the request that a pod had when its engine died, or for which its engine had no room.

    The death is known now. The request's own line comes at the end of the retry, and until then others would be sent to the
    dead engine.
    """
    ticket = ledger.ticket(attempt.id)  # as it was before: whether an earlier attempt had failed
    ledger.record_failed_attempt(attempt.id)
    pod = None if ticket is None else _pod_at(ticket, attempt.upstream)
    if ticket is None or pod is None:
        return
    if attempt.flags & CUT or attempt.error == ENGINE_DIED:
        _record_death(ticket, pod, ledger, now, retry=ticket.retried)
        ledger.outliers.record_failure(pod.uid, now)
        ledger.record_attempt(attempt.id, pod.uid, AttemptEnd.DIED)
    elif attempt.error == ENGINE_FULL:
        ledger.record_attempt(attempt.id, pod.uid, AttemptEnd.FULL)


def _record_death(ticket: Ticket, pod: Pod, ledger: Ledger, now: float, *, retry: bool) -> None:
    copy = None if ticket.copy is None else ticket.copy.uid
    ledger.deaths.record_death(ticket.content, pod.uid, now, now if retry else ticket.opened, copy)


def complete(line: LogLine, ledger: Ledger, now: float) -> Completion | None:
    """Close the request's ticket, record which pods failed, and return how it counts; None for a refused request.

    A request counts at the picked revision, whatever became of it: the draw was random, and its result was not. An
    attempt that failed counts at the revision of its pod. A pod whose engine was full has not failed.
    """
    attempts = ledger.take_attempts(line.id)
    ticket = ledger.close(line.id)
    if ticket is None:
        return None
    answered = _pod_at(ticket, line.upstream)
    end = _end(ticket, line, answered)
    full = {uid for uid, attempt in attempts.items() if attempt is AttemptEnd.FULL}
    left = end is not End.FAILED and _left(line)
    failed_pods = [pod for pod in _failed_pods(ticket, line, left) if pod.uid not in full]
    for pod in failed_pods:
        if pod.uid not in attempts:
            ledger.outliers.record_failure(pod.uid, now)
    if answered is not None and answered not in failed_pods and not left and line.code:
        if line.code >= 500:
            ledger.outliers.record_error(answered.uid, now)
        else:
            ledger.outliers.record_success(answered.uid, now)
            ledger.trials.record_answer(answered)
    ledger.retries.settle(ticket.service.key, max(line.attempts - 1, 0), answered=0 < line.code < 500)
    if line.error == ENGINE_DIED and answered is not None:
        _record_death(ticket, answered, ledger, now, retry=line.attempts > 1)
    elif 200 <= line.code < 300 and not line.flags and not ticket.stream_error:
        ledger.deaths.record_answer(ticket.content, now)
    outcome = _outcome(ticket, line, end, now)
    earlier = ticket.choices[: _attempts(ticket, line) - 1]
    outcome = replace(outcome, retried=tuple(pod.revision for pod in earlier if pod.uid not in full))
    prefilled = _record_prefill(ticket, line, ledger, now)
    computed = prefilled == REMOTE or ticket.prefill is None
    first = answered is not None and answered is ticket.choices[0] and line.attempts <= 1
    if outcome.ttft is not None and end is End.ANSWERED and first and computed:
        expected = ticket.expected if ticket.streams else None
        ledger.backlogs.record_first_token(ticket.computing, ticket.uncached_tokens, outcome.ttft, expected)
    if outcome.compared is not None and not outcome.booked and first:
        outcome = replace(outcome, pod=ledger.learn(ticket, outcome.compared))
    return Completion(
        namespace=ticket.service.namespace,
        service=ticket.service.name,
        revision=answered.revision if answered else ticket.revision,
        code=line.code,
        outcome=outcome,
        api_key=ticket.api_key,
        judged=tuple(judge(ticket.service, outcome)),
        prefilled=prefilled,
    )


def _record_prefill(ticket: Ticket, line: LogLine, ledger: Ledger, now: float) -> str:
    """Record what a decode pod says of the prefill pod that it was given. Return it; "" where none was asked."""
    outcome = str(line.fields.get("prefilled") or "")
    pod = ticket.prefill
    if pod is None or _pod_at(ticket, line.upstream) not in [
        one for one in ticket.choices if one.revision == pod.revision
    ]:
        return outcome
    if outcome == REMOTE:
        ledger.outliers.record_success(pod.uid, now)
    elif outcome == FAILED:
        ledger.outliers.record_error(pod.uid, now)
    elif outcome in PREFILL_FAILURES:
        ledger.outliers.record_failure(pod.uid, now)
    return outcome


def lost(ticket: Ticket, now: float) -> Outcome:
    """Return the outcome of a request whose line has not come."""
    return Outcome(
        ticket.group,
        End.LOST,
        now - ticket.opened,
        waiting=ticket.waiting,
        streams=ticket.streams,
        forced=ticket.forced,
        expected=ticket.expected,
        load=ticket.load,
    )


def _outcome(ticket: Ticket, line: LogLine, end: End, now: float) -> Outcome:
    """Return how a request counts. Its first token counts here only if no message reported it before."""
    ttft = ticket.first_token
    if ttft is None and line.streamed and line.ttft is not None and end in (End.ANSWERED, End.LEFT):
        ttft = max(0.0, line.ttft - ticket.held_seconds)
    return Outcome(
        group=ticket.group,
        end=end,
        age=now - ticket.opened,
        e2e=max(0.0, line.duration - ticket.held_seconds) if line.whole else None,
        ttft=ttft,
        booked=ticket.first_token is not None,
        waiting=ticket.waiting and ttft is None,
        streams=ticket.streams,
        tokens=line.tokens,
        timed_out=_timed_out(line),
        forced=ticket.forced,
        fallback=ticket.fallback,
        expected=ticket.expected,
        load=ticket.load,
        held=ticket.held_seconds,
        priority=ticket.priority,
    )


def _end(ticket: Ticket, line: LogLine, answered: Pod | None) -> End:
    """Return how a request ended. An engine that has already failed the request is not excused by a client that leaves."""
    if line.code >= 500 or ticket.stream_error or (line.error and not 400 <= line.code < 500):
        return End.FAILED
    elsewhere = answered is not None and answered.revision != ticket.revision
    if _left(line):
        return End.ELSEWHERE if elsewhere and line.code else End.LEFT
    if line.flags:
        return End.FAILED
    if elsewhere:
        return End.ELSEWHERE
    return End.REFUSED if 400 <= line.code < 500 else End.ANSWERED


def _left(line: LogLine) -> bool:
    return bool(line.flags & CANCELLED) or _unread(line)


def _unread(line: LogLine) -> bool:
    """Whether a time limit ended an answer that its client did not read: no engine can send on then."""
    return line.fields.get("reading") == "behind" and bool(line.flags & TIMED_OUT)


def _timed_out(line: LogLine) -> bool:
    if _unread(line):
        return False
    return bool(line.flags & TIMED_OUT) or line.code == 504 or _silent(line)


def _silent(line: LogLine) -> bool:
    """Whether an attempt's own limit ended it. A limit of the whole request is not the pod's failure."""
    return str(line.fields.get("details") or "").startswith("upstream_per_try")


def _attempts(ticket: Ticket, line: LogLine) -> int:
    return max(1, min(line.attempts, len(ticket.choices)))


def rendered(line: LogLine, completion: Completion | None, refusal: Refusal | None = None) -> bytes:
    """Return the line of the gateway's own log: Envoy's fields and the picker's decision, or its refusal's code."""
    document: dict[str, object] = {"request_id": line.id, "trace_id": line.trace_id}
    document |= {
        name: value
        for name, value in line.fields.items()
        if name not in (*TOKEN_FIELDS, *PROMPT_FIELDS, *document, "id") and (name != "prefilled" or value)
    }
    document["output_tokens"] = line.tokens
    if completion is not None:
        document |= {"namespace": completion.namespace, "service": completion.service, "revision": completion.revision}
        group = completion.outcome.group
        document |= {"stratum": group.stratum, "picked": group.revision, "end": completion.outcome.end.value}
        if completion.api_key:
            document["key"] = completion.api_key
    elif refusal is not None:
        document["refused"] = refusal.code
        if refusal.service is not None:
            document |= {"namespace": refusal.service[0], "service": refusal.service[1]}
        if refusal.api_key:
            document["key"] = refusal.api_key
    document["streamed"] = line.streamed
    return msgspec.json.encode(document) + b"\n"


def _tokens(fields: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    """Return the tokens that our engine reports, else those of OpenAI's `usage`."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
    return None


def _trace_id(fields: Mapping[str, object]) -> str | None:
    """Return the trace of Envoy's own span where it makes any, else that of the request's `traceparent`."""
    own, parent = fields.get("trace_id"), fields.get("traceparent")
    if isinstance(own, str) and own not in ("", "-"):
        return own
    return trace_id(parent) if isinstance(parent, str) else None


def _pod_at(ticket: Ticket, address: str) -> Pod | None:
    """Return the pod among a request's choices that has the address."""
    return next((pod for pod in ticket.choices if pod.address == address), None)


def _failed_pods(ticket: Ticket, line: LogLine, cancelled: bool) -> list[Pod]:
    """Return the pods of the attempts before the last; with the last one's if it was not reached, not ready or too slow."""
    tried = _attempts(ticket, line)
    last_failed = not cancelled and (bool(line.flags & UNREACHED) or line.code == 503 or _silent(line))
    return list(ticket.choices[: tried if last_failed else tried - 1])


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else 0.0
    except ValueError:
        return 0.0
