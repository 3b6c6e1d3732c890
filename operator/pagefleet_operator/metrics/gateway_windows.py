"""Reads the gateways' measurements: closed slices per revision. Read slices are retained, impossible ones dropped.

A gateway that restarts comes back as another instance; its earlier measurements stay here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import aiohttp

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.domain.scaling.arrivals import service_load, thinned
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.bounded_body import body

TIMEOUT_SECONDS = 2.0
MAX_BYTES = 16 << 20
RETAINED_SECONDS, MAX_SLICES = 72 * 3600.0, 12_000  # a long rollout is judged by them
TRIMMED_SLICES = 10_000  # left of too many: the guard then adds all of them up again, which must be rare
MAX_BUCKET = 2000
Id = tuple[str, float, str, str]
log = logging.getLogger(__name__)


def slices(document: Any) -> Iterator[Slice]:
    """The plausible slices of one gateway's answer."""
    if not isinstance(document, Mapping):
        return
    instance, seconds, listed = document.get("instance"), document.get("sliceSeconds"), document.get("slices")
    if not isinstance(instance, str) or not isinstance(listed, list) or not _finite(seconds):
        return
    for raw in listed:
        piece = _slice(raw, instance, seconds)
        if piece is not None:
            yield piece


def _slice(raw: Any, instance: str, seconds: float) -> Slice | None:
    if not isinstance(raw, Mapping) or not _finite(raw.get("start")):
        return None
    requests, errors = raw.get("requests"), raw.get("errors")
    if not _count(requests) or not _count(errors) or errors > requests:
        return None
    latency = {name: histogram for name in GATEWAY_SIGNALS if (histogram := _histogram(raw.get(name))) is not None}
    return Slice(
        instance=instance,
        start=float(raw["start"]),
        seconds=seconds,
        revision=str(raw.get("revision", "")),
        stratum=str(raw.get("stratum", "")),
        requests=requests,
        errors=errors,
        latency=latency,
        arrivals=_optional(raw.get("arrivals")),
        tokens=_optional(raw.get("tokens")),
    )


def _optional(value: Any) -> int | None:
    return value if _count(value) else None


def _histogram(raw: Any) -> dict[int, int] | None:
    if not isinstance(raw, Mapping):
        return None
    result = {}
    for bucket, count in raw.items():
        if not isinstance(bucket, str) or not bucket.isdigit() or int(bucket) > MAX_BUCKET or not _count(count):
            return None
        result[int(bucket)] = count
    return result


def _count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _id(piece: Slice) -> Id:
    return piece.instance, piece.start, piece.revision, piece.stratum


def _judged(known: list[Slice], latest: float) -> list[Slice]:
    """The slices that a long rollout is judged by, of all slices in the order of time."""
    left = [piece for piece in known if piece.start >= latest - RETAINED_SECONDS]
    return left[-TRIMMED_SLICES:] if len(left) > MAX_SLICES else left


@dataclass(frozen=True)
class GatewayAnswer:
    """The answer of one gateway; `now` is the time by its own clock."""

    slices: tuple[Slice, ...]
    held: int
    now: float


class GatewayWindows:
    """The newest slices of each service, from all gateways."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._slices: dict[ServiceKey, dict[Id, Slice]] = {}
        self._newest: dict[ServiceKey, dict[str, float]] = {}  # by address
        self._loads: dict[ServiceKey, ServiceLoad] = {}

    async def read(
        self, addresses: list[str], namespace: str, service: str, *, judged: bool
    ) -> tuple[Slice, ...] | None:
        """The slices of a service; None when no gateway answered.

        `judged` says that a rollout is judged by them; otherwise old slices are thinned out.
        """
        key = (namespace, service)
        answers = await asyncio.gather(*(self._fetch(address, key) for address in addresses))
        self._loads.pop(key, None)
        if not any(answer is not None for answer in answers):
            return None
        retained, newest = self._slices.setdefault(key, {}), self._newest.setdefault(key, {})
        for address, answer in zip(addresses, answers, strict=True):
            # A gateway sends its newest slice again each time. It must not count twice, also when it was thinned out.
            last = newest.get(address, -math.inf)
            new = [piece for piece in answer.slices if piece.start > last] if answer else []
            retained.update((_id(piece), piece) for piece in new)
            if new:
                newest[address] = max(piece.start for piece in new)
        known = sorted(retained.values(), key=lambda piece: piece.start)
        latest = known[-1].start if known else 0.0
        left = _judged(known, latest) if judged else thinned(known, latest)
        if len(left) < len(known):
            self._slices[key] = {_id(piece): piece for piece in left}
        answered = [answer for answer in answers if answer is not None]
        self._loads[key] = service_load(
            left,
            sum(answer.held for answer in answered),
            min(answer.now for answer in answered),
            len(answered) == len(answers),
        )
        return tuple(left)

    def load(self, namespace: str, service: str) -> ServiceLoad | None:
        """The load of a service from the last `read`; None when no gateway answered."""
        return self._loads.get((namespace, service))

    def forget(self, namespace: str, service: str) -> None:
        self._slices.pop((namespace, service), None)
        self._newest.pop((namespace, service), None)
        self._loads.pop((namespace, service), None)

    async def _fetch(self, address: str, key: ServiceKey) -> GatewayAnswer | None:
        query = {"namespace": key[0], "service": key[1], "since": str(self._newest.get(key, {}).get(address, 0.0))}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                f"http://{address}:{GATEWAY_INTERNAL_PORT}/windows", params=query, timeout=timeout
            ) as response:
                if response.status != 200:
                    return None
                document = json.loads(await body(response, MAX_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.warning("gateway %s does not answer: %s", address, error or type(error).__name__)
            return None
        now = document.get("now") if isinstance(document, Mapping) else None
        if not _finite(now):
            return None
        return GatewayAnswer(tuple(slices(document)), _optional(document.get("held")) or 0, float(now))
