"""How gateway pods ask each other for parts of quotas, and answer. Decides no request.

Only buckets that are asked for are exchanged, four times a second. A request that its own bucket refuses waits for one
exchange more, because another pod's bucket may have what is missing.
"""

from __future__ import annotations

import asyncio
import logging
import time

import aiohttp
from aiohttp import web

from pagefleet_gateway.limits.rate_limits import RateLimits
from pagefleet_gateway.limits.sharing import Sharing
from pagefleet_gateway.sharing.members import Members

log = logging.getLogger(__name__)

PATH = "/quotas"
PERIOD_SECONDS = 0.25
TIMEOUT_SECONDS = 0.5  # for another pod's answer
SILENT_SECONDS = 3.0  # a pod that does not answer for so long has no part of the quotas
RETRY_SECONDS = 1.0  # between two questions to a pod that did not answer the last one


class Quotas:
    """The exchange of quotas with the other gateway pods."""

    def __init__(self, limits: RateLimits, members: Members) -> None:
        self._limits, self._members = limits, members
        self._sharing = Sharing(limits, time.monotonic())
        self._failing: dict[str, tuple[float, float]] = {}  # since when, and when it was asked last
        self._waiting: list[asyncio.Future[None]] = []
        self._asked = asyncio.Event()
        members.listen(self._begin_again)

    def _begin_again(self, name: str) -> None:
        self._failing.pop(name, None)
        self._count()

    def may_have(self, bucket: tuple[str, bytes] | None) -> bool:
        """Return whether the other pods' buckets may have what this one lacks: they were not asked a moment ago."""
        found = None if bucket is None else self._limits.buckets.find(*bucket)
        if bucket is None or found is None or not self._sharing.peers or not self._sharing.asks(bucket[1]):
            return False
        return found.others_at + PERIOD_SECONDS < time.monotonic()

    async def exchange(self) -> None:
        """Return after an exchange that began after this call."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._asked.set()
        await waiting

    async def follow(self) -> None:
        """Exchange buckets until cancelled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as session:
            while True:
                waiting, self._waiting = self._waiting, []
                self._asked.clear()
                await self._ask_all(session)
                for one in waiting:
                    if not one.done():
                        one.set_result(None)
                try:
                    async with asyncio.timeout(PERIOD_SECONDS):
                        await self._asked.wait()
                except TimeoutError:
                    continue

    def routes(self) -> list[web.RouteDef]:
        return [web.post(PATH, self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        """Answer another gateway pod. Everybody else is refused: a forged question would drain the quotas."""
        document = await request.json() if self._members.includes(request.remote) else None
        if not isinstance(document, dict) or document.get("pod") not in self._members.addresses:
            return web.json_response({"error": "only gateway pods may ask for parts of quotas"}, status=403)
        rows = self._sharing.answer(str(document["pod"]), document.get("buckets"), time.monotonic())
        return web.json_response({"buckets": rows})

    async def _ask_all(self, session: aiohttp.ClientSession) -> None:
        now = time.monotonic()
        # Their addresses now: a pod may be gone before its question begins.
        due = {
            name: address
            for name, address in self._members.addresses.items()
            if self._failing.get(name, (0.0, 0.0))[1] + RETRY_SECONDS <= now
        }
        rows = self._sharing.ask(now) if due else []
        if rows or any(name in self._failing for name in due):
            await asyncio.gather(*(self._ask(session, name, address, rows, now) for name, address in due.items()))
            self._count()

    async def _ask(
        self, session: aiohttp.ClientSession, name: str, address: str, rows: list[list[object]], now: float
    ) -> None:
        url = f"http://{address}{PATH}"
        try:
            async with session.post(
                url, json={"pod": self._members.name, "buckets": rows}, allow_redirects=False
            ) as response:
                answer = await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            answer = None
        if name not in self._members.addresses:
            return
        if isinstance(answer, dict):
            self._failing.pop(name, None)
            self._sharing.receive(name, answer.get("buckets"), time.monotonic())
        else:
            if name not in self._failing:
                log.warning("the gateway pod %s does not answer at %s: it shares no quotas", name, url)
            self._failing[name] = (self._failing.get(name, (now, now))[0], now)

    def _count(self) -> None:
        """Share with the pods that answer. One that fails for a moment keeps its part."""
        now = time.monotonic()
        gone = {name for name, (since, _) in self._failing.items() if since + SILENT_SECONDS <= now}
        self._sharing.set_peers(frozenset(self._members.addresses.keys() - gone))
