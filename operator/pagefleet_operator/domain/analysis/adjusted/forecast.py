"""States before a step what it can show: the requests that its hold gives the canary, and those that a good canary needs."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted.ratio import MIN_STABLE, requests_needed
from pagefleet_operator.domain.analysis.adjusted.reference import DISPERSION, RETAINED_SECONDS
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice

RATE_SECONDS = 300.0  # the rate of requests is that of so long


def forecast(
    slices: Sequence[Slice], stable: str, guard: LatencyGuard, weight: int, hold: float | None, *, whole: bool = False
) -> str | None:
    """Return the sentence about a step of `weight` percent and `hold` seconds; None while too little is known of the stable.

    `whole`: the guard judges whole answers. Raises nothing. The slices may be in any order.
    """
    own = [piece for piece in slices if piece.revision == stable and piece.possible]
    newest = max((piece.start for piece in own), default=0.0)
    times: dict[int, int] = {}
    for piece in own:
        if piece.load and piece.whole == whole and piece.start > newest - RETAINED_SECONDS:
            for counts in piece.load.values():
                sketch.add_onto(times, counts.relative)
    if sketch.total(times) < MIN_STABLE / (1 - guard.quantile):
        return None
    # Of the time before the rollout only a part of the slices is retained, and those do not count requests.
    recent = [piece for piece in own if piece.start > newest - RATE_SECONDS and piece.started is not None]
    begun, seconds = min((piece.start for piece in recent), default=newest), max(piece.seconds for piece in own)
    rate = sum(piece.arrived for piece in recent) / (newest - begun + seconds) * weight / 100
    name = guard.title
    needed = requests_needed(times, guard.quantile, guard.max_increase, DISPERSION)
    if needed is None:
        return (
            f"{name} of revision {stable} varies so much that no canary can be shown to lie within {guard.max_increase:.0%} of it: "
            "raise maxIncrease or lower quantile in spec.rollout.guard.latency"
        )
    if rate <= 0:
        return f"revision {stable} has had no requests for {RATE_SECONDS:.0f} s: without requests there is no verdict"
    needed = max(needed, guard.min_requests)
    text = f"a canary as good as {stable} needs about {needed:,} requests to pass on {name}, about {duration(needed / rate)}"
    if hold is None:
        return text
    return f"{text}; the step's hold of {duration(hold)} gives it about {rate * hold:,.0f}"


def duration(seconds: float) -> str:
    """Format seconds for people, in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
