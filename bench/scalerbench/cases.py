"""The cases: a trace by name with its length, the profile of a replica, and the faults that befall the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.capacity import sustainable
from pagefleet_simulator.fleet.faults import Fault, Hang, Outage
from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.traces import replay, synthetic
from pagefleet_simulator.traces.synthetic import Trace

PROFILE = profiles.load("h100x4-llama-70b")
LENGTHS = synthetic.Lengths(prompt=1500, output=700)
FLEET = 8  # replicas that the peak needs at a full batch
MAX_REPLICAS = 16
EACH = sustainable(PROFILE, *LENGTHS.means)
USED = 0.7  # of the replicas there are at the start
SLOW_START = 1200.0
PEAK_SECONDS, MOVED_SECONDS = 300.0, 15.0
CALIBRATION_SEED = 1_000_003


@dataclass(frozen=True)
class Case:
    """`hours` and `short` hours of the built-in trace `shape`; None for a file. A fault begins at a share of the trace."""

    name: str
    shape: str | None
    hours: float
    short: float
    startup: float | None = None  # seconds to load the model
    outage: tuple[float, float] | None = None  # (share of the trace, seconds)
    hang: tuple[float, float] | None = None

    @property
    def profile(self) -> Profile:
        if self.startup is None:
            return PROFILE
        return replace(PROFILE, startup=replace(PROFILE.startup, load=self.startup))

    def faults(self, seconds: float) -> tuple[Fault, ...]:
        found: list[Fault] = []
        if self.outage is not None:
            found.append(Outage(self.outage[0] * seconds, self.outage[0] * seconds + self.outage[1]))
        if self.hang is not None:
            found.append(Hang(self.hang[0] * seconds, self.hang[0] * seconds + self.hang[1]))
        return tuple(found)


CASES = {
    case.name: case
    for case in (
        Case("steady", "steady", 2, 1),
        Case("step", "step", 2, 1),
        Case("burst", "burst", 4, 2),
        Case("diurnal", "diurnal", 24, 4),
        Case("heavy", "heavy", 2, 1),
        Case("waves", "waves", 2, 1),
        Case("sawtooth", "sawtooth", 2, 1),
        Case("flash", "flash", 1, 0.5),
        Case("slow-start", "waves", 6, 6, startup=SLOW_START),
        Case("outage", "waves", 2, 1, outage=(0.07, 300.0)),
        Case("hung", "steady", 2, 1, hang=(0.4, 1200.0)),
        Case("published", None, 1, 1),
    )
}
NOISE = Case("noise", "noise", 3, 1)
CALIBRATION = Case("calibration", "calibration", 2, 1)
EVERY = {**CASES, NOISE.name: NOISE, CALIBRATION.name: CALIBRATION}


@lru_cache(maxsize=2)
def trace(name: str, seed: int, short: bool, published: Path | None) -> Trace:
    case = EVERY[name]
    if case.shape is None:
        if published is None:
            raise ValueError("--published FILE names the published trace")
        return _scaled(replay.read(published).trace, seed, 0.5 if short else 1.0)
    return synthetic.build(case.shape, FLEET * EACH, seed, case.short if short else case.hours, LENGTHS)


def means(arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Mean tokens of prompts and answers."""
    return (
        float(np.mean([one.prompt for one in arrivals])),
        float(np.mean([one.output for one in arrivals])),
    )


def initial(made: Trace) -> int:
    """Replicas at the start, for the arrivals of the first five minutes."""
    begin = sum(1 for arrival in made.arrivals if arrival.at < PEAK_SECONDS) / PEAK_SECONDS
    return max(1, min(MAX_REPLICAS, int(np.ceil(begin / sustainable(PROFILE, *means(made.arrivals)) / USED))))


def _scaled(made: Trace, seed: int, share: float) -> Trace:
    """The first `share` of the trace, each request as often as the busiest five minutes then need FLEET replicas; the copies are
    moved by up to MOVED_SECONDS, so that no two arrive together."""
    seconds = made.seconds * share
    kept = [one for one in made.arrivals if one.at < seconds]
    counts = np.bincount([int(one.at // PEAK_SECONDS) for one in kept])
    copies = max(1, round(FLEET * sustainable(PROFILE, *means(kept)) * PEAK_SECONDS / counts.max()))
    random = np.random.default_rng([seed, *b"published"])
    moved = random.uniform(-MOVED_SECONDS, MOVED_SECONDS, (len(kept), copies))
    arrivals = sorted(
        (replace(one, at=float(min(seconds - 1, max(0.0, one.at + by)))) for one, row in zip(kept, moved, strict=True) for by in row),
        key=lambda one: one.at,
    )  # fmt: skip
    return Trace("published", seconds, tuple(arrivals))
