"""How long a stream's engine may be silent, in the terms that Envoy has for it. Pure.

Envoy has three timers. The first bounds an attempt until its answer begins; a header sets it. The second bounds an
attempt's silence before and after that (`per_try_idle_timeout`); Envoy ignores it unless it is shorter than the first. The
third bounds the silence of the client's stream and does not know of attempts (`idle_timeout`). Only a route can set the
last two, so there is a route for each length in SILENCE_STEPS, and the picker names one.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_gateway.envoy.timeouts import SILENCE_STEPS

HEADER = "x-pagefleet-stream-timeout"  # from the picker: the name of a route
ATTEMPT, STREAM = "attempt", "stream"  # the scope of a route's timer


@dataclass(frozen=True)
class StreamTimeout:
    """The two limits of a streamed request. `attempt_seconds`: until an attempt's answer must have begun. `route`: the
    name of the route that bounds the silence, "" for the one without a bound of its own."""

    attempt_seconds: float | None = None
    route: str = ""


NO_STREAM_TIMEOUT = StreamTimeout()


def stream_timeout(first_token: float | None, next_token: float | None, retries: int) -> StreamTimeout:
    """Translate `traffic.firstTokenTimeout` and `traffic.nextTokenTimeout`, in seconds.

    A first token may always take `first_token`. So the silence is bounded by the longer of the two, and by the time of all
    attempts at a first token where each attempt is shorter. A route's bound is rounded up to one of SILENCE_STEPS.
    """
    if next_token is None:
        return StreamTimeout(first_token)
    if first_token is None or first_token >= next_token:
        return StreamTimeout(route=route_name(ATTEMPT, silence_step(max(next_token, first_token or 0.0))))
    all_attempts = first_token * (retries + 1) + 1
    return StreamTimeout(first_token, route_name(STREAM, silence_step(max(next_token, all_attempts))))


def silence_step(seconds: float) -> int:
    """Return the shortest of SILENCE_STEPS that is at least `seconds`; the longest when none is."""
    return next((step for step in SILENCE_STEPS if step >= seconds), SILENCE_STEPS[-1])


def route_name(scope: str, seconds: int) -> str:
    return f"{scope}-{seconds}"
