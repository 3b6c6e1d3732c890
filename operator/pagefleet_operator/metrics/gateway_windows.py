"""Reads what the gateways measured: closed slices per revision, kept once read, garbage dropped.

A gateway that restarts comes back as another instance: what it measured before stays here.
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
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.bounded_body import body

TIMEOUT_SECONDS = 2.0
MOST_BYTES = 16 << 20
KEPT_SECONDS, MOST_SLICES = 72 * 3600.0, 12_000  # what a long rollout is judged by
LEFT_SLICES = 10_000  # when there are too many: the guard adds all of them up anew, which must be rare
MOST_BUCKET = 2000
SIGNALS = ("ttft", "e2e", "tpot")
Id = tuple[str, float, str, str]
log = logging.getLogger(__name__)


def slices(document: Any) -> Iterator[Slice]:
    """The sane slices of one gateway's answer."""
    if not isinstance(document, Mapping):
        return
    instance, seconds, found_slices = document.get("instance"), document.get("sliceSeconds"), document.get("slices")
    if not isinstance(instance, str) or not isinstance(found_slices, list) or not _finite(seconds):
        return
    for raw in found_slices:
        found = _slice(raw, instance, seconds)
        if found is not None:
            yield found


def _slice(raw: Any, instance: str, seconds: float) -> Slice | None:
    if not isinstance(raw, Mapping) or not _finite(raw.get("start")):
        return None
    requests, errors = raw.get("requests"), raw.get("errors")
    if not _count(requests) or not _count(errors) or errors > requests:
        return None
    latency = {name: histogram for name in SIGNALS if (histogram := _histogram(raw.get(name))) is not None}
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
        if not isinstance(bucket, str) or not bucket.isdigit() or int(bucket) > MOST_BUCKET or not _count(count):
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
    """Those that a long rollout is judged by, of all in the order of time."""
    left = [piece for piece in known if piece.start >= latest - KEPT_SECONDS]
    return left[-LEFT_SLICES:] if len(left) > MOST_SLICES else left


@dataclass(frozen=True)
class Answer:
    """One gateway's; `now` by its own clock."""

    slices: tuple[Slice, ...]
    held: int
    now: float


class GatewayWindows:
    """All gateways' slices of each service, the newest ones."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._kept: dict[ServiceKey, dict[Id, Slice]] = {}
        self._newest: dict[ServiceKey, dict[str, float]] = {}  # by address
        self._loads: dict[ServiceKey, ServiceLoad] = {}

    async def read(
        self, addresses: list[str], namespace: str, service: str, *, judged: bool
    ) -> tuple[Slice, ...] | None:
        """None when no gateway answered. `judged`: a rollout is judged by them; else old ones are thinned out."""
        key = (namespace, service)
        answers = await asyncio.gather(*(self._fetch(address, key) for address in addresses))
        self._loads.pop(key, None)
        if not any(answer is not None for answer in answers):
            return None
        kept, newest = self._kept.setdefault(key, {}), self._newest.setdefault(key, {})
        for address, answer in zip(addresses, answers, strict=True):
            # The newest is told again each time, and may have been thinned out meanwhile: it must not count twice.
            seen = newest.get(address, -math.inf)
            new = [piece for piece in answer.slices if piece.start > seen] if answer else []
            kept.update((_id(piece), piece) for piece in new)
            if new:
                newest[address] = max(piece.start for piece in new)
        known = sorted(kept.values(), key=lambda piece: piece.start)
        latest = known[-1].start if known else 0.0
        left = _judged(known, latest) if judged else thinned(known, latest)
        if len(left) < len(known):
            self._kept[key] = {_id(piece): piece for piece in left}
        sure = [answer for answer in answers if answer is not None]
        self._loads[key] = service_load(
            left,
            sum(answer.held for answer in sure),
            min(answer.now for answer in sure),
            len(sure) == len(answers),
        )
        return tuple(left)

    def load(self, namespace: str, service: str) -> ServiceLoad | None:
        """What the last `read` says of a service's load; None when no gateway answered it."""
        return self._loads.get((namespace, service))

    def forget(self, namespace: str, service: str) -> None:
        self._kept.pop((namespace, service), None)
        self._newest.pop((namespace, service), None)
        self._loads.pop((namespace, service), None)

    async def _fetch(self, address: str, key: ServiceKey) -> Answer | None:
        query = {"namespace": key[0], "service": key[1], "since": str(self._newest.get(key, {}).get(address, 0.0))}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                f"http://{address}:{GATEWAY_INTERNAL_PORT}/windows", params=query, timeout=timeout
            ) as response:
                if response.status != 200:
                    return None
                document = json.loads(await body(response, MOST_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.warning("gateway %s does not answer: %s", address, error or type(error).__name__)
            return None
        now = document.get("now") if isinstance(document, Mapping) else None
        if not _finite(now):
            return None
        return Answer(tuple(slices(document)), _optional(document.get("held")) or 0, float(now))
