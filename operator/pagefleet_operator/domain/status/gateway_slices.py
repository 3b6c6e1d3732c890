"""The slices of one gateway's answer: what is impossible is left out. No I/O.

Documents of version 1 have no requests in flight, and those before version 3 no load-adjusted times. They read as they
always did.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from pagefleet_contract import sketch
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

MAX_TEXT = 253  # of a name
MAX_LOAD_STRATA, MAX_PODS, MAX_OBJECTIVES = 24, 16, 16  # of a slice; the gateways have 18 strata, and send 8 pods
_BUCKETS = {str(bucket): bucket for bucket in range(sketch.LAST + 1)}
# The ages of requests that have no measurement, in a document of version 2, by the signal that they lack.
IN_FLIGHT = {"ttft": ("waiting",), "e2e": ("waiting", "running")}
UNMEASURED = {
    "ttft": ("leftWaiting", "unmeasuredWaiting"),
    "e2e": ("leftWaiting", "leftRunning", "unmeasuredWaiting", "unmeasuredRunning"),
}
IN_FLIGHT_NAMES = frozenset(name for group in IN_FLIGHT.values() for name in group)
UNMEASURED_NAMES = frozenset(name for group in UNMEASURED.values() for name in group)
COUNTS = ("arrivals", "tokens", "started", "retried", "clientErrors", "timeouts", "fellBack")
LOAD_FIELDS = ("relative", "waiting", "unmeasured", "ttft")  # in the order of `LoadCounts`


def slices(document: Any, after: float = -math.inf, adjusted_after: float = math.inf) -> Iterator[Slice]:
    """The plausible slices of one gateway's answer that begin later than `after`, and those with load-adjusted times that begin
    later than `adjusted_after`."""
    if not isinstance(document, dict):
        return
    instance, seconds, listed = document.get("instance"), document.get("sliceSeconds"), document.get("slices")
    if not isinstance(instance, str) or not isinstance(listed, list) or not finite(seconds):
        return
    for raw in listed:
        if not isinstance(raw, dict) or not finite(start := raw.get("start")):
            continue
        if start > after or (start > adjusted_after and ("load" in raw or "pods" in raw)):
            piece = _slice(raw, instance[:MAX_TEXT], seconds)
            if piece is not None:
                yield piece


def _slice(raw: Mapping[str, Any], instance: str, seconds: float) -> Slice | None:
    requests, errors = raw.get("requests"), raw.get("errors")
    if not _count(requests) or not _count(errors) or errors > requests:
        return None
    latency = {
        name: histogram for name in GATEWAY_SIGNALS if name in raw and (histogram := _histogram(raw[name])) is not None
    }
    arrivals, tokens, started, retried, client_errors, timeouts, fell_back = map(optional, map(raw.get, COUNTS))
    piece = Slice(
        instance=instance,
        start=float(raw["start"]),
        seconds=seconds,
        revision=str(raw.get("revision", ""))[:MAX_TEXT],
        stratum=str(raw.get("stratum", ""))[:MAX_TEXT],
        requests=requests,
        errors=errors,
        latency=latency,
        arrivals=arrivals,
        tokens=tokens,
        started=started,
        in_flight=_ages(raw, IN_FLIGHT_NAMES, IN_FLIGHT),
        unmeasured=_ages(raw, UNMEASURED_NAMES, UNMEASURED),
        retried=min(errors, retried or 0),
        client_errors=client_errors or 0,
        timeouts=timeouts or 0,
        fell_back=fell_back or 0,
        load=_load(raw["load"]) if "load" in raw else {},
        pods=_pods(raw["pods"]) if "pods" in raw else {},
        slo=_objectives(raw["slo"]) if "slo" in raw else {},
    )
    vars(piece)["possible"] = True  # all that `Slice.possible` looks at has been checked here
    return piece


def _load(raw: Any) -> dict[str, LoadCounts]:
    """The load-adjusted times by load stratum, without impossible and empty histograms."""
    result = dict[str, LoadCounts]()
    for name, counts in _entries(raw, MAX_LOAD_STRATA):
        if isinstance(counts, dict):
            tables = [_histogram(counts[field]) or {} if field in counts else {} for field in LOAD_FIELDS]
            if any(tables):
                result[name] = LoadCounts(*tables)
    return result


def _pods(raw: Any) -> dict[str, dict[int, int]]:
    return {name: histogram for name, counts in _entries(raw, MAX_PODS) if (histogram := _histogram(counts))}


def _objectives(raw: Any) -> dict[str, tuple[int, int]]:
    """The requests that counted in an objective and those that missed it, by the objective's key."""
    result = dict[str, tuple[int, int]]()
    for name, counts in _entries(raw, MAX_OBJECTIVES):
        match counts:
            case [requests, missed] if _count(requests) and _count(missed) and missed <= requests:
                result[name] = requests, missed
    return result


def _entries(raw: Any, limit: int) -> Iterator[tuple[str, Any]]:
    """The first `limit` entries of a mapping that have a plausible name."""
    named = raw.items() if isinstance(raw, dict) else ()
    plausible = ((name, value) for name, value in named if isinstance(name, str) and 0 < len(name) <= MAX_TEXT)
    return itertools.islice(plausible, limit)


def _ages(
    raw: Mapping[str, Any], names: frozenset[str], groups: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[int, int]]:
    """The histograms of ages by signal, without empty ones; a gateway of an older version has none.

    `names` are the names of all `groups`.
    """
    if names.isdisjoint(raw):
        return {}
    read = {name: histogram for name in names if name in raw and (histogram := _histogram(raw[name]))}
    result = {}
    for signal, group in groups.items():
        known = [read[name] for name in group if name in read]
        if known:
            result[signal] = known[0] if len(known) == 1 else sketch.merged([*known])
    return result


def optional(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _histogram(raw: Any) -> dict[int, int] | None:
    if not isinstance(raw, dict):
        return None
    try:
        result = {_BUCKETS[bucket]: count for bucket, count in raw.items()}
    except KeyError:
        return None
    for count in result.values():
        if type(count) is not int or count < 0:
            return None
    return result


def _count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def bucket_count(piece: Slice) -> int:
    """The size of a slice: one, and the buckets of its histograms."""
    tables = (piece.latency, piece.in_flight, piece.unmeasured)
    strata = (histogram for one in piece.load.values() for histogram in one.tables)
    histograms = (*(histogram for table in tables for histogram in table.values()), *strata, *piece.pods.values())
    return 1 + sum(map(len, histograms))
