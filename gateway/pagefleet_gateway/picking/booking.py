"""The ticket of a request that has its pods: the work that it is for them, and the load that it meets. The time is an argument."""

from __future__ import annotations

from pagefleet_contract.strata import stratum
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.envoy.timeouts import REQUEST_SECONDS
from pagefleet_gateway.picking.deaths import Content
from pagefleet_gateway.picking.expected import LoadsAtPick
from pagefleet_gateway.picking.ledger import Ticket
from pagefleet_gateway.picking.pick import Admitted, Pick
from pagefleet_gateway.picking.prefill.sending import send_prompt
from pagefleet_gateway.picking.prompts.backlog import Backlogs
from pagefleet_gateway.picking.prompts.prefixes import Prefixes

LOG_LINE_SECONDS = 60  # after a request's time limit, for its log line to arrive


class Booking:
    """Writes tickets. What a ticket's prompt does to pods is in `prefixes` and `backlogs` from then on."""

    def __init__(self, loads: LoadsAtPick, prefixes: Prefixes, backlogs: Backlogs) -> None:
        self._loads, self._prefixes, self._backlogs = loads, prefixes, backlogs

    def ticket(self, admitted: Admitted, service: Service, pick: Pick, known: Content | None, now: float) -> Ticket:
        """Record the prompt with its first choice, and with the pod of its copy. Return the request's ticket."""
        cost, first = admitted.cost, pick.choices[0]
        prefill = pick.prefill_of(first)
        # Other requests have no time that could be compared.
        compared = not (pick.forced or pick.fallback)
        ahead = self._loads.ahead(service, prefill or first, now, streams=cost.streams) if compared else None
        output = min(cost.output_tokens, pick.peak_output_tokens or cost.output_tokens)
        uncached = send_prompt(self._prefixes, self._backlogs, first, prefill, cost, now)
        copied = 0
        if pick.mirror is not None:
            second = pick.prefill_of(pick.mirror)
            copied = send_prompt(self._prefixes, self._backlogs, pick.mirror, second, cost, now)
            copied = 0 if second else copied
        return Ticket(
            service=service,
            revision=pick.revision,
            stratum=stratum(uncached),
            choices=pick.choices,
            deadline=now + (pick.timeout_seconds or REQUEST_SECONDS) + LOG_LINE_SECONDS,
            tokens=output if prefill else uncached + output,
            prefill=prefill,
            held_seconds=now - admitted.arrived,
            api_key=admitted.api_key,
            uncached_tokens=uncached,
            content=known,
            opened=now,
            streams=cost.streams,
            forced=pick.forced,
            fallback=bool(pick.fallback),
            copy=pick.mirror,
            copy_tokens=copied + output,
            priority=service.priority(admitted.request.headers),
            at_pick=None if ahead is None else self._loads.at_pick(service, first, ahead, cost, uncached),
        )
