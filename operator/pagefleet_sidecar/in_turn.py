"""The two legs of a request one after the other, as vLLM has them: the prefill pod's answer holds the parameters by which the engine of
this pod fetches the KV pages. An engine without them computes the prompt itself, so no failure of a prefill pod fails a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from pagefleet_contract.disaggregation import AVOIDED, FAILED, LOCAL, REMOTE
from pagefleet_sidecar import legs
from pagefleet_sidecar.documents import document_of, may_name
from pagefleet_sidecar.proxy import unread
from pagefleet_sidecar.routing import Routing

log = logging.getLogger("pagefleet-sidecar")


class InTurn(Routing):
    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not request.raw_path.startswith("/"):
            return unread()
        body = await request.read()
        address = next(iter(self.named(request)), "")
        if not address and not may_name(body, legs.PARAMS):
            return await self.pass_on(request, body)
        document = document_of(body)
        if document is None:
            if may_name(body, legs.PARAMS) and not request.content_type.startswith("multipart/"):
                return unread()
            return await self.pass_on(request, body, LOCAL if address else "")
        outcome, params = "", None
        if address:
            outcome, params = await self._prefilled(request, document, address)
        if params is None and legs.PARAMS not in document:
            return await self.pass_on(request, body, outcome)
        # A client names no host from which the engine would fetch KV pages.
        return await self.pass_on(request, legs.decode_body(document, params), outcome)

    async def _prefilled(
        self, request: web.Request, document: dict[str, Any], address: str
    ) -> tuple[str, Mapping[str, Any] | None]:
        """Run the prefill leg. Return its outcome, and the parameters of the transfer where there are any."""
        began, params = time.monotonic(), None
        if not legs.is_split(request.path, document):
            outcome = LOCAL
        elif self.is_avoided(address):
            outcome = AVOIDED
        else:
            leg = await self.ask_prefill(request, address, legs.prefill_body(document))
            params = legs.params_of(leg.text) if leg.outcome == REMOTE else None
            outcome = FAILED if leg.outcome == REMOTE and params is None else leg.outcome
        seconds = time.monotonic() - began
        self.record(address, outcome, seconds)
        if outcome not in (REMOTE, LOCAL, AVOIDED):
            log.warning("prefill pod %s: %s after %.3f s: this pod computes the prompt", address, outcome, seconds)
        return outcome, params
