"""The arrivals of a service, from the gateways' slices: rates in steps of ten seconds, time to first token, tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from pagefleet_contract import sketch
from pagefleet_operator.domain.status.observation import START, Slice
from pagefleet_operator.domain.status.sample import ServiceLoad

STEP, STEPS = 10.0, 360
SLICE_SECONDS = 2.0
FULL_SECONDS = 120.0
WATCHED_SECONDS = 480.0  # the watch of the stable revision looks back on them (`analysis.watching`)
RECENT_SECONDS, MIN_SAMPLES = 60.0, 20
CLOSED_AFTER = 4.0  # a slice of two seconds is closed two seconds after its end


def thinned(slices: Collection[Slice], latest: float) -> list[Slice]:
    """Reduce the slices to the data that `service_load` uses, in the order of time; the newest slice begins at `latest`.

    The last two minutes stay as they are. Of the rest of the hour only the arrivals stay, of all gateways together, in
    slices of STEP seconds. The last eight minutes also have what the watch of the stable revision uses.
    """
    full = math.floor((latest - FULL_SECONDS) / STEP) * STEP
    counting, counts = _counting(slices), Counter[float]()
    for piece in slices:
        if latest - STEP * (STEPS + 2) <= piece.start < full:
            counts[math.floor(piece.start / STEP) * STEP] += _arrivals(piece, counting)
    past = [Slice("", start, STEP, "", "", 0, 0, arrivals=count) for start, count in sorted(counts.items())]
    recent = [*_watched(slices, latest - WATCHED_SECONDS, full), *(piece for piece in slices if piece.start >= full)]
    return sorted([*past, *recent], key=START)


def _watched(slices: Collection[Slice], begin: float, end: float) -> list[Slice]:
    """The slices with times by load, and how many requests ran. They have no arrivals, which count elsewhere."""
    running, result = Counter[tuple[str, float, float, str, str]](), list[Slice]()
    for piece in slices:
        if not begin <= piece.start < end:
            continue
        if piece.load:
            result.append(piece)
        elif ages := piece.in_flight.get("e2e"):
            waiting = sum(piece.in_flight.get("ttft", {}).values())
            group = (piece.instance, piece.start, piece.seconds, piece.revision, piece.stratum)
            running[group] += sum(ages.values()) - waiting
    for group, count in running.items():
        result.append(Slice(*group, 0, 0, in_flight={"e2e": {0: count}}))
    return result


def service_load(slices: Collection[Slice], held: int, now: float, whole: bool) -> ServiceLoad:
    """The load of a service.

    `now` is the time by the gateways' clock. `whole` says that every gateway has answered; without it the load is older
    than any limit. For a gateway of an older version, which counts no arrivals, the requests that ended count instead.
    The time to first token includes requests that have waited for longer than most already.
    """
    end = math.floor((now - CLOSED_AFTER) / SLICE_SECONDS) * SLICE_SECONDS + SLICE_SECONDS
    counts = [0.0] * STEPS
    counting = _counting(slices)
    recent: list[Slice] = []
    tokens, tokens_reported = 0, False
    for piece in slices:
        step = math.floor((end - piece.start - piece.seconds) / STEP)
        if 0 <= step < STEPS:
            counts[STEPS - 1 - step] += _arrivals(piece, counting)
        if end - RECENT_SECONDS <= piece.start:
            recent.append(piece)
            tokens_reported = tokens_reported or piece.tokens is not None
            tokens += piece.tokens or 0
    return ServiceLoad(
        age=now - end if whole else math.inf,
        held=held,
        arrivals=tuple(count / STEP for count in counts),
        step=STEP,
        ttft=_ttft(recent),
        tokens=tokens / RECENT_SECONDS if tokens_reported else None,
    )


def _ttft(recent: Collection[Slice]) -> float | None:
    """The 95th percentile of the time to first token. `recent` are in the order of time; None for too few requests."""
    latency, ages = Counter[int](), Counter[int]()
    in_flight: dict[tuple[str, str, str], Mapping[int, int]] = {}  # of the newest slice of each gateway and group
    for piece in recent:
        latency.update(piece.latency.get("ttft", {}))
        ages.update(piece.unmeasured.get("ttft", {}))
        in_flight[piece.instance, piece.revision, piece.stratum] = piece.in_flight.get("ttft", {})
    for waiting in in_flight.values():
        ages.update(waiting)
    known = sketch.with_lasting(latency, ages, sketch.quantile(latency, 0.95) or 0.0)
    return sketch.quantile(known, 0.95) if sketch.total(known) >= MIN_SAMPLES else None


def _counting(slices: Collection[Slice]) -> set[str]:
    """The gateways that count arrivals."""
    return {piece.instance for piece in slices if piece.arrivals is not None}


def _arrivals(piece: Slice, counting: set[str]) -> int:
    return (piece.arrivals or 0) if piece.instance in counting else piece.requests
