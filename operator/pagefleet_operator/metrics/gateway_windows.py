"""Reads the gateways' measurements: closed slices per revision. Read slices are retained, impossible ones dropped.

A gateway that restarts comes back as another instance; its earlier measurements stay here. A tenant's own pickers
(provider GatewayAPI) measure too: the size of their answers and the operator's time for them are limited. A gateway's clock
may be another than the operator's, by which a rollout is judged: its slices are moved by the difference when that is more
than MAX_SKEW_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.domain.scaling.arrivals import service_load, thinned
from pagefleet_operator.domain.status.gateway_slices import MAX_TEXT, bucket_count, finite, optional, slices
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics import long_json
from pagefleet_operator.metrics.accounts import Account, taking_turns, unlimited
from pagefleet_operator.metrics.fetching import FetchError, Question, TooLongError, fetch

TIMEOUT_SECONDS = 2.0
MAX_BYTES, MAX_OWN_BYTES = 16 << 20, 1 << 20  # an answer of the system's gateways, and of a tenant's own pickers
LATEST_SECONDS = 60.0  # read again where everything is too long
RETAINED_SECONDS, MAX_SLICES = 72 * 3600.0, 24_000  # a long rollout is judged by them
TRIMMED_SLICES = 20_000  # left of too many: the guard then adds all of them up again, which must be rare
# Of all histograms that are retained for a service with its own pickers (some 20 MiB), and what is left of too many.
MAX_OWN_BUCKETS, TRIMMED_OWN_BUCKETS = 300_000, 200_000
MAX_SKEW_SECONDS = 5.0  # between the clocks of a gateway and of the operator
log = logging.getLogger(__name__)


def _judged(known: list[Slice], latest: float) -> list[Slice]:
    """The slices that a long rollout is judged by, of all slices in the order of time."""
    left = [piece for piece in known if piece.start >= latest - RETAINED_SECONDS]
    return left[-TRIMMED_SLICES:] if len(left) > MAX_SLICES else left


def _newest(known: list[Slice], buckets: int) -> list[Slice]:
    """The newest of `known`, which are in the order of time: as many as have `buckets` together at most."""
    total = 0
    for place in range(len(known) - 1, -1, -1):
        total += bucket_count(known[place])
        if total > buckets:
            return known[place + 1 :]
    return known


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
    """What is known of the gateway at an address: its instance ("": not yet), the start of its newest slice by its own
    clock, and how many seconds the operator's clock is ahead of that."""

    instance: str = ""
    start: float = -math.inf
    skew: float = 0.0


@dataclass(frozen=True)
class Own:
    """The pickers in a service's own namespace, and the account that reading them is charged to."""

    addresses: tuple[str, ...] = ()
    account: Account = field(default_factory=unlimited)


class GatewayWindows:
    """The newest slices of each service, from all gateways."""

    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float] = time.time) -> None:
        self._session, self._clock = session, clock
        self._slices: dict[ServiceKey, list[Slice]] = {}
        self._newest: dict[ServiceKey, dict[str, Newest]] = {}  # by address
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
        retained, answered = self._slices.setdefault(key, []), []
        for address, answer in zip(addresses, answers, strict=True):
            if answer is None or (skew := self._add(key, address, answer)) is None:
                continue
            answered.append((answer.now + skew, answer.held))
        known = sorted(retained, key=lambda piece: piece.start)
        latest = known[-1].start if known else 0.0
        left = _judged(known, latest) if judged else thinned(known, latest)
        if own.addresses and self._buckets.get(key, 0) > MAX_OWN_BUCKETS:
            left = _newest(left, TRIMMED_OWN_BUCKETS)
        if len(left) < len(known):
            self._buckets[key] = sum(map(bucket_count, left))
        self._slices[key] = left
        if answered:
            held, now = sum(held for _, held in answered), min(now for now, _ in answered)
            self._loads[key] = service_load(left, held, now, len(answered) == len(answers))
        return tuple(left)

    def _add(self, key: ServiceKey, address: str, answer: GatewayAnswer) -> float | None:
        """Retain the new slices of an answer, and return by how many seconds they were moved; None if none can be used."""
        newest = self._newest.setdefault(key, {})
        known = newest.get(address, Newest())
        skew = _skew(answer, known.skew, self._clock())
        if known.instance not in ("", answer.instance):
            # Another gateway at this address: it was asked for the slices since the other one's newest. Its own may be
            # earlier, so the next read asks for all of them.
            newest[address] = Newest(answer.instance, skew=skew)
            return None
        # A gateway sends its newest slice again each time. It must not count twice, also when it was thinned out.
        new = [piece for piece in answer.slices if piece.start > known.start]
        self._slices[key].extend(replace(piece, start=piece.start + skew) if skew else piece for piece in new)
        self._buckets[key] = self._buckets.get(key, 0) + sum(map(bucket_count, new))
        newest[address] = Newest(answer.instance, max((piece.start for piece in new), default=known.start), skew)
        return skew

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
        known = self._newest.get(key, {}).get(address, Newest())
        question = Question(
            f"http://{address}:{GATEWAY_INTERNAL_PORT}/windows",
            TIMEOUT_SECONDS,
            max_bytes,
            {"namespace": key[0], "service": key[1], "since": str(max(0.0, known.start))},
        )
        try:
            text = (await fetch(self._session, question)).decode()
            account.receive(len(text))
            document = await long_json.load(text, "slices", account)
            return await _answer(document, account)
        except TooLongError as error:
            account.receive(error.received)
            start = max(known.start, self._clock() - known.skew - LATEST_SECONDS)
            self._newest.setdefault(key, {})[address] = replace(known, start=start)
            log.warning("gateway %s: %s; only its latest %g s are read", address, error, LATEST_SECONDS)
        except (FetchError, ValueError, RecursionError) as error:
            log.warning("gateway %s: %s", address, error or type(error).__name__)
        return None


async def _answer(document: Mapping[str, Any], account: Account) -> GatewayAnswer | None:
    """The plausible part of an answer, None where it has no time."""
    now = document.get("now")
    if not finite(now):
        return None
    found = list[Slice]()
    async for piece in taking_turns(slices(document), account):
        found.append(piece)
    seconds = document.get("sliceSeconds")
    return GatewayAnswer(
        str(document.get("instance"))[:MAX_TEXT],
        tuple(found),
        optional(document.get("held")) or 0,
        float(now),
        float(seconds) if finite(seconds) and 0.1 <= seconds <= 3600 else 1.0,
    )


def _skew(answer: GatewayAnswer, known: float, clock: float) -> float:
    """How many seconds the operator's clock is ahead, in whole slices. A small change leaves it as it is known."""
    if abs(clock - answer.now - known) <= MAX_SKEW_SECONDS:
        return known
    return round((clock - answer.now) / answer.seconds) * answer.seconds
