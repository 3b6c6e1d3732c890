"""What is in flight: one ticket per request from its pick to its access-log line; pods and services that failed lately.

Counts, and never chooses. Times are seconds of any steady clock that the caller passes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_gateway.cluster.state import Pod, Service
from pagefleet_gateway.picking.backlog import Backlogs
from pagefleet_gateway.picking.deaths import Content, Deaths
from pagefleet_gateway.picking.outliers import Outliers
from pagefleet_gateway.picking.retry_budget import RetryBudgets


@dataclass(frozen=True)
class Ticket:
    """A request that was sent on. `choices` are Envoy's ordered pods: attempt n met choices[n - 1]."""

    service: Service
    revision: str
    stratum: str
    choices: tuple[Pod, ...]
    deadline: float  # after it the request is over even if no log line came
    tokens: int = 0  # work it is about to cause: prompt not cached, and output
    held: float = 0.0  # seconds it waited for a pod in the gateway: no revision's doing
    key: str = ""  # name of the API key that asked
    fresh: int = 0  # tokens of its prompt that its first choice had probably not cached
    content: Content | None = None  # what it is known by where engines end


class Ledger:
    def __init__(self) -> None:
        self.outliers = Outliers()
        self.backlogs = Backlogs()
        self.deaths = Deaths()
        self.retries = RetryBudgets()
        self._tickets: dict[str, Ticket] = {}
        self._in_flight: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tickets)

    def open(self, request_id: str, ticket: Ticket) -> None:
        self.close(request_id)
        self._tickets[request_id] = ticket
        self._in_flight[ticket.choices[0].uid] += 1
        self._tokens[ticket.choices[0].uid] += ticket.tokens

    def close(self, request_id: str) -> Ticket | None:
        """End a request; None when it had no ticket (refused, or ended before)."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            uid = ticket.choices[0].uid
            if self._in_flight[uid] > 1:
                self._in_flight[uid] -= 1
                self._tokens[uid] -= ticket.tokens
            else:
                del self._in_flight[uid], self._tokens[uid]
        return ticket

    def ticket(self, request_id: str) -> Ticket | None:
        return self._tickets.get(request_id)

    def in_flight(self, pod: Pod) -> int:
        return self._in_flight[pod.uid]

    def tokens(self, pod: Pod) -> int:
        """Tokens in flight on a pod, as estimated when its requests were picked."""
        return self._tokens[pod.uid]

    def by_revision(self) -> Counter[tuple[str, str, str]]:
        """Requests in flight by (namespace, service, revision)."""
        return Counter(
            (ticket.service.namespace, ticket.service.name, ticket.revision) for ticket in self._tickets.values()
        )

    def ejected(self, pod: Pod, now: float) -> bool:
        return self.outliers.ejected(pod.uid, self._in_flight[pod.uid], now)

    def sweep(self, alive: Iterable[Pod], now: float) -> None:
        """Forget pods that are gone and requests whose log line can no longer come."""
        for request_id in [key for key, ticket in self._tickets.items() if ticket.deadline < now]:
            self.close(request_id)
        pods = tuple(alive)
        uids = {pod.uid for pod in pods}
        self.backlogs.keep(pods)
        for uid in [uid for uid in self._in_flight if uid not in uids]:
            del self._in_flight[uid], self._tokens[uid]
        self.outliers.keep(uids)
        self.deaths.sweep(now)
