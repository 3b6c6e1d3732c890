"""The load of a revision whose engines report nothing, estimated from what the gateways count. Decides nothing.

The requests in flight follow the arrivals: in the mean they are the rate of arrivals times the seconds that a request takes (Little,
Operations Research 9:3, 1961). So the last known load is scaled by the rate of arrivals now, divided by the rate at which it was read. Tokens and
KV pages are scaled along. Without any known load only the requests that wait in the gateways and the time to first token remain.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.scaling.inflow import ARRIVALS_SECONDS, STALE_LOAD, rate
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

REFERENCE_SECONDS = 600.0  # before the engines fell silent
MIN_SECONDS = 60.0  # of arrivals, by which the load is scaled


def estimated(totals: Totals, load: ServiceLoad | None) -> Totals | None:
    """The totals with an estimate in place of the latest sample.

    None when an engine reports, when no pod serves, or when the gateways' counts are missing or stale as well.
    """
    latest = totals.latest
    if latest.fresh or not latest.serving or load is None or load.age > STALE_LOAD:
        return None
    known = [sample for sample in totals.history if sample.fresh]
    if known:
        known = [sample for sample in known if sample.time > known[-1].time - REFERENCE_SECONDS]
    made = _scaled(known, load, latest) if known else EngineLoad(running=int(rate(load, ARRIVALS_SECONDS) > 0))
    unqueued = latest.serving if not made.waiting else 0
    return replace(totals, latest=replace(latest, fresh=latest.serving, load=made, unqueued=unqueued), guessed=True)


def _scaled(known: Sequence[Sample], load: ServiceLoad, latest: Sample) -> EngineLoad:
    usual, factor = _mean_rate(load, known, latest.time), 1.0
    if usual:
        factor = rate(load, ARRIVALS_SECONDS) / usual
    running = _mean([sample.load.running * sample.serving / sample.fresh for sample in known])
    tokens = _mean([(sample.load.tokens or 0.0) * sample.serving / sample.fresh for sample in known])
    used = _mean([sample.load.kv_pages_used * sample.serving / sample.fresh for sample in known])
    last = known[-1]
    pages = None if last.load.kv_pages_total is None else last.load.kv_pages_total // last.fresh * latest.serving
    return EngineLoad(
        running=round(running * factor),
        waiting=0,
        slots=last.load.slots,
        kv_pages_total=pages,
        kv_pages_free=None if pages is None else max(0, pages - round(used * factor)),
        tokens=tokens * factor,
    )


def _mean_rate(load: ServiceLoad, known: Sequence[Sample], now: float) -> float | None:
    """Arrivals per second while the samples were read; None when the gateways did not count for long enough then."""
    end = now - load.age  # of the last step
    ages = [end - load.step * (len(load.arrivals) - index - 0.5) for index in range(len(load.arrivals))]
    inside = [
        value
        for at, value in zip(ages, load.arrivals, strict=True)
        if known[0].time - load.step / 2 <= at <= known[-1].time + load.step / 2
    ]
    return _mean(inside) if len(inside) * load.step >= MIN_SECONDS else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
