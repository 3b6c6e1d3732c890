"""How long a stream's engine may send nothing, in the terms that Envoy has for it. Pure.

Envoy's timers: one for an attempt until its answer begins (a header sets it), one for an attempt's silence before and
after that (`per_try_idle_timeout`; ignored unless it is shorter than the first), one for the client's stream, which does
not know of attempts (`idle_timeout`). The last two belong to routes: so there is a route for each length in STEPS, and
the picker names one.
"""

from __future__ import annotations

from dataclasses import dataclass

STEPS = (1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)  # seconds
ATTEMPT, STREAM = "attempt", "stream"  # whose silence a route bounds


@dataclass(frozen=True)
class Patience:
    """`attempt_seconds`: until an attempt's answer must have begun. `route`: the name of a route, "" for the usual one."""

    attempt_seconds: float | None = None
    route: str = ""


USUAL = Patience()


def patience(first: float | None, following: float | None, retries: int) -> Patience:
    """For `traffic.firstTokenTimeout` and `traffic.nextTokenTimeout`, in seconds.

    A first token may always take `first`: so silence is bounded by the longer of the two, and by all the attempts for a
    first token where those are quicker. What a route bounds is rounded up to one of STEPS.
    """
    if following is None:
        return Patience(first)
    if first is None or first >= following:
        return Patience(route=route_name(ATTEMPT, step(max(following, first or 0.0))))
    return Patience(first, route_name(STREAM, step(max(following, first * (retries + 1) + 1))))


def step(seconds: float) -> int:
    """The shortest of STEPS that is at least so long; the longest when none is."""
    return next((one for one in STEPS if one >= seconds), STEPS[-1])


def route_name(whose: str, seconds: int) -> str:
    return f"{whose}-{seconds}"
