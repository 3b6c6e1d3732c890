"""The requests in flight: one ticket each, from its pick to its access-log line. Also the failures of pods and services.

Counts, and never chooses. Times are seconds of any steady clock that the caller passes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from pagefleet_gateway.cluster.in_flight import IDLE, OtherGateways, OwnCounts, PodCounts
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import KnownPods, Pod, RevisionKey
from pagefleet_gateway.cluster.steps import Steps, forget, parts
from pagefleet_gateway.picking.deaths import Content, Deaths
from pagefleet_gateway.picking.expected import ExpectedTimes, Load, LoadAtPick
from pagefleet_gateway.picking.outliers import Outliers
from pagefleet_gateway.picking.prompts.backlog import Backlogs
from pagefleet_gateway.picking.retry_budget import RetryBudgets
from pagefleet_gateway.picking.split import Trials


@dataclass(frozen=True, order=True)
class Group:
    """Requests that are measured together."""

    namespace: str
    service: str
    revision: str
    stratum: str


class AttemptEnd(Enum):
    """How an attempt ended that another may follow."""

    FULL = "full"  # the pod's engine had no room for it; the pod is sound
    DIED = "died"  # the pod's engine died while it had it


@dataclass(frozen=True)
class Ticket:
    """A request in flight. `choices` are Envoy's ordered pods: attempt n goes to choices[n - 1].

    `opened` is the steady time of the pick. `first_token` is the time to the first token in seconds, None before it.
    A request that a header has sent to the canary is `forced`. A `fallback` answers in another service's place.
    """

    service: Service
    revision: str
    stratum: str
    choices: tuple[Pod, ...]
    deadline: float  # after it the request is over even if no log line came
    tokens: int = 0  # the work that it causes: prompt not cached, and output
    held_seconds: float = 0.0  # time in the gateway's queue, which is no revision's latency
    api_key: str = ""  # the name of the client's API key
    uncached_tokens: int = 0  # tokens of its prompt that the pod that computes it had probably not cached
    prefill: Pod | None = None  # the pod that computes its prompt for its first choice; None: that computes it itself
    content: Content | None = None  # its service and its body's hash
    opened: float = 0.0
    streams: bool = False  # the client asked for a stream
    first_token: float | None = None
    stream_error: bool = False  # its stream held an error of the engine
    forced: bool = False
    fallback: bool = False
    # The pod that got a mirrored copy. Nobody reports a copy's end, so it counts as long as the request itself. After that
    # the next reading of the pod's metrics shows it among the requests of others.
    copy: Pod | None = None
    copy_tokens: int = 0  # the work that the copy causes
    # None for a request whose time is not compared: one that is forced by a header, or in another service's place.
    at_pick: LoadAtPick | None = None
    retried: bool = False  # an attempt has failed
    priority: int = 0  # its class, as `Service.priority` counts them

    def with_first_token(self, seconds: float) -> Ticket:
        """Return the ticket with its time to first token. `replace` takes eight times as long, for each streamed request."""
        ticket = object.__new__(Ticket)
        ticket.__dict__.update(self.__dict__, first_token=seconds)
        return ticket

    @cached_property
    def group(self) -> Group:
        return Group(self.service.namespace, self.service.name, self.revision, self.stratum)

    @property
    def waiting(self) -> bool:
        """Whether the request waits for the first token of a stream."""
        return self.streams and self.first_token is None

    @property
    def copy_uncached(self) -> int:
        """Return the uncached prompt tokens of the copy: its answer is as long as the request's."""
        output = self.tokens - (0 if self.prefill else self.uncached_tokens)
        return max(0, self.copy_tokens - output)

    @property
    def computing(self) -> Pod:
        """Return the pod that computes its prompt."""
        return self.prefill or self.choices[0]

    @property
    def expected(self) -> float | None:
        """Return the seconds that the gateway expected at the pick: to a stream's first token, or to the end of a whole answer.

        None: not known.
        """
        return None if self.at_pick is None else self.at_pick.expected

    @property
    def load(self) -> str:
        """Return the load stratum, "" for a request whose time is not compared."""
        return "" if self.at_pick is None else self.at_pick.stratum


NO_LOAD = Load(0.0, 0.0)


class Ledger:
    def __init__(self) -> None:
        self.outliers = Outliers()
        self.backlogs = Backlogs()
        self.expected_times = ExpectedTimes()  # to the first token, of streams
        self.expected_answers = ExpectedTimes()  # to the end of whole answers
        self.deaths = Deaths()
        self.retries = RetryBudgets()
        self.trials = Trials()
        self.others = OtherGateways()
        self._tickets: dict[str, Ticket] = {}
        self._own = OwnCounts()
        self._attempts: dict[str, dict[str, AttemptEnd]] = {}  # by request and the pod's uid
        self._opened: Counter[Group] = Counter()  # since `take_opened`, without those that a header has forced
        self._fell_back: Counter[Group] = Counter()  # since `take_fell_back`

    def __len__(self) -> int:
        return len(self._tickets)

    def open(self, request_id: str, ticket: Ticket, instead_of: Group | None = None) -> None:
        """Begin a request. `instead_of` are the requests that it would be among if it had not fallen back."""
        self.close(request_id)
        self._tickets[request_id] = ticket
        if instead_of is not None:
            self._fell_back[instead_of] += 1
        if not ticket.forced:
            self._opened[ticket.group] += 1
        counts = self._own.changing(ticket.choices[0].uid)
        counts.requests += 1
        counts.tokens += ticket.tokens
        if ticket.prefill is not None:
            counts = self._own.changing(ticket.prefill.uid)
            counts.requests += 1
            counts.tokens += ticket.uncached_tokens
        if ticket.streams:
            counts.waiting += 1
            counts.waiting_tokens += ticket.uncached_tokens
        else:
            counts.unstreamed_tokens += ticket.uncached_tokens
        if ticket.copy is not None:
            counts = self._own.changing(ticket.copy.uid)
            counts.requests += 1
            counts.tokens += ticket.copy_tokens
            counts.unstreamed_tokens += ticket.copy_uncached

    def close(self, request_id: str) -> Ticket | None:
        """End a request. Return None when it had no ticket (refused, or ended before)."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return None
        if ticket.waiting:
            self._end_waiting(ticket)
        unstreamed = 0 if ticket.streams else ticket.uncached_tokens
        self._own.end(ticket.choices[0].uid, ticket.tokens, 0 if ticket.prefill else unstreamed)
        if ticket.prefill is not None and not ticket.streams:
            self._own.end(ticket.prefill.uid, ticket.uncached_tokens, unstreamed)
        if ticket.copy is not None:
            self._own.end(ticket.copy.uid, ticket.copy_tokens, ticket.copy_uncached)
        return ticket

    def _end_waiting(self, ticket: Ticket) -> None:
        """End the wait for the first token, and with it the work of a prefill pod."""
        uid = ticket.computing.uid
        if uid in self._own.pods:
            counts = self._own.changing(uid)
            counts.waiting -= 1
            counts.waiting_tokens -= ticket.uncached_tokens
        if ticket.prefill is not None:
            self._own.end(uid, ticket.uncached_tokens, 0)

    def record_attempt(self, request_id: str, uid: str, end: AttemptEnd) -> None:
        """Record how a pod ended an attempt of the request."""
        self._attempts.setdefault(request_id, {})[uid] = end

    def take_attempts(self, request_id: str) -> Mapping[str, AttemptEnd]:
        """Return how pods ended attempts of the request, by uid, and forget it."""
        return self._attempts.pop(request_id, {})

    def ticket(self, request_id: str) -> Ticket | None:
        return self._tickets.get(request_id)

    def tickets(self) -> Iterator[Ticket]:
        """Return the requests in flight."""
        return iter(self._tickets.values())

    def take_opened(self) -> Counter[Group]:
        """Return how many requests were sent to a pod since the last call, by group."""
        opened, self._opened = self._opened, Counter()
        return opened

    def take_fell_back(self) -> Counter[Group]:
        """Return how many requests another service has to answer since the last call, by the group that they are missing in."""
        fell_back, self._fell_back = self._fell_back, Counter()
        return fell_back

    def record_first_token(self, request_id: str, seconds: float) -> Ticket | None:
        """Record the seconds from a request's last byte to the first token of its stream.

        Return the ticket with this time, less the time in the gateway's queue. Return None for a request without a ticket,
        for one that asked for no stream, and for every time but the first.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None or not ticket.waiting:
            return None
        self._end_waiting(ticket)
        ticket = ticket.with_first_token(max(0.0, seconds - ticket.held_seconds))
        self._tickets[request_id] = ticket
        return ticket

    def learn(self, ticket: Ticket, seconds: float) -> str:
        """Learn from the time of a request's first choice: to a stream's first token, or to the end of a whole answer.

        Return that pod's name if it is sampled, else "".

        After a retry the time belongs to several pods, so it teaches nothing and is counted for none of them.
        """
        at_pick = ticket.at_pick
        if at_pick is None or not at_pick.reference or ticket.retried:
            return ""
        times = self.expected_times if ticket.streams else self.expected_answers
        times.learn(ticket.service.key, at_pick.load, seconds)
        return ticket.choices[0].name if at_pick.sampled else ""

    def record_stream_error(self, request_id: str) -> None:
        """Record that the engine gave up a request's answer within its stream."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            self._tickets[request_id] = replace(ticket, stream_error=True)

    def record_failed_attempt(self, request_id: str) -> None:
        """Record that an attempt of a request has failed: its time to first token then belongs to several pods."""
        ticket = self._tickets.get(request_id)
        if ticket is not None and not ticket.retried:
            self._tickets[request_id] = replace(ticket, retried=True)

    def own_counts(self, pod: Pod) -> PodCounts:
        """Return this gateway's requests in flight on a pod, only to be read."""
        return self._own.pods.get(pod.uid, IDLE)

    def in_flight(self, pod: Pod) -> int:
        """Return the number of this gateway's requests in flight on a pod."""
        return self.own_counts(pod).requests

    def known_in_flight(self, pod: Pod) -> int:
        """Return the number of all gateways' requests in flight on a pod."""
        return self.in_flight(pod) + self.others.counts(pod.uid).requests

    def counts(self, pod: Pod) -> PodCounts:
        """Return all gateways' requests in flight on a pod, only to be read."""
        own, others = self.own_counts(pod), self.others.counts(pod.uid)
        if others is IDLE:
            return own
        total = PodCounts()
        total.add(own)
        total.add(others)
        return total

    def load_on(self, pod: Pod, now: float, *, streams: bool = True) -> Load:
        """Return the load of all gateways' requests on a pod, for a stream or for a whole answer.

        Streams without a first token count with their whole prompts. Of requests without a stream nobody reports when their
        prompts are computed. They count as running, and for a stream with what is probably not computed yet. That is known by
        the first tokens of streams, so for a whole answer they count with their whole prompts until they end.
        """
        counts = self.counts(pod)
        if counts is IDLE:
            return NO_LOAD
        tokens = float(max(0, counts.waiting_tokens))
        if not streams:
            tokens += max(0, counts.unstreamed_tokens)
        elif counts.unstreamed_tokens > 0:
            tokens += min(counts.unstreamed_tokens, max(0.0, self.backlogs.tokens(pod, now) - tokens))
        return Load(tokens, max(0, counts.requests - counts.waiting))

    def used(self) -> Collection[str]:
        """Return the uids of all pods that this gateway has sent requests to."""
        return {**self._own.pods, **self.backlogs.sent}.keys()

    def rows(self, uids: Iterable[str]) -> Mapping[str, list[int]]:
        """Return the rows of these pods, for another gateway, by uid."""
        return {uid: self._row(uid) for uid in uids}

    def take_changed(self) -> Mapping[str, list[int]]:
        """Return the rows that have changed since the last call, by uid."""
        return self.rows(self._own.take_changed())

    def _row(self, uid: str) -> list[int]:
        return self._own.pods.get(uid, IDLE).row(self.backlogs.sent.get(uid, 0.0))

    def hear(self, gateway: str, rows: object, now: float) -> None:
        """Take over what has changed at another gateway. Its new prompts count in the pods' backlogs from now on."""
        for uid, tokens in self.others.update(gateway, rows).items():
            self.backlogs.add_others_prompt(uid, tokens, now)

    def by_revision(self) -> Counter[RevisionKey]:
        """Count the requests in flight by (namespace, service, revision)."""
        return Counter(
            (ticket.service.namespace, ticket.service.name, ticket.revision) for ticket in self._tickets.values()
        )

    def ejected(self, pod: Pod, now: float) -> bool:
        # Nearly every pod is sound, and every pod that may be picked is asked for.
        return self.outliers.has_failed(pod.uid) and self.outliers.ejected(pod.uid, self.known_in_flight(pod), now)

    def expire(self, now: float) -> Iterator[list[Ticket]]:
        """Forget, in steps, requests whose log line can no longer come. Yield those of each step."""
        for part in parts(self._tickets):
            expired = [key for key in part if key in self._tickets and self._tickets[key].deadline < now]
            yield [ticket for ticket in map(self.close, expired) if ticket is not None]

    def sweep(self, pods: KnownPods, now: float) -> Steps:
        """Forget pods that are not among `pods`, and what is too old to matter."""
        yield from forget(self._attempts, self._tickets)
        yield from self.backlogs.retain(pods)
        yield from self.trials.retain(pods.revisions)
        yield from self._own.retain(pods.by_uid)
        yield from self.others.retain(pods.by_uid)
        yield from self.outliers.retain(pods.by_uid)
        yield from self.deaths.sweep(now)
