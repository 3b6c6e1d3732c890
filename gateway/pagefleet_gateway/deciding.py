"""Decides about a request once more where a rate limit refuses it: the other gateway pods are asked first for their part of the quota.

Holds the requests for which they are being asked. Never chooses a pod, and changes no limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.holding.holding import Decision, Holding, Later
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.sharing.quotas import TIMEOUT_SECONDS, Quotas


class Deciding:
    """Decides at once, or later by a future. Cancelling the future gives the request up."""

    def __init__(self, state: State, holding: Holding, quotas: Quotas, on_lost: Callable[[str], object]) -> None:
        """`on_lost` gets the id of a request that got its pods in the moment in which it was given up."""
        self._state, self._holding, self._quotas, self._on_lost = state, holding, quotas, on_lost
        self._asking: set[asyncio.Task[None]] = set()

    def decide(self, request: Request) -> Decision | asyncio.Future[Decision]:
        decision = self._holding.decide(request)
        if not isinstance(decision, Refusal) or not self._quotas.may_have(decision.bucket):
            return decision
        later = Later(TIMEOUT_SECONDS + self._hold_seconds(request, decision))
        asking = asyncio.create_task(self._decide_again(request, later))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        return later

    def _hold_seconds(self, request: Request, refusal: Refusal) -> float:
        """Return how long the request may wait for a pod, once its quota allows it."""
        service = self._state.snapshot.services.get(refusal.service or ("", ""))
        return 0.0 if service is None else service.hold_seconds_of(service.priority(request.headers))

    async def _decide_again(self, request: Request, later: Later) -> None:
        await self._quotas.exchange()
        if later.done():
            return
        try:
            decision = self._holding.decide(request)
        except Exception as error:  # the front answers for it, as for one at the first decision
            later.set_exception(error)
            return
        if isinstance(decision, asyncio.Future):
            decision.add_done_callback(partial(self._hand_on, request, later))
            later.add_done_callback(partial(_give_up, decision))
        else:
            later.set_result(decision)

    def _hand_on(self, request: Request, later: Later, decision: asyncio.Future[Decision]) -> None:
        if decision.cancelled():
            later.cancel()
        elif not later.done():
            later.set_result(decision.result())
        elif isinstance(decision.result(), Pick):
            self._on_lost(request.id)


def _give_up(decision: asyncio.Future[Decision], later: asyncio.Future[Decision]) -> None:
    if later.cancelled():
        decision.cancel()
