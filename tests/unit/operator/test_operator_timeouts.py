"""Protects the way of a time-out from a gateway's document to a rollback."""

from __future__ import annotations

from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.gateway_slices import slices
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import Status


def test_a_canary_whose_requests_time_out_is_rolled_back_whatever_share_may_fail() -> None:
    pieces = [
        {"start": 2 * index, "revision": revision, "stratum": "0-63", "started": requests, "requests": requests, **more}
        for index in range(120)
        for revision, requests, more in (("s", 18, {"errors": 0}), ("c", 2, {"errors": 1, "timeouts": 1}))
    ]
    document = {"version": 3, "instance": "g", "now": 240.0, "sliceSeconds": 2, "slices": pieces}
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=tuple(slices(document)))
    verdict = guard.assess(observation, Guard((), 0.6, 0, "hold", 600.0), Comparison("s", "c", 0.0, 240.0))
    assert verdict is not None
    assert verdict.reason == "Timeouts", verdict.record.message
