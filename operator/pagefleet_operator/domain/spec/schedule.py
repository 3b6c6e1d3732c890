"""Which bounds are in force at a time: cron expressions in time zones, each for a duration. Pure: `now` is an input.

Times that a change of the clocks skips or repeats are taken as Debian's cron does (cronsim).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pagefleet_contract.quantity import seconds

__all__ = ["Entry", "bounds", "errors", "seconds"]
REPEATED_SECONDS = 7200.0  # no change of the clocks repeats more


@dataclass(frozen=True)
class Entry:
    """Bounds from each time that `cron` names in `zone`, for `duration` seconds."""

    cron: str
    zone: str
    duration: float
    min: int | None = None
    max: int | None = None


def errors(cron: str, zone: str) -> Iterator[tuple[str, str]]:
    """(field, message) of what cannot be read."""
    try:
        _zone(zone)
    except (ValueError, OSError, KeyError):
        yield "timeZone", f"{zone!r} is no IANA time zone such as Europe/Berlin"
        return
    try:
        next(CronSim(cron, datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)))
    except CronSimError as error:
        yield "cron", f"{cron!r}: {error}; allowed are five fields such as 0 8 * * 1-5"
    except StopIteration:
        yield "cron", f"{cron!r} matches no time at all"


def bounds(entries: tuple[Entry, ...], least: int, most: int, now: float) -> tuple[int, int, bool]:
    """(min, max, whether an entry in force asks for replicas). A max in force wins over every min."""
    active = [entry for entry in entries if _active(entry, now)]
    floors, ceilings = [e.min for e in active if e.min is not None], [e.max for e in active if e.max is not None]
    most = min([most, *ceilings])
    return min(most, max([least, *floors])), most, any(floor > 0 for floor in floors)


def _active(entry: Entry, now: float) -> bool:
    # Asked once a minute of each entry: reading a cron expression backwards is slow when it names few times.
    began = _latest(entry.cron, entry.zone, int(now // 60))
    return began is not None and now < began + entry.duration


@lru_cache(maxsize=4096)
def _latest(cron: str, zone: str, minute: int) -> float | None:
    """When `cron` was last due at or before the beginning of a minute of UNIX time.

    In an hour that the clocks repeat, a search that begins there passes over a time that was due in the hour's first run.
    """
    moment = datetime.datetime.fromtimestamp(minute * 60 + 1, _zone(zone))
    if moment.fold:
        moment = datetime.datetime.fromtimestamp(minute * 60 + 1 + REPEATED_SECONDS, _zone(zone))
    try:
        times = (float(found.timestamp()) for found in CronSim(cron, moment, reverse=True))
        return next((time for time in times if time <= minute * 60), None)
    except CronSimError:
        return None


def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
