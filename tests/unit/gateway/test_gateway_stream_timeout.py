"""Protects the time limits before and between tokens: a first token may always take its own limit, in every attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.envoy.stream_timeout import StreamTimeout, silence_step, stream_timeout
from pagefleet_gateway.envoy.timeouts import SILENCE_STEPS

seconds = st.one_of(st.none(), st.floats(0.01, 300))


def test_each_limit_alone_and_the_two_together() -> None:
    assert stream_timeout(None, None, 2) == StreamTimeout()
    assert stream_timeout(7.5, None, 2) == StreamTimeout(7.5)
    assert stream_timeout(None, 4.0, 2) == StreamTimeout(None, "attempt-5")
    assert stream_timeout(60.0, 10.0, 2) == StreamTimeout(None, "attempt-60")
    assert stream_timeout(2.0, 10.0, 2) == StreamTimeout(2.0, "stream-10")
    assert stream_timeout(8.0, 10.0, 2) == StreamTimeout(8.0, "stream-30")  # three attempts of 8 s come first
    assert (silence_step(0.1), silence_step(86400.0)) == (1, 86400)


@given(seconds, seconds, st.integers(0, 10))
def test_no_limit_is_shorter_than_asked_for(first: float | None, following: float | None, retries: int) -> None:
    timeout = stream_timeout(first, following, retries)
    if timeout.attempt_seconds is not None:
        assert timeout.attempt_seconds == first
    if following is None:
        assert not timeout.route
        return
    scope, _, length = timeout.route.partition("-")
    least = max(following, (first or 0.0) * (1 if scope == "attempt" else retries + 1))
    assert int(length) >= min(least, SILENCE_STEPS[-1])
    # Either the attempt's timer or the route's bounds an attempt that never answers.
    assert first is None or timeout.attempt_seconds is not None or scope == "attempt"
