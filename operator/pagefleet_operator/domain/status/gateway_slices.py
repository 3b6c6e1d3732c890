"""The slices of one gateway's answer: what is impossible is left out. No I/O.

Documents of version 1 have no requests in flight, and read as they always did.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from pagefleet_contract import sketch
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.observation import Slice

MAX_TEXT = 253  # of a name
_BUCKET = re.compile(r"[0-9]{1,4}")
# The ages of requests that have no measurement, in a document of version 2, by the signal that they lack.
IN_FLIGHT = {"ttft": ("waiting",), "e2e": ("waiting", "running")}
UNMEASURED = {
    "ttft": ("leftWaiting", "unmeasuredWaiting"),
    "e2e": ("leftWaiting", "leftRunning", "unmeasuredWaiting", "unmeasuredRunning"),
}


def slices(document: Any) -> Iterator[Slice]:
    """The plausible slices of one gateway's answer."""
    if not isinstance(document, Mapping):
        return
    instance, seconds, listed = document.get("instance"), document.get("sliceSeconds"), document.get("slices")
    if not isinstance(instance, str) or not isinstance(listed, list) or not finite(seconds):
        return
    for raw in listed:
        piece = _slice(raw, instance[:MAX_TEXT], seconds)
        if piece is not None:
            yield piece


def _slice(raw: Any, instance: str, seconds: float) -> Slice | None:
    if not isinstance(raw, Mapping) or not finite(raw.get("start")):
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
        arrivals=optional(raw.get("arrivals")),
        tokens=optional(raw.get("tokens")),
        started=optional(raw.get("started")),
        in_flight=_ages(raw, IN_FLIGHT),
        unmeasured=_ages(raw, UNMEASURED),
        retried=min(errors, optional(raw.get("retried")) or 0),
        client_errors=optional(raw.get("clientErrors")) or 0,
    )


def _ages(raw: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, dict[int, int]]:
    """The histograms of ages by signal, without empty ones; a gateway of an older version has none."""
    known = {name: _histogram(raw.get(name)) or {} for group in names.values() for name in group}
    summed = {signal: sketch.merged([known[name] for name in group]) for signal, group in names.items()}
    return {signal: histogram for signal, histogram in summed.items() if histogram}


def optional(value: Any) -> int | None:
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


def finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def bucket_count(piece: Slice) -> int:
    """The size of a slice: one, and the buckets of its histograms."""
    tables = (piece.latency, piece.in_flight, piece.unmeasured)
    return 1 + sum(len(histogram) for table in tables for histogram in table.values())
