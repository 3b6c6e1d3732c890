"""The requests in flight: one ticket each, from its pick to its access-log line. Also the failures of pods and services.

Counts, and never chooses. Times are seconds of any steady clock that the caller passes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import Pod, Service
from pagefleet_gateway.picking.backlog import Backlogs, RevisionKey
from pagefleet_gateway.picking.deaths import Content, Deaths
from pagefleet_gateway.picking.outliers import Outliers
from pagefleet_gateway.picking.retry_budget import RetryBudgets


@dataclass(frozen=True)
class Ticket:
    """A request in flight. `choices` are Envoy's ordered pods: attempt n goes to choices[n - 1]."""

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

    def __len__(self) -> int:
        return len(self._tickets)

    def open(self, request_id: str, ticket: Ticket) -> None:
        self.close(request_id)
        self._tickets[request_id] = ticket
        self._requests[ticket.choices[0].uid] += 1
        self._tokens[ticket.choices[0].uid] += ticket.tokens

    def close(self, request_id: str) -> Ticket | None:
        """End a request. Return None when it had no ticket (refused, or ended before)."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            uid = ticket.choices[0].uid
            if self._requests[uid] > 1:
                self._requests[uid] -= 1
                self._tokens[uid] -= ticket.tokens
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

    def sweep(self, pods: Iterable[Pod], now: float) -> None:
        """Forget pods that are not among `pods`, and requests whose log line can no longer come."""
        for request_id in [key for key, ticket in self._tickets.items() if ticket.deadline < now]:
            self.close(request_id)
        self._full = {key: uids for key, uids in self._full.items() if key in self._tickets}
        alive = tuple(pods)
        uids = {pod.uid for pod in alive}
        self.backlogs.retain(alive)
        for uid in [uid for uid in self._requests if uid not in uids]:
            del self._requests[uid], self._tokens[uid]
        self.outliers.retain(uids)
        self.deaths.sweep(now)
