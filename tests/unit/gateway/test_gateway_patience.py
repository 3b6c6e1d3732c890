"""Protects the time limits before and between tokens: a first token may always take its own limit, in every attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.envoy.stream_timeout import STEPS, Patience, patience, step

seconds = st.one_of(st.none(), st.floats(0.01, 300))


def test_each_limit_alone_and_the_two_together() -> None:
    assert patience(None, None, 2) == Patience()
    assert patience(7.5, None, 2) == Patience(7.5)
    assert patience(None, 4.0, 2) == Patience(None, "attempt-5")
    assert patience(60.0, 10.0, 2) == Patience(None, "attempt-60")
    assert patience(2.0, 10.0, 2) == Patience(2.0, "stream-10")
    assert patience(8.0, 10.0, 2) == Patience(8.0, "stream-30")  # three attempts of 8 s come first
    assert (step(0.1), step(1000)) == (1, STEPS[-1])


@given(seconds, seconds, st.integers(0, 10))
def test_no_limit_is_shorter_than_asked_for(first: float | None, following: float | None, retries: int) -> None:
    found = patience(first, following, retries)
    if found.attempt_seconds is not None:
        assert found.attempt_seconds == first
    if following is None:
        assert not found.route
        return
    whose, _, length = found.route.partition("-")
    wanted = max(following, (first or 0.0) * (1 if whose == "attempt" else retries + 1))
    assert int(length) >= min(wanted, STEPS[-1])
    # Either the attempt's timer or the route's bounds an attempt that never answers.
    assert first is None or found.attempt_seconds is not None or whose == "attempt"
