"""Reads the gateways' measurements: closed slices per revision. Read slices are retained, impossible ones dropped.

A gateway that restarts comes back as another instance; its earlier measurements stay here. A tenant's own pickers
(provider GatewayAPI) measure too: the size of their answers and the operator's time for them are limited.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import aiohttp

from pagefleet_contract import sketch
from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.domain.scaling.arrivals import service_load, thinned
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics import long_json
from pagefleet_operator.metrics.accounts import Account, taking_turns, unlimited
from pagefleet_operator.metrics.fetching import FetchError, Question, TooLongError, fetch

TIMEOUT_SECONDS = 2.0
MAX_BYTES, MAX_OWN_BYTES = 16 << 20, 1 << 20  # an answer of the system's gateways, and of a tenant's own pickers
LATEST_SECONDS = 60.0  # read again where everything is too long
RETAINED_SECONDS, MAX_SLICES = 72 * 3600.0, 12_000  # a long rollout is judged by them
TRIMMED_SLICES = 10_000  # left of too many: the guard then adds all of them up again, which must be rare
# Of all histograms that are retained for a service with its own pickers (some 20 MiB), and what is left of too many.
MAX_OWN_BUCKETS, TRIMMED_OWN_BUCKETS = 300_000, 200_000
MAX_TEXT = 253  # of a name
_BUCKET = re.compile(r"[0-9]{1,4}")
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
        piece = _slice(raw, instance[:MAX_TEXT], seconds)
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
        revision=str(raw.get("revision", ""))[:MAX_TEXT],
        stratum=str(raw.get("stratum", ""))[:MAX_TEXT],
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
        if (
            not isinstance(bucket, str)
            or not _BUCKET.fullmatch(bucket)
            or int(bucket) > sketch.LAST
            or not _count(count)
        ):
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


def _newest(known: list[Slice], buckets: int) -> list[Slice]:
    """The newest of `known`, which are in the order of time: as many as have `buckets` together at most."""
    total = 0
    for place in range(len(known) - 1, -1, -1):
        total += _buckets(known[place])
        if total > buckets:
            return known[place + 1 :]
    return known


def _buckets(piece: Slice) -> int:
    return 1 + sum(map(len, piece.latency.values()))


@dataclass(frozen=True)
class GatewayAnswer:
    """The answer of one gateway; `now` is the time by its own clock."""

    slices: tuple[Slice, ...]
    held: int
    now: float


@dataclass(frozen=True)
class Own:
    """The pickers in a service's own namespace, and the account that reading them is charged to."""

    addresses: tuple[str, ...] = ()
    account: Account = field(default_factory=unlimited)


class GatewayWindows:
    """The newest slices of each service, from all gateways."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._slices: dict[ServiceKey, dict[Id, Slice]] = {}
        self._newest: dict[ServiceKey, dict[str, float]] = {}  # by address
        self._loads: dict[ServiceKey, ServiceLoad] = {}
        self._buckets: dict[ServiceKey, int] = {}  # of all retained histograms

    async def read(
        self,
        addresses: Collection[str],
        namespace: str,
        service: str,
        *,
        judged: bool,
        own: Own | None = None,
    ) -> tuple[Slice, ...] | None:
        """The slices of a service; None when no gateway answered.

        `judged` says that a rollout is judged by them; otherwise old slices are thinned out. `own` are the pickers of the
        service's own namespace.
        """
        key, own = (namespace, service), own or Own()
        addresses = [*addresses, *own.addresses]
        system, limited = (MAX_BYTES, unlimited()), (MAX_OWN_BYTES, own.account)
        limits = [limited if address in own.addresses else system for address in addresses]
        answers = await asyncio.gather(
            *(self._fetch(address, key, *limit) for address, limit in zip(addresses, limits, strict=True))
        )
        self._loads.pop(key, None)
        if not any(answer is not None for answer in answers):
            return None
        retained, newest = self._slices.setdefault(key, {}), self._newest.setdefault(key, {})
        for address, answer in zip(addresses, answers, strict=True):
            # A gateway sends its newest slice again each time. It must not count twice, also when it was thinned out.
            last = newest.get(address, -math.inf)
            new = [piece for piece in answer.slices if piece.start > last] if answer else []
            retained.update((_id(piece), piece) for piece in new)
            self._buckets[key] = self._buckets.get(key, 0) + sum(map(_buckets, new))
            if new:
                newest[address] = max(piece.start for piece in new)
        known = sorted(retained.values(), key=lambda piece: piece.start)
        latest = known[-1].start if known else 0.0
        left = _judged(known, latest) if judged else thinned(known, latest)
        if own.addresses and self._buckets.get(key, 0) > MAX_OWN_BUCKETS:
            left = _newest(left, TRIMMED_OWN_BUCKETS)
        if len(left) < len(known):
            self._slices[key] = {_id(piece): piece for piece in left}
            self._buckets[key] = sum(map(_buckets, left))
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
        self._buckets.pop((namespace, service), None)

    async def _fetch(self, address: str, key: ServiceKey, max_bytes: int, account: Account) -> GatewayAnswer | None:
        if account.overdrawn:
            log.warning("gateway %s of %s/%s is %s", address, *key, account.overdrawn)
            return None
        since = self._newest.get(key, {}).get(address, 0.0)
        question = Question(
            f"http://{address}:{GATEWAY_INTERNAL_PORT}/windows",
            TIMEOUT_SECONDS,
            max_bytes,
            {"namespace": key[0], "service": key[1], "since": str(since)},
        )
        try:
            text = (await fetch(self._session, question)).decode()
            account.receive(len(text))
            document = await long_json.load(text, "slices", account)
            return await _answer(document, account)
        except TooLongError as error:
            self._newest.setdefault(key, {})[address] = max(since, time.time() - LATEST_SECONDS)
            log.warning("gateway %s: %s; only its latest %g s are read", address, error, LATEST_SECONDS)
        except (FetchError, ValueError, RecursionError) as error:
            log.warning("gateway %s: %s", address, error or type(error).__name__)
        return None


async def _answer(document: Mapping[str, Any], account: Account) -> GatewayAnswer | None:
    """The plausible part of an answer, None where it has no time."""
    now = document.get("now")
    if not _finite(now):
        return None
    found = list[Slice]()
    async for piece in taking_turns(slices(document), account):
        found.append(piece)
    return GatewayAnswer(tuple(found), _optional(document.get("held")) or 0, float(now))
