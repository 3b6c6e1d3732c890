"""Protects the signal `fallbacks` of the guard: a revision whose requests the fallback service has to answer is rolled back, with
both shares; one whose requests fall back as those of the stable, rarely, or for less than a minute, is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.virtual.gateway import CANARY, STABLE, VirtualGateway
from support.virtual.traffic import SLICE

from pagefleet_gateway.cluster.service import Service
from pagefleet_operator.domain.analysis import guard
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status

GUARD = Guard((), None, 5, "hold", 600.0, max_fallback_rate=0.02)


def traffic(stable: tuple[int, int], canary: tuple[int, int], slices: int = 60, begin: int = 0) -> list[Slice]:
    """In each slice so many requests that a revision answers, and that another service answers for it."""
    return [
        Slice("g", index * SLICE, SLICE, revision, "s", answered, 0, started=answered, fell_back=fell_back)
        for index in range(begin, begin + slices)
        for revision, (answered, fell_back) in ((STABLE, stable), (CANARY, canary))
    ]


def judge(pieces: list[Slice] | None, given: Guard = GUARD, **more: object) -> Verdict | None:
    slices = None if pieces is None else tuple(pieces)
    observation = Observation("ns", "chat", "uid", 1, {}, Status(), slices=slices)
    return guard.assess(observation, given, Comparison(STABLE, CANARY, 0.0, 1000.0, **more))


def test_a_canary_whose_requests_fall_back_is_rolled_back_with_both_shares() -> None:
    verdict = judge(traffic((10, 0), (5, 5)))
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == (Outcome.REGRESSED, "Fallbacks")
    message = verdict.record.message
    assert message.startswith(
        "fallbacks: 295 of 590 canary requests were answered by the fallback service (50.00%, limit 2.00%)"
    )
    assert "; 0 of 600 of the stable (0.00%); within 120 s; source Gateway" in message
    assert [(one.signal, one.outcome) for one in verdict.signals] == [("fallbacks", "Regressed")]


@pytest.mark.parametrize(
    ("stable", "canary"),
    [((5, 5), (5, 5)), ((10, 0), (10, 0)), ((0, 10), (0, 10)), ((81, 9), (9, 1)), ((9, 1), (81, 9))],
)
def test_a_canary_whose_requests_fall_back_as_those_of_the_stable_is_not(
    stable: tuple[int, int], canary: tuple[int, int]
) -> None:
    verdict = judge(traffic(stable, canary, slices=600))
    assert verdict is not None
    assert verdict.outcome is Outcome.PASSED, verdict.record.message
    assert ("the stable revision falls back as often" in verdict.record.message) is (canary[1] > 0)


@pytest.mark.parametrize("after_promotion", [False, True])
@pytest.mark.parametrize(("slices", "convicted"), [(25, False), (100, True)])
def test_fallbacks_of_less_than_a_minute_roll_nothing_back(slices: int, convicted: bool, after_promotion: bool) -> None:
    """25 slices are 50 seconds."""
    stable = (0, 0) if after_promotion else (10, 0)
    pieces = [*traffic(stable, (10, 0), 100), *traffic(stable, (0, 10), slices, 100)]
    pieces += traffic(stable, (10, 0), 300, 100 + slices)
    reasons = set()
    for end in range(200, len(pieces), 10):
        verdict = judge(pieces[:end], after_promotion=after_promotion)
        assert verdict is not None
        reasons.add(verdict.reason)
    assert reasons == ({"", "Fallbacks"} if convicted else {""})


def test_a_promoted_revision_without_pods_is_rolled_back_although_nothing_ended_and_nothing_failed() -> None:
    pieces = traffic((0, 0), (0, 4), slices=90)
    verdict = judge(pieces, after_promotion=True)
    assert verdict is not None and verdict.reason == "Fallbacks"
    with_errors = judge(pieces, replace(GUARD, max_fallback_rate=None, max_error_rate=0.01), after_promotion=True)
    assert with_errors is not None and with_errors.reason == "", "a fallback is no error of the revision"


def test_the_verdict_on_errors_names_the_fallbacks_too() -> None:
    verdict = judge(traffic((10, 0), (5, 5)), replace(GUARD, max_fallback_rate=None, max_error_rate=0.01))
    assert verdict is not None and verdict.outcome is Outcome.PASSED
    shown = "errors: 0 of 295 canary requests failed (0.00%, limit 1.00%), 295 more were answered by the fallback service; 0 of 600"
    assert verdict.record.message.startswith(shown)


def test_what_is_not_measured_is_not_judged() -> None:
    assert judge(traffic((10, 0), (0, 10)), mirrored=True) is None
    silent = judge(None)
    assert silent is not None and silent.outcome is Outcome.INCONCLUSIVE
    assert silent.record.message.startswith("fallbacks: no measurement to judge by")
    few = judge(traffic((10, 0), (1, 0), slices=9))
    assert few is not None and "requests needed" in few.record.message


def test_the_gateway_counts_a_request_that_falls_back_at_the_revision_that_it_was_drawn_for() -> None:
    gateway = VirtualGateway(pods=1, pod_limit=1, fallback="small", weights=((STABLE, 75), (CANARY, 25)), canary="")
    other = replace(gateway.pods[0], uid="small", name="small", service="small", address="10.9.9.9:8000")
    gateway.state.replace_pods([*gateway.pods, other])
    gateway.state.confirm([*gateway.pods, other])
    gateway.state.put_service(Service(other.namespace, "small", "smol", ((STABLE, 100),)))
    own = 0  # requests until each revision's pod has one
    while not gateway.send(0.0)[1].fallback:
        own += 1
    assert all(gateway.send(0.0)[1].fallback for _ in range(399))
    counted = {piece.revision: piece.fell_back for piece in gateway.slices(10.0) if piece.fell_back}
    assert sum(counted.values()) == 400
    assert counted[CANARY] == pytest.approx(100, abs=4), "by the weights"
    assert sum(piece.started or 0 for piece in gateway.slices(10.0)) == own


@pytest.mark.parametrize(("given", "rate"), [("2%", 0.02), ("0%", 0.0), ("101%", None)])
def test_the_accepted_share_is_read(given: str, rate: float | None) -> None:
    parsed = parse(
        {
            "model": {"source": "file:///m"},
            "traffic": {"fallback": {"service": "small"}},
            "rollout": {"guard": {"fallbacks": {"maxRate": given}}},
        }
    )
    assert isinstance(parsed, Spec) is (rate is not None)
    if isinstance(parsed, Spec):
        assert parsed.rollout.guard.max_fallback_rate == pytest.approx(rate)
        assert not parsed.rollout.guard.empty
    else:
        assert "spec.rollout.guard.fallbacks.maxRate" in str(parsed)
