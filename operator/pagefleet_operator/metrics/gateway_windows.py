"""Reads the gateways' measurements: closed slices per revision. Read slices are retained, impossible ones dropped.

A gateway that restarts comes back as another instance; its earlier measurements stay here. While no rollout is judged, old
slices are thinned out. When one begins, each gateway's last 21 minutes are read again for their load-adjusted times: they show how
the stable revision did before the canary got traffic. A tenant's own pickers
(provider GatewayAPI) measure too: the size of their answers and the operator's time for them are limited. A gateway's clock
may be another than the operator's, by which a rollout is judged: its slices are moved by the difference when that is more
than MAX_SKEW_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from pagefleet_contract.addresses import authority
from pagefleet_contract.names import GATEWAY_INTERNAL_PORT
from pagefleet_operator.domain.analysis.adjusted import reference
from pagefleet_operator.domain.analysis.watching.thinning import thinned
from pagefleet_operator.domain.scaling.load_sums import LoadSums
from pagefleet_operator.domain.slo.attainment import Attainment
from pagefleet_operator.domain.status.codec import MAX_TIME
from pagefleet_operator.domain.status.gateway_slices import (
    MAX_TEXT,
    bucket_count,
    entry,
    is_length,
    is_time,
    optional,
    short_answer,
    slices,
)
from pagefleet_operator.domain.status.observation import START, Slice
from pagefleet_operator.domain.status.records.slo import SLORecord
from pagefleet_operator.domain.status.sample import ServiceLoad, SLOReading
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
SHORT = 16 << 10  # characters of an answer whose slices are read in one turn of the event loop
PAST_SECONDS = reference.RETAINED_SECONDS + 60.0  # before a rollout, whose load-adjusted times the judgement uses
PAST_READS = 3  # so often they are requested again before they are given up
REMIND_SECONDS = 60.0  # between two log lines that say the same of a gateway
MAX_SKEW_SECONDS = 5.0  # between the clocks of a gateway and of the operator
MAX_AHEAD_SECONDS = 60.0  # of a slice to the operator's clock
log = logging.getLogger(__name__)


def put_in_order(known: list[Slice], new: Sequence[Slice]) -> None:
    """Put new slices among those that are known, which are in the order of time."""
    if new:
        at = bisect_right(known, min(map(START, new)), key=START)
        known[at:] = sorted([*known[at:], *new], key=START)


def judged_by(known: list[Slice]) -> list[Slice]:
    """The slices that a long rollout is judged by, of all slices in the order of time."""
    latest = known[-1].start if known else 0.0
    gone = bisect_left(known, latest - RETAINED_SECONDS, key=START)
    left = known[gone:] if gone else known
    return left[-TRIMMED_SLICES:] if len(left) > MAX_SLICES else left


def _count_requests(total: dict[str, Counter[float]], gone: Sequence[Slice]) -> None:
    """Add the requests of slices that are dropped, by revision and the start of their minute."""
    for piece in gone:
        if piece.requests:
            minutes = total.setdefault(piece.revision, Counter())
            minutes[piece.start // 60 * 60] += piece.requests - piece.retried


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
    clock, how many seconds the operator's clock is ahead of that, and how often its past may still be requested again: its
    older slices have been thinned out."""

    instance: str = ""
    start: float = -math.inf
    skew: float = 0.0
    past_reads: int = 0


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
        self._sums: dict[ServiceKey, LoadSums] = {}
        self._attained: dict[ServiceKey, Attainment] = {}
        self._loads: dict[ServiceKey, ServiceLoad] = {}  # of the last reading
        self._buckets: dict[ServiceKey, int] = {}  # of all retained histograms of services with their own pickers
        self._earlier: dict[ServiceKey, dict[str, Counter[float]]] = {}  # as in Observation
        self._warnings: dict[str, tuple[str, float]] = {}  # of the last minute, by address, with its time

    async def read(
        self,
        addresses: Collection[str],
        namespace: str,
        service: str,
        *,
        judged: bool,
        own: Own | None = None,
        recorded: SLORecord | None = None,
    ) -> tuple[Slice, ...] | None:
        """The slices of a service; None when no gateway answered.

        `judged` says that a rollout is judged by them; otherwise old slices are thinned out. `own` are the pickers of the
        service's own namespace. `recorded` are the counts of the status: they are continued.
        """
        key, own = (namespace, service), own or Own()
        addresses = [*addresses, *own.addresses]
        system, limited = (MAX_BYTES, unlimited()), (MAX_OWN_BYTES, own.account)
        limits = [limited if address in own.addresses else system for address in addresses]
        answers = await asyncio.gather(
            *(
                self._fetch(self._question(address, key, max_bytes, judged=judged), address, key, account)
                for address, (max_bytes, account) in zip(addresses, limits, strict=True)
            )
        )
        self._loads.pop(key, None)
        if not any(answer is not None for answer in answers):
            return None
        known, answered = self._slices.setdefault(key, []), []
        if not own.addresses:
            self._buckets.pop(key, None)
        elif key not in self._buckets:
            self._buckets[key] = sum(map(bucket_count, known))
        self._sums.setdefault(key, LoadSums())
        attained = self._attained.get(key)
        if attained is None or (recorded is not None and attained.lacks(recorded)):
            self._attained[key] = Attainment(recorded, self._clock())
        for address, answer in zip(addresses, answers, strict=True):
            if answer is None or (skew := self._add(key, address, answer, judged=judged)) is None:
                continue
            answered.append((answer.now + skew, answer.held))
        # After the operator's clock was set back, slices of a time that is still to come would be taken for new ones then.
        come = bisect_right(known, self._clock() + MAX_AHEAD_SECONDS, key=START)
        present = known[:come] if come < len(known) else known
        left = judged_by(present) if judged else thinned(present, present[-1].start if present else 0.0)
        if self._buckets.get(key, 0) > MAX_OWN_BUCKETS:
            left = _newest(left, TRIMMED_OWN_BUCKETS)
        if len(left) < len(known) and key in self._buckets:
            self._buckets[key] = sum(map(bucket_count, left))
        if judged:
            _count_requests(self._earlier.setdefault(key, {}), present[: len(present) - len(left)])
        else:
            self._earlier.pop(key, None)
        self._slices[key] = left
        if answered:
            held, now = sum(held for _, held in answered), min(now for now, _ in answered)
            self._loads[key] = self._sums[key].load(held, now, len(answered) == len(answers))
        return tuple(left)

    def _add(self, key: ServiceKey, address: str, answer: GatewayAnswer, *, judged: bool) -> float | None:
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
        start = max((piece.start for piece in new), default=known.start)
        moved = _moved(new, skew)
        self._sums[key].add(moved, answer.now + skew)
        self._attained[key].add(moved)
        if not judged:
            moved = [piece for piece in moved if not piece.adjusted]  # nobody needs them, and they are large
        if judged and known.past_reads:
            # Load-adjusted times are in slices without arrivals and requests, so no thinned slice has them.
            self._forget_adjusted(key, answer.instance)
            again = [piece for piece in answer.slices if piece.adjusted and piece.start <= known.start]
            moved = [*moved, *_moved(again, skew)]
        put_in_order(self._slices[key], moved)
        if key in self._buckets:
            self._buckets[key] += sum(map(bucket_count, moved))
        newest[address] = Newest(answer.instance, start, skew, past_reads=0 if judged else PAST_READS)
        return skew

    def _forget_adjusted(self, key: ServiceKey, instance: str) -> None:
        """Drop the load-adjusted times of a gateway, all of which have been read again."""
        slices = self._slices[key]
        again = [piece for piece in slices if piece.adjusted and piece.instance == instance]
        if again:
            if key in self._buckets:
                self._buckets[key] -= sum(map(bucket_count, again))
            slices[:] = [piece for piece in slices if not (piece.adjusted and piece.instance == instance)]

    def load(self, namespace: str, service: str) -> ServiceLoad | None:
        """The load of a service from the last `read`; None when no gateway answered."""
        return self._loads.get((namespace, service))

    def earlier(self, namespace: str, service: str) -> Mapping[str, Mapping[float, int]]:
        """The requests in slices that are retained no longer, as in Observation."""
        return self._earlier.get((namespace, service), {})

    def attained(self, namespace: str, service: str) -> SLOReading | None:
        """The kept and missed objectives of a service; None before its first request."""
        attained = self._attained.get((namespace, service))
        return None if attained is None else attained.reading(self._clock())

    def forget(self, namespace: str, service: str) -> None:
        self._attained.pop((namespace, service), None)
        self._slices.pop((namespace, service), None)
        self._earlier.pop((namespace, service), None)
        self._newest.pop((namespace, service), None)
        self._sums.pop((namespace, service), None)
        self._loads.pop((namespace, service), None)
        self._buckets.pop((namespace, service), None)

    def _question(self, address: str, key: ServiceKey, max_bytes: int, *, judged: bool) -> Question:
        """The request for a gateway's slices since the newest known one, or for all that it has."""
        known = self._newest.get(key, {}).get(address, Newest())
        since = max(0.0, known.start - (PAST_SECONDS if judged and known.past_reads else 0.0))
        parameters = {"namespace": key[0], "service": key[1], "since": str(since)}
        if since < known.start:
            parameters["counts"] = str(known.start)  # all that is earlier has been counted
        url = f"http://{authority(address, GATEWAY_INTERNAL_PORT)}/windows"
        return Question(url, TIMEOUT_SECONDS, max_bytes, parameters)

    async def _fetch(self, question: Question, address: str, key: ServiceKey, account: Account) -> GatewayAnswer | None:
        if account.overdrawn:
            log.warning("gateway %s of %s/%s is %s", address, *key, account.overdrawn)
            return None
        known = self._newest.get(key, {}).get(address, Newest())
        again = float(question.params["since"]) < known.start
        try:
            text = (await fetch(self._session, question)).decode()
            account.receive(len(text))
            after = known.start, -math.inf if again else known.start
            if len(text) > SHORT:
                long = await long_json.load(text, ("slices",), account, entry)
                return _answer(long, [piece async for piece in taking_turns(slices(long, *after), account)])
            with account.spending():
                short = short_answer(text)
                return _answer(short, list(slices(short, *after)))
        except TooLongError as error:
            account.receive(error.received)
            latest = known.start if again else max(known.start, self._clock() - known.skew - LATEST_SECONDS)
            self._newest.setdefault(key, {})[address] = replace(known, start=latest, past_reads=0)
            left = "its past is not read again" if again else f"only its latest {LATEST_SECONDS:g} s are read"
            self._warn(address, f"{error}; {left}")
        except (FetchError, ValueError, RecursionError) as error:
            if again:
                self._newest.setdefault(key, {})[address] = replace(known, past_reads=known.past_reads - 1)
            self._warn(address, str(error) or type(error).__name__)
        return None

    def _warn(self, address: str, message: str) -> None:
        """Log what is wrong with a gateway. Every service reads it every few seconds: the same message is logged once a minute."""
        now = self._clock()
        self._warnings = {one: said for one, said in self._warnings.items() if now - said[1] < REMIND_SECONDS}
        if self._warnings.get(address, ("",))[0] != message:
            self._warnings[address] = message, now
            log.warning("gateway %s: %s", address, message)


def _answer(document: Mapping[str, Any], found: Sequence[Slice]) -> GatewayAnswer:
    """The plausible part of an answer with its slices. Raises ValueError where it has no time."""
    now = document.get("now")
    if not is_time(now):
        raise ValueError(
            f"`now` must be UNIX seconds from 0 to {MAX_TIME:.0f}, got {str(now)[:40]}: nothing of its answer is used"
        )
    seconds = document.get("sliceSeconds")
    return GatewayAnswer(
        str(document.get("instance"))[:MAX_TEXT],
        tuple(found),
        optional(document.get("held")) or 0,
        float(now),
        float(seconds) if is_length(seconds) else 1.0,
    )


def _moved(slices: list[Slice], skew: float) -> list[Slice]:
    return [replace(piece, start=piece.start + skew) for piece in slices] if skew else slices


def _skew(answer: GatewayAnswer, known: float, clock: float) -> float:
    """How many seconds the operator's clock is ahead, in whole slices. A small change leaves it as it is known."""
    if abs(clock - answer.now - known) <= MAX_SKEW_SECONDS:
        return known
    return round((clock - answer.now) / answer.seconds) * answer.seconds
