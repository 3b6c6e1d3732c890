"""One measuring slice: the counters of a group of requests in two seconds, and their form in `/windows`. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from pagefleet_contract.sketch import bucket_of
from pagefleet_gateway.measuring.adjusted import histogram
from pagefleet_gateway.picking.ledger import Group, Ticket


class End(Enum):
    """How a request ended."""

    ANSWERED = "answered"
    FAILED = "failed"  # 5xx, a reset, a truncated stream, or an error of the engine within the stream
    REFUSED = "refused"  # 4xx
    LEFT = "left"  # the client went away
    ELSEWHERE = "elsewhere"  # another revision answered after the picked one had failed
    LOST = "lost"  # no log line came


@dataclass(frozen=True)
class Outcome:
    """A request that ended. Times in seconds; `age` is the time since its pick.

    `ttft` is None for a request without a first token, `e2e` where its answer's end was not seen; `booked` says that it was counted when the token passed.
    `waiting`: the end came before the first token of a stream. `streams`: the client asked for a stream. `expected` and `load` as of its ticket. `pod` is the sampled
    pod of the reference revision that alone had the request, "" for none.
    """

    group: Group
    end: End
    age: float
    e2e: float | None = 0.0
    ttft: float | None = None
    booked: bool = False
    waiting: bool = False
    streams: bool = False
    tokens: int | None = None  # output tokens; None: the engine did not report them
    timed_out: bool = False
    forced: bool = False
    fallback: bool = False
    expected: float | None = None
    load: str = ""
    pod: str = ""
    held: float = 0.0  # seconds in the gateway's queue, which are in no other time here
    priority: int = 0  # as of its ticket
    retried: tuple[str, ...] = ()  # the revision of each attempt that failed before another attempt

    @property
    def failed(self) -> bool:
        return self.end is End.FAILED

    @property
    def compared(self) -> float | None:
        """The seconds that are divided by the expected ones: to a stream's first token, or to the end of a whole answer."""
        if self.streams:
            return self.ttft
        return self.e2e if self.end is End.ANSWERED else None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None when it did not stream or its tokens are not known."""
        if self.ttft is None or self.e2e is None or self.tokens is None or self.tokens < 2:
            return None
        return max(self.e2e - self.ttft, 0.0) / (self.tokens - 1)


# Counters that are written only where they are not 0, and the name of each in the document.
COUNTS = {
    "retried": "retried",
    "client_errors": "clientErrors",
    "timeouts": "timeouts",
    "fallbacks": "fallbacks",
    "fell_back": "fellBack",
    "forced": "forced",
    "forced_errors": "forcedErrors",
}
AGES = {
    "waiting": "waiting",
    "running": "running",
    "left_waiting": "leftWaiting",
    "left_running": "leftRunning",
    "unmeasured_waiting": "unmeasuredWaiting",
    "unmeasured_running": "unmeasuredRunning",
}


@dataclass(slots=True)
class SliceCounts:
    """The counters of a group in a slice. `waiting` and `running` are the requests in flight at its end, by age."""

    started: int = 0
    requests: int = 0
    errors: int = 0
    retried: int = 0
    client_errors: int = 0
    timeouts: int = 0
    fallbacks: int = 0  # requests of another service that this one answered
    fell_back: int = 0  # requests of this revision that another service answered
    forced: int = 0
    forced_errors: int = 0
    tokens: int = 0
    with_tokens: int = 0  # requests whose output tokens are known
    ttft: Counter[int] = field(default_factory=Counter)
    e2e: Counter[int] = field(default_factory=Counter)
    tpot: Counter[int] = field(default_factory=Counter)
    waiting: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)
    left_waiting: Counter[int] = field(default_factory=Counter)
    left_running: Counter[int] = field(default_factory=Counter)
    unmeasured_waiting: Counter[int] = field(default_factory=Counter)
    unmeasured_running: Counter[int] = field(default_factory=Counter)

    def add_end(self, outcome: Outcome) -> None:
        """Count a request that ended."""
        if outcome.forced:
            self.forced += 1
            self.forced_errors += outcome.failed
            return
        self.fallbacks += outcome.fallback
        self.timeouts += outcome.timed_out
        if outcome.tokens is not None and outcome.end in (End.ANSWERED, End.FAILED):
            self.tokens += outcome.tokens
            self.with_tokens += 1
        if outcome.ttft is not None and not outcome.booked:
            self.ttft[_bucket(outcome.ttft)] += 1
        match outcome.end:
            case End.ANSWERED:
                self.requests += 1
                if outcome.e2e is not None:
                    self.e2e[_bucket(outcome.e2e)] += 1
                if outcome.tpot is not None:
                    self.tpot[_bucket(outcome.tpot)] += 1
                if outcome.waiting:  # a stream was requested, and the answer was none
                    self.unmeasured_waiting[_bucket(outcome.age)] += 1
            case End.LEFT:
                (self.left_waiting if outcome.waiting else self.left_running)[_bucket(outcome.age)] += 1
            case _:
                self.requests += outcome.failed
                self.errors += outcome.failed
                self.client_errors += outcome.end is End.REFUSED
                ages = self.unmeasured_waiting if outcome.waiting else self.unmeasured_running
                ages[_bucket(outcome.age)] += 1

    def add_failed_attempt(self) -> None:
        """Count an attempt that failed and was tried again: an error, although the client may have got its answer."""
        self.requests += 1
        self.errors += 1
        self.retried += 1

    def add_first_token(self, ttft: float) -> None:
        self.ttft[_bucket(ttft)] += 1

    def add_in_flight(self, ticket: Ticket, now: float) -> None:
        """Add a request in flight to the snapshot at the slice's end."""
        (self.waiting if ticket.waiting else self.running)[_bucket(now - ticket.opened)] += 1

    def document(self, start: int, revision: str, stratum: str) -> dict[str, object]:
        document: dict[str, object] = {
            "start": start,
            "revision": revision,
            "stratum": stratum,
            "started": self.started,
            "requests": self.requests,
            "errors": self.errors,
            "ttft": histogram(self.ttft),
            "e2e": histogram(self.e2e),
        }
        # Without a request whose tokens are known, these values are unknown and not 0.
        document |= {"tpot": histogram(self.tpot), "tokens": self.tokens} if self.with_tokens else {}
        document |= {name: count for field, name in COUNTS.items() if (count := getattr(self, field))}
        return document | {name: histogram(ages) for field, name in AGES.items() if (ages := getattr(self, field))}


def _bucket(seconds: float) -> int:
    return bucket_of(max(seconds, 0.0))
