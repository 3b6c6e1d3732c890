"""Reads the gateways' measurements: closed slices per revision. Read slices are retained, impossible ones dropped.

A gateway that restarts comes back as another instance; its earlier measurements stay here. A gateway's clock may be
another than the operator's, by which a rollout is judged: its slices are moved by the difference when that is more than
MAX_SKEW_SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import aiohttp

from pagefleet_contract import sketch
from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.domain.scaling.arrivals import service_load, thinned
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.bounded_body import body

TIMEOUT_SECONDS = 2.0
MAX_BYTES = 16 << 20
RETAINED_SECONDS, MAX_SLICES = 72 * 3600.0, 24_000  # a long rollout is judged by them
TRIMMED_SLICES = 20_000  # left of too many: the guard then adds all of them up again, which must be rare
MAX_BUCKET = 2000
MAX_SKEW_SECONDS = 5.0  # between the clocks of a gateway and of the operator
# The ages of requests that have no measurement, in a document of version 2, by the signal that they lack.
IN_FLIGHT = {"ttft": ("waiting",), "e2e": ("waiting", "running")}
UNMEASURED = {
    "ttft": ("leftWaiting", "unmeasuredWaiting"),
    "e2e": ("leftWaiting", "leftRunning", "unmeasuredWaiting", "unmeasuredRunning"),
}
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
        started=_optional(raw.get("started")),
        in_flight=_ages(raw, IN_FLIGHT),
        unmeasured=_ages(raw, UNMEASURED),
        retried=min(errors, _optional(raw.get("retried")) or 0),
        client_errors=_optional(raw.get("clientErrors")) or 0,
    )


def _ages(raw: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, dict[int, int]]:
    """The histograms of ages by signal, without empty ones; a gateway of an older version has none."""
    known = {name: _histogram(raw.get(name)) or {} for group in names.values() for name in group}
    summed = {signal: sketch.merged([known[name] for name in group]) for signal, group in names.items()}
    return {signal: histogram for signal, histogram in summed.items() if histogram}


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


def _judged(known: list[Slice], latest: float) -> list[Slice]:
    """The slices that a long rollout is judged by, of all slices in the order of time."""
    left = [piece for piece in known if piece.start >= latest - RETAINED_SECONDS]
    return left[-TRIMMED_SLICES:] if len(left) > MAX_SLICES else left


@dataclass(frozen=True)
class GatewayAnswer:
    """The answer of one gateway; `now` is the time by its own clock."""

    instance: str
    slices: tuple[Slice, ...]
    held: int
    now: float
    seconds: float  # of a slice


@dataclass(frozen=True)
class Newest:
    """What is known of the gateway at an address: its instance, the start of its newest slice by its own clock, and how
    many seconds the operator's clock is ahead of that."""

    instance: str
    start: float = -math.inf
    skew: float = 0.0


class GatewayWindows:
    """The newest slices of each service, from all gateways."""

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float] = time.time) -> None:
        self._session, self._clock = session, clock
        self._slices: dict[ServiceKey, list[Slice]] = {}
        self._newest: dict[ServiceKey, dict[str, Newest]] = {}  # by address
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
        retained, newest = self._slices.setdefault(key, []), self._newest.setdefault(key, {})
        answered = []
        for address, answer in zip(addresses, answers, strict=True):
            if answer is None:
                continue
            known = newest.get(address, Newest(answer.instance))
            if known.instance != answer.instance:
                # Another gateway at this address: it was asked for the slices since the other one's newest. Its own
                # may be earlier, so the next read asks for all of them.
                newest[address] = Newest(answer.instance, skew=_skew(answer, 0.0, self._clock()))
                continue
            skew = _skew(answer, known.skew, self._clock())
            # A gateway sends its newest slice again each time. It must not count twice, also when it was thinned out.
            new = [piece for piece in answer.slices if piece.start > known.start]
            retained.extend(replace(piece, start=piece.start + skew) if skew else piece for piece in new)
            start = max((piece.start for piece in new), default=known.start)
            newest[address] = Newest(answer.instance, start, skew)
            answered.append((answer, answer.now + skew))
        ordered = sorted(retained, key=lambda piece: piece.start)
        latest = ordered[-1].start if ordered else 0.0
        left = _judged(ordered, latest) if judged else thinned(ordered, latest)
        self._slices[key] = left
        if answered:
            self._loads[key] = service_load(
                left,
                sum(answer.held for answer, _ in answered),
                min(now for _, now in answered),
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
        known = self._newest.get(key, {}).get(address)
        since = 0.0 if known is None else max(known.start, 0.0)
        query = {"namespace": key[0], "service": key[1], "since": str(since)}
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
        return _answer(document)


def _answer(document: Any) -> GatewayAnswer | None:
    """The answer that a document holds; None when it is none."""
    if not isinstance(document, Mapping) or not _finite(now := document.get("now")):
        return None
    seconds = document.get("sliceSeconds")
    return GatewayAnswer(
        str(document.get("instance")),
        tuple(slices(document)),
        _optional(document.get("held")) or 0,
        float(now),
        float(seconds) if _finite(seconds) and seconds > 0 else 1.0,
    )


def _skew(answer: GatewayAnswer, known: float, clock: float) -> float:
    """How many seconds the operator's clock is ahead, in whole slices. A small change leaves it as it is known."""
    if abs(clock - answer.now - known) <= MAX_SKEW_SECONDS:
        return known
    return round((clock - answer.now) / answer.seconds) * answer.seconds
