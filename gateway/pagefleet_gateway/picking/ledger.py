"""The requests in flight: one ticket each, from its pick to its access-log line. Also the failures of pods and services.

Counts, and never chooses. Times are seconds of any steady clock that the caller passes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pagefleet_gateway.cluster.state import Pod, Service
from pagefleet_gateway.picking.backlog import Backlogs, RevisionKey
from pagefleet_gateway.picking.deaths import Content, Deaths
from pagefleet_gateway.picking.outliers import Outliers
from pagefleet_gateway.picking.retry_budget import RetryBudgets


@dataclass(frozen=True, order=True)
class Group:
    """Requests that are measured together."""

    namespace: str
    service: str
    revision: str
    stratum: str


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
    uncached_tokens: int = 0  # tokens of its prompt that its first choice had probably not cached
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

    @property
    def group(self) -> Group:
        return Group(self.service.namespace, self.service.name, self.revision, self.stratum)

    @property
    def waiting(self) -> bool:
        """Whether the request waits for the first token of a stream."""
        return self.streams and self.first_token is None


class Ledger:
    def __init__(self) -> None:
        self.outliers = Outliers()
        self.backlogs = Backlogs()
        self.deaths = Deaths()
        self.retries = RetryBudgets()
        self._tickets: dict[str, Ticket] = {}
        self._requests: Counter[str] = Counter()  # in flight, by the first choice's uid
        self._full: dict[str, set[str]] = {}  # by request, the pods that had no room for it
        self._tokens: Counter[str] = Counter()  # in flight, by the first choice's uid
        self._opened: Counter[Group] = Counter()  # since `take_opened`, without those that a header has forced

    def __len__(self) -> int:
        return len(self._tickets)

    def open(self, request_id: str, ticket: Ticket) -> None:
        self.close(request_id)
        self._tickets[request_id] = ticket
        if not ticket.forced:
            self._opened[ticket.group] += 1
        for uid, tokens in _work(ticket):
            self._requests[uid] += 1
            self._tokens[uid] += tokens

    def close(self, request_id: str) -> Ticket | None:
        """End a request. Return None when it had no ticket (refused, or ended before)."""
        ticket = self._tickets.pop(request_id, None)
        for uid, tokens in () if ticket is None else _work(ticket):
            if self._requests[uid] > 1:
                self._requests[uid] -= 1
                self._tokens[uid] -= tokens
            else:
                del self._requests[uid], self._tokens[uid]
        return ticket

    def record_full(self, request_id: str, uid: str) -> None:
        """Count that a pod's engine had no room for the request. The pod is sound."""
        self._full.setdefault(request_id, set()).add(uid)

    def take_full(self, request_id: str) -> frozenset[str]:
        """Return the pods that had no room for the request, by uid, and forget them."""
        return frozenset(self._full.pop(request_id, ()))

    def ticket(self, request_id: str) -> Ticket | None:
        return self._tickets.get(request_id)

    def tickets(self) -> Iterator[Ticket]:
        """Return the requests in flight."""
        return iter(self._tickets.values())

    def take_opened(self) -> Counter[Group]:
        """Return how many requests were sent to a pod since the last call, by group."""
        opened, self._opened = self._opened, Counter()
        return opened

    def record_first_token(self, request_id: str, seconds: float) -> Ticket | None:
        """Record the seconds from a request's last byte to the first token of its stream.

        Return the ticket with this time, less the time in the gateway's queue. Return None for a request without a ticket,
        for one that asked for no stream, and for every time but the first.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None or not ticket.waiting:
            return None
        ticket = replace(ticket, first_token=max(0.0, seconds - ticket.held_seconds))
        self._tickets[request_id] = ticket
        return ticket

    def record_stream_error(self, request_id: str) -> None:
        """Record that the engine gave up a request's answer within its stream."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            self._tickets[request_id] = replace(ticket, stream_error=True)

    def in_flight(self, pod: Pod) -> int:
        """Return the number of requests in flight on a pod."""
        return self._requests[pod.uid]

    def tokens(self, pod: Pod) -> int:
        """Return the tokens in flight on a pod, as estimated when its requests were picked."""
        return self._tokens[pod.uid]

    def by_revision(self) -> Counter[RevisionKey]:
        """Count the requests in flight by (namespace, service, revision)."""
        return Counter(
            (ticket.service.namespace, ticket.service.name, ticket.revision) for ticket in self._tickets.values()
        )

    def ejected(self, pod: Pod, now: float) -> bool:
        return self.outliers.ejected(pod.uid, self._requests[pod.uid], now)

    def sweep(self, pods: Iterable[Pod], now: float) -> list[Ticket]:
        """Forget pods that are not among `pods`, and requests whose log line can no longer come. Return these."""
        expired = [key for key, ticket in self._tickets.items() if ticket.deadline < now]
        lost = [ticket for ticket in map(self.close, expired) if ticket is not None]
        self._full = {key: uids for key, uids in self._full.items() if key in self._tickets}
        alive = tuple(pods)
        uids = {pod.uid for pod in alive}
        self.backlogs.retain(alive)
        for uid in [uid for uid in self._requests if uid not in uids]:
            del self._requests[uid], self._tokens[uid]
        self.outliers.retain(uids)
        self.deaths.sweep(now)
        return lost


def _work(ticket: Ticket) -> Iterator[tuple[str, int]]:
    """Yield the pods that a request occupies, by uid, and its tokens there: its first choice, and the copy's pod."""
    yield ticket.choices[0].uid, ticket.tokens
    if ticket.copy is not None:
        yield ticket.copy.uid, ticket.copy_tokens
