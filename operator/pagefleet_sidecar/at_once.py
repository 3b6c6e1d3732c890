"""The two legs of a request at once, as SGLang has them: the prefill pod and the engine of this pod meet in a room, and neither answers
before the other has come. That engine computes no prompt itself.

A prefill leg that fails ends the decode leg, before anything of an answer has gone to the client. Both are sent again, to the next prefill
pod that the gateway names and with a new room. Without another one the request fails with 503, which the gateway may retry.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import hdrs, web

from pagefleet_contract.disaggregation import AVOIDED, REFUSED, REMOTE, SPLIT_PATHS, TIMEOUT, UNNAMED
from pagefleet_contract.headers import PREFILLED_HEADER
from pagefleet_sidecar import bootstrap
from pagefleet_sidecar.documents import document_of, may_name
from pagefleet_sidecar.proxy import refusal, unread
from pagefleet_sidecar.routing import Leg, Routing

log = logging.getLogger("pagefleet-sidecar")


@dataclass
class AtOnce(Routing):
    """`blame_seconds`: an engine whose KV pages did not come may say so this long before the prefill pod says why."""

    blame_seconds: float = 1.0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not request.raw_path.startswith("/"):
            return unread()
        body = await request.read()
        named, split = may_name(body, *bootstrap.NAMES), _is_split(request)
        document = document_of(body) if named or split else None
        if document is None:
            if named and not request.content_type.startswith("multipart/"):
                return unread()
            return await self.pass_on(request, body)
        if not split:
            return await self.pass_on(request, json.dumps(bootstrap.own_fields(document)).encode())
        if reason := bootstrap.refused(document):
            return refusal(400, "not_served_by_decode_pods", reason)
        return await self._paired(request, document)

    async def _paired(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        """Have a prefill pod and the engine answer together: the first named pod that does."""
        addresses = self.named(request)
        chosen = [address for address in addresses if not self.is_avoided(address)] or list(addresses[:1])
        if not chosen:
            self.metrics.record(UNNAMED, None)
            return _unserved(UNNAMED)
        outcome = "" if chosen[0] == addresses[0] else AVOIDED
        for address in chosen:
            leg, response = await self._both(request, document, address, outcome)
            outcome = outcome or leg.outcome
            if response is not None:
                return response
            if leg.outcome == TIMEOUT:
                break  # a second one would take as long
        return _unserved(outcome)

    async def _both(
        self, request: web.Request, document: dict[str, Any], address: str, before: str
    ) -> tuple[Leg, web.StreamResponse | None]:
        """Send both legs. Return the end of the prefill leg, and the response unless that leg has failed. `before` is the outcome of an
        earlier prefill pod."""
        began = time.monotonic()
        asked, answered = bootstrap.bodies(document, address)
        leg = asyncio.create_task(self.ask_prefill(request, address, asked))
        decode = asyncio.create_task(self.ask_engine(request, answered))
        try:
            await asyncio.wait((leg, decode), return_when=asyncio.FIRST_COMPLETED)
            if not leg.done() and not await self._is_met(leg, decode):
                return Leg(""), await self._decoded(request, decode, before)
            ended = await leg
            seconds = time.monotonic() - began
            self.record(address, ended.outcome, seconds)
            if ended.outcome == REMOTE:
                return ended, await self._decoded(request, decode, before or REMOTE)
            log.warning("prefill pod %s: %s after %.3f s", address, ended.outcome, seconds)
            return ended, _passed_on(ended) if ended.outcome == REFUSED else None
        finally:
            await _end(leg, decode)

    async def _is_met(self, leg: asyncio.Task[Leg], decode: asyncio.Task[aiohttp.ClientResponse]) -> bool:
        """Whether the engine's answer, which came first, has to wait for the end of the prefill leg: the headers of an answer to come, or a
        failure that may be the prefill pod's. What the engine refuses by itself does not."""
        if decode.exception() is not None:
            return False
        status = decode.result().status
        if status == 200:
            return True
        if 400 <= status < 500 and status != 429:
            return False
        await asyncio.wait((leg,), timeout=self.blame_seconds)
        return leg.done() and leg.result().outcome != REMOTE

    async def _decoded(
        self, request: web.Request, decode: asyncio.Task[aiohttp.ClientResponse], outcome: str
    ) -> web.StreamResponse:
        try:
            answer = await decode
        except (aiohttp.ClientError, TimeoutError) as error:
            return self.cut(request, error)
        return await self.relay(request, answer, outcome)


def _is_split(request: web.Request) -> bool:
    return request.method == hdrs.METH_POST and request.path in SPLIT_PATHS


async def _end(leg: asyncio.Task[Leg], decode: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """End both legs: an engine stops when its client leaves."""
    leg.cancel()
    decode.cancel()
    await asyncio.gather(leg, decode, return_exceptions=True)
    if not decode.cancelled() and decode.exception() is None:
        decode.result().close()


def _passed_on(leg: Leg) -> web.Response:
    """Return a prefill pod's refusal, which the engine of this pod would give as well."""
    headers = {PREFILLED_HEADER: leg.outcome}
    return web.Response(body=leg.text, status=leg.status, content_type=leg.content_type, headers=headers)


def _unserved(outcome: str) -> web.Response:
    response = refusal(503, "prefill_unavailable", "no prefill pod has computed the prompt, and this pod computes none")
    response.headers[PREFILLED_HEADER] = outcome
    return response
