"""The shipped reader of the gateways' windows, asking gateways in this process in place of HTTP."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from bench.rolloutbench.gateways import EPOCH, NAME, NAMESPACE, Gateway

from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.metrics.gateway_windows import GatewayWindows


class Windows:
    """One service's `GatewayWindows`. `gateway_seconds` is the processor time of the gateways, which is no operator's."""

    def __init__(self, gateways: Sequence[Gateway], clock: Callable[[], float]) -> None:
        self._session, self._clock = _Session(gateways, clock), clock
        self._addresses = [gateway.instance for gateway in gateways]
        self._windows = GatewayWindows(self._session, lambda: clock() + EPOCH)  # type: ignore[arg-type]

    @property
    def gateway_seconds(self) -> float:
        return self._session.seconds

    def read(self, *, judged: bool) -> tuple[Slice, ...] | None:
        """Return the retained slices, which are more of them while a rollout is judged."""
        return _loop().run_until_complete(self._windows.read(self._addresses, NAMESPACE, NAME, judged=judged))

    @property
    def load(self) -> ServiceLoad | None:
        """The load of the last reading."""
        return self._windows.load(NAMESPACE, NAME)


class _Answer:
    """The part of an HTTP response that `fetch` uses."""

    status = 200

    def __init__(self, body: bytes) -> None:
        self._body, self.headers, self.content_length, self.content = body, dict[str, str](), len(body), self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._body

    async def __aenter__(self) -> _Answer:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class _Session:
    """An HTTP session that reaches the gateways by their instance."""

    def __init__(self, gateways: Sequence[Gateway], clock: Callable[[], float]) -> None:
        self._gateways = {gateway.instance: gateway for gateway in gateways}
        self._clock, self.seconds = clock, 0.0

    def request(self, _: str, url: str, *, params: Mapping[str, str], **__: Any) -> _Answer:
        began = time.process_time()
        instance = url.removeprefix("http://").partition(":")[0]
        since, counts = float(params["since"]), float(params.get("counts", "0"))
        document = self._gateways[instance].windows.document(NAMESPACE, NAME, since, self._clock(), counts)
        body = msgspec.json.encode(document)
        self.seconds += time.process_time() - began
        return _Answer(body)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process."""
    return asyncio.new_event_loop()
