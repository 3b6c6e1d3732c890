"""Records a revision's times to first token, or those of its whole answers, by load, and gives the bound of each load for the revision after it.

A record belongs to a load stratum (the work that waited on the picked pod) and a class of running requests for each
replica (`minutes`). A busier hour has other loads, but the same load has the same bound. More running requests make a
prompt slower, so the record of the next busier class serves a class without one. A load that is busier than all recorded
ones is not judged.

The stable revision is recorded while it serves. A record takes few requests at a time, so that it is about many hours,
and is complete after COMPLETE_REQUESTS: a status is written for what is new, and in the end nothing is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from pagefleet_contract import sketch
from pagefleet_contract.sketch import Histogram
from pagefleet_operator.domain.analysis.watching.minutes import MINUTE, Minute
from pagefleet_operator.domain.status.status import BaselineRecord

MAX_RECORDS = 32  # of a revision; those with fewest requests are left out
COMPLETE_REQUESTS, MAX_ADDED = 4000, 400  # of a record, and of what it takes at a time
MIN_REQUESTS = 60  # of a class; those of smaller ones count in the next busier class
ROOM = 60  # buckets of a record
LOWEST_SHARE, LOWEST_BUCKET = 0.3, 0  # so many of the quickest lie in one bucket: no bound depends on where
PRIOR_MINUTES, PRIOR_DISPERSION, MAX_DISPERSION = 10, 2.0, 8.0
MAX_SQUARE = 25.0  # of one minute: a disturbance of minutes does not make the test blind
Bounds = Mapping[str, Sequence[tuple[int, float]]]  # by load stratum: class of running requests, and seconds
Cell = tuple[str, int]
_NAME = re.compile(r"load (?P<stratum>[^,]{1,60}), running (?P<running>[0-9]{1,2})")


def is_load_record(record: BaselineRecord) -> bool:
    """Whether a record is by load; the others are by the length of the prompt."""
    return _NAME.fullmatch(record.stratum) is not None


def only(records: Iterable[BaselineRecord], signal: str = "") -> tuple[BaselineRecord, ...]:
    """The records that are by load, of one signal where it is given."""
    return tuple(one for one in records if is_load_record(one) and signal in ("", one.signal))


def grown(
    records: Sequence[BaselineRecord], minutes: Sequence[Minute], revision: str, quantile: float, signal: str = "ttft"
) -> tuple[BaselineRecord, ...]:
    """The records of a revision's signal after more minutes. Those that have nothing new in them are the same."""
    known = {cell: record for record in records if (cell := _cell(record)) is not None}
    new = _cells(minutes)
    scatter = _dispersion(records, minutes, quantile)
    until = minutes[-1].start + MINUTE if minutes else 0.0
    for cell, histogram in new.items():
        before = known[cell].counts if cell in known else {}
        room = COMPLETE_REQUESTS - sketch.total(before)
        if room > 0:
            total = sketch.merged([before, _sampled(histogram, min(room, MAX_ADDED))])
            name = f"load {cell[0]}, running {cell[1]}"
            known[cell] = BaselineRecord(revision, signal, name, _written(total), "gateway", scatter, until)
    largest = sorted(known, key=lambda cell: -sum(known[cell].histogram.values()))[:MAX_RECORDS]
    return tuple(known[cell] for cell in sorted(largest))


def bounds_of(records: Iterable[BaselineRecord], quantile: float, increase: float) -> Bounds:
    """Each record's quantile, one standard error higher and raised by the accepted increase.

    The records are many and their errors independent, so that together they are hardly ever too low.
    """
    result: dict[str, list[tuple[int, float]]] = {}
    for (name, running), histogram in _pooled(records).items():
        count = sketch.total(histogram)
        if count >= MIN_REQUESTS:
            rank = math.ceil(quantile * count + math.sqrt(count * quantile * (1 - quantile)))
            value = sketch.rank(histogram, min(count, rank)) or 0.0
            result.setdefault(name, []).append((running, (1 + increase) * value))
    return result


def quantiles_of(records: Iterable[BaselineRecord], quantile: float) -> Bounds:
    """The quantiles themselves."""
    result: dict[str, list[tuple[int, float]]] = {}
    for (name, running), histogram in _pooled(records).items():
        result.setdefault(name, []).append((running, sketch.quantile(histogram, quantile) or 0.0))
    return result


def at(bounds: Bounds, stratum: str, running: int) -> float | None:
    """The value for a load; None where nothing like it is recorded."""
    return next((value for recorded, value in bounds.get(stratum, ()) if recorded >= running), None)


def dispersion_of(records: Iterable[BaselineRecord]) -> float:
    """How much more the slow requests of single minutes scatter than independent ones would."""
    return max((one.dispersion for one in records if is_load_record(one)), default=0.0) or PRIOR_DISPERSION


def _cell(record: BaselineRecord) -> Cell | None:
    match = _NAME.fullmatch(record.stratum)
    return (match["stratum"], int(match["running"])) if match else None


def _cells(minutes: Iterable[Minute]) -> dict[Cell, dict[int, int]]:
    """The measured requests by load."""
    cells: dict[Cell, dict[int, int]] = {}
    for minute in minutes:
        for name, stratum in minute.strata.items():
            sketch.add_onto(cells.setdefault((name, minute.running), {}), stratum.measured)
    return {cell: total for cell, total in cells.items() if total}


def _pooled(records: Iterable[BaselineRecord]) -> dict[Cell, dict[int, int]]:
    """The histograms by load, in order; a class with too few requests is counted in the next busier one."""
    cells = sorted((cell, record.counts) for record in records if (cell := _cell(record)) is not None)
    result: dict[Cell, dict[int, int]] = {}
    rest: dict[int, int] = {}
    for place, ((name, running), histogram) in enumerate(cells):
        rest = sketch.merged([rest, histogram])
        busiest = place + 1 == len(cells) or cells[place + 1][0][0] != name
        if busiest or sketch.total(rest) >= MIN_REQUESTS:
            result[name, running], rest = rest, {}
    return result


def _dispersion(records: Iterable[BaselineRecord], minutes: Iterable[Minute], quantile: float) -> float:
    """The ratio of the variance of the minutes' slow requests to that of independent ones, drawn towards what was known."""
    thresholds, share = quantiles_of(records, quantile), 1 - quantile
    squares, counted = PRIOR_MINUTES * dispersion_of(records), PRIOR_MINUTES
    for minute in minutes:
        hits = trials = 0
        for name, stratum in minute.strata.items():
            threshold = at(thresholds, name, minute.running)
            if threshold:
                hits += sketch.above(stratum.measured, threshold)
                trials += sketch.total(stratum.measured)
        if trials:
            squares += min(MAX_SQUARE, (hits - share * trials) ** 2 / (share * (1 - share) * trials))
            counted += 1
    return round(min(MAX_DISPERSION, max(1.0, squares / counted)), 3)


def _sampled(histogram: Histogram, count: int) -> dict[int, int]:
    """Take `count` requests out of a histogram at equal distances of rank, so that its quantiles stay."""
    total = sketch.total(histogram)
    if total <= count:
        return dict(histogram)
    result, passed = dict[int, int](), 0
    for bucket in sorted(histogram):
        before, passed = passed * count // total, passed + histogram[bucket]
        if taken := passed * count // total - before:
            result[bucket] = taken
    return result


def _written(histogram: Histogram) -> dict[str, int]:
    """The histogram with the quickest requests in one bucket and at most ROOM buckets. Apart from those, a count moves only to a higher bucket."""
    lowest, total = LOWEST_SHARE * sketch.total(histogram), 0
    result: dict[int, int] = {}
    for bucket in sorted(histogram):
        total += histogram[bucket]
        place = LOWEST_BUCKET if total < lowest else bucket
        result[place] = result.get(place, 0) + histogram[bucket]
    return sketch.stored(result, ROOM)
