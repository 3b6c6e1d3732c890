"""The sidecar of a decode pod: which prefill pods the gateway names for a request, and which of them failed a moment ago.

How the two legs of a request meet is the engine's protocol: one after the other (`in_turn`), or at once (`at_once`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import web

from pagefleet_contract.disaggregation import FAILED, REFUSED, REMOTE, TIMEOUT, UNREACHED, prefill_addresses
from pagefleet_contract.headers import PREFILL_HEADER
from pagefleet_sidecar.proxy import Proxy, request_headers, session

MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of a prefill leg: one token, and the numbers of its KV pages
AVOID_SECONDS = 5.0  # for which a prefill pod is not asked again after it was not reached
MAX_AVOIDED = 1024


@dataclass(frozen=True)
class Leg:
    """The end of a prefill leg. `text` is the answer's body where there is one."""

    outcome: str
    text: bytes = b""
    status: int = 0
    content_type: str = ""


@dataclass
class Routing(Proxy):
    """`avoided` has prefill pods that failed a moment ago, and until when they are not asked."""

    avoided: dict[str, float] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._prefill = session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self._prefill.close()

    def named(self, request: web.Request) -> tuple[str, ...]:
        """Return the addresses of the prefill pods that the gateway names, the best one first."""
        value = request.headers.get(PREFILL_HEADER, "")
        return prefill_addresses(value, self.settings.revision, self.settings.prefill_port)

    def is_avoided(self, address: str) -> bool:
        return self.avoided.get(address, 0.0) > time.monotonic()

    async def ask_prefill(self, request: web.Request, address: str, body: bytes) -> Leg:
        """Send a prefill leg, and return its end. Every failure is an outcome."""
        try:
            async with (
                asyncio.timeout(self.settings.timeout),
                self._prefill.post(
                    f"http://{address}{request.path}", data=body, headers=request_headers(request)
                ) as answer,
            ):
                text = bytearray()
                async for piece in answer.content.iter_any():
                    text += piece
                    if len(text) > MAX_ANSWER_BYTES:
                        return Leg(FAILED)
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ServerTimeoutError)
            return Leg(UNREACHED if connecting else TIMEOUT)
        except aiohttp.ClientError:
            return Leg(UNREACHED)
        return Leg(_outcome(answer.status), bytes(text), answer.status, answer.content_type)

    def record(self, address: str, outcome: str, seconds: float) -> None:
        """Count what became of a prefill leg, and leave a pod alone that was not reached."""
        self.metrics.record(outcome, seconds if outcome == REMOTE else None)
        if outcome in (UNREACHED, TIMEOUT):
            if len(self.avoided) >= MAX_AVOIDED:
                self.avoided.clear()
            self.avoided[address] = time.monotonic() + AVOID_SECONDS


def _outcome(status: int) -> str:
    if status == 200:
        return REMOTE
    return REFUSED if 400 <= status < 500 and status != 429 else FAILED
