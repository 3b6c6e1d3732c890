"""Counts the events of requests, in an order that keeps the windows true.

The open slice is closed before an event changes the ledger. The slice that is over then ended with this request in
flight, and the next one has the event. Never influences a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.cluster.steps import Steps, parts
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.measuring.access_log import Completion, LogLine
from pagefleet_gateway.measuring.first_tokens import FirstToken, StreamError
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.measuring.objectives import Judged, judge, judge_refusal
from pagefleet_gateway.measuring.slices import End, Outcome
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Group, Ledger, Ticket
from pagefleet_gateway.picking.pick import Admitted

TICK_SECONDS = 0.5  # a slice is closed so late at most
STEP_LOST = 100  # requests without a log line that are counted in one step


class Counting:
    """Writes the ledger, the windows and the metrics; `clock` is steady."""

    def __init__(self, ledger: Ledger, windows: Windows, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._ledger, self._windows, self._metrics, self._clock = ledger, windows, metrics, clock

    def record_report(self, report: FirstToken | StreamError) -> None:
        """Count what Envoy's filters report."""
        match report:
            case FirstToken():
                self.record_first_token(report.request_id, report.seconds, report.upstream)
            case StreamError():
                self._ledger.record_stream_error(report.request_id)

    def record_first_token(self, request_id: str, seconds: float, upstream: str) -> None:
        """Count a time to first token at the moment at which the token passes: seconds since the request's last byte.

        `upstream` is the address of the pod that sent the token. One of another revision than the picked one is no time of either.
        """
        now = self._clock()
        self._windows.tick(now)
        picked = self._ledger.ticket(request_id)
        if picked is None or upstream not in _addresses(picked):
            return
        ticket = self._ledger.record_first_token(request_id, seconds)
        if ticket is not None and ticket.first_token is not None:
            self._ledger.trials.record_answer(next(pod for pod in ticket.choices if pod.address == upstream))
            first = ticket.choices[0].address == upstream
            pod = self._ledger.learn(ticket, ticket.first_token) if first else ""
            self._windows.record_first_token(ticket, now, pod)
            self._metrics.record_first_token(ticket)

    def complete(self, line: LogLine) -> Completion | None:
        """Count a request that is over; None for a refused one."""
        now = self._clock()
        self._windows.tick(now)
        completion = access_log.complete(line, self._ledger, now)
        if completion is not None:
            self._metrics.record_completion(completion)
            self._windows.record_end(completion.outcome, now)
            service = (completion.namespace, completion.service)
            self._record_objectives(service, completion.revision, completion.judged, now)
        return completion

    def record_refusal(self, service: Service, status: int, priority: int) -> None:
        """Count a request of a class that the gateway itself refused, and that was sent to no revision."""
        self._record_objectives(service.key, "", judge_refusal(service, status, priority), self._clock())

    def record_left(self, admitted: Admitted, seconds: float) -> None:
        """Count a request whose client left after so many seconds in the gateway's queue: it was sent to no revision."""
        service = admitted.service
        outcome = Outcome(
            Group(*service.key, "", ""),
            End.LEFT,
            0.0,
            e2e=None,
            waiting=admitted.cost.streams,
            held=seconds,
            priority=service.priority(admitted.request.headers),
        )
        self._record_objectives(service.key, "", judge(service, outcome), self._clock())

    def _record_objectives(self, service: ServiceKey, revision: str, judged: Iterable[Judged], now: float) -> None:
        for objective, missed in judged:
            self._metrics.record_objective((*service, revision), objective, missed)
            self._windows.record_objective(service, objective, missed, now)

    def drop(self, request_id: str) -> None:
        """End a request whose answer came from no picked pod: it counts nowhere but as dropped."""
        self._windows.tick(self._clock())
        self._ledger.close(request_id)
        self._metrics.outcomes_dropped.inc()

    def sweep(self, state: State) -> Steps:
        """Forget what is gone: pods, revisions, old slices, and requests whose log line can no longer come."""
        self._windows.tick(self._clock())
        for expired in self._ledger.expire(self._clock()):
            for tickets in parts(expired, STEP_LOST):
                now = self._clock()
                for ticket in tickets:
                    self._windows.record_end(access_log.lost(ticket, now), now)
                yield
            yield
        yield from self._ledger.sweep(state.known, self._clock())
        yield from self._windows.sweep(self._clock())
        yield from self._metrics.retain(state.services, state.known.revisions, self._clock())

    async def follow(self) -> None:
        """Close slices in time, also while nothing happens: requests in flight grow older."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._windows.tick(self._clock())
            for _ in self._windows.steps():
                await asyncio.sleep(0)


def _addresses(ticket: Ticket) -> set[str]:
    """Return the addresses of the picked revision's pods."""
    return {pod.address for pod in ticket.choices if pod.revision == ticket.revision}
