"""Protects the comparison at equal load, in virtual time with the shipped picker, ledger and windows: one canary pod beside a
pool has other queues than the pool, and its load-adjusted times are still those of the pool when its code is as good. A
worse one shows by its factor. So do the times of whole answers. Every request with an expectation counts exactly once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.virtual.gateway import CANARY, STABLE, VirtualGateway, numbered
from support.virtual.queues import MEAN_TOKENS, QueueTraffic

from pagefleet_contract import sketch
from pagefleet_operator.domain.status.observation import LoadCounts, Slice

STABLE_PODS, RATE, SECONDS = 5, 10.0, 600.0


def played(
    utilisation: float, factor: float = 1.0, seed: int = 1, *, whole: bool = False
) -> tuple[list[Slice], QueueTraffic, VirtualGateway]:
    """Let requests come for SECONDS, a sixth of them to the one canary pod, and then end."""
    names = {STABLE: numbered(STABLE, STABLE_PODS), CANARY: ["alone"]}
    weights = ((STABLE, 83), (CANARY, 17))
    gateway = VirtualGateway(seed, pods=names, weights=weights, canary=CANARY)
    per_pod = RATE * 0.83 / STABLE_PODS * MEAN_TOKENS
    traffic = QueueTraffic(gateway, RATE, utilisation / per_pod, {CANARY: factor}, seed, whole=whole)
    traffic.run(SECONDS)
    traffic.stop()
    traffic.run(10 * SECONDS)
    return gateway.slices(10 * SECONDS + 4), traffic, gateway


def merged(counts: Iterable[LoadCounts], field: str) -> dict[int, int]:
    return sketch.merged([getattr(one, field) for one in counts])


def of(slices: Iterable[Slice], revision: str) -> list[LoadCounts]:
    return [one for piece in slices if piece.revision == revision for one in piece.load.values()]


def ratio(slices: list[Slice], quantile: float, field: str = "relative") -> float:
    values = [sketch.quantile(merged(of(slices, name), field), quantile) for name in (CANARY, STABLE)]
    assert values[0] is not None and values[1]
    return values[0] / values[1]


@pytest.mark.parametrize("utilisation", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("whole", [False, True])
def test_an_equal_canary_of_one_pod_has_equal_relative_times(utilisation: float, whole: bool) -> None:
    """Its seconds are not those of the pool once there are queues."""
    slices, traffic, _ = played(utilisation, whole=whole)
    assert {piece.whole for piece in slices if piece.adjusted} == {whole}
    assert min(traffic.sent.values()) > 800
    for quantile in (0.5, 0.9, 0.95):
        assert 0.87 < ratio(slices, quantile) < 1.15, quantile
    if utilisation > 0.4:
        assert ratio(slices, 0.9, "ttft") > 1.3


@pytest.mark.parametrize("whole", [False, True])
def test_a_slower_canary_shows_by_its_factor(whole: bool) -> None:
    slices, _, _ = played(0.2, factor=2.0, whole=whole)
    for quantile in (0.5, 0.9):
        assert 1.7 < ratio(slices, quantile) < 2.3, quantile


@pytest.mark.parametrize("whole", [False, True])
def test_every_request_with_an_expectation_counts_once(whole: bool) -> None:
    slices, traffic, gateway = played(0.5, whole=whole)
    adjusted = [piece for piece in slices if piece.adjusted]
    begun = min(piece.start for piece in adjusted)
    ended = sum(
        sketch.total(merged(of(slices, name), field))
        for name in (STABLE, CANARY)
        for field in ("relative", "unmeasured")
    )
    late = sum(piece.started or 0 for piece in slices if piece.start > begun + 30)
    assert late <= ended <= sum(traffic.sent.values())
    for name in (STABLE, CANARY):
        assert sketch.total(merged(of(slices, name), "ttft")) == sketch.total(merged(of(slices, name), "relative"))
    by_pod = sum(sketch.total(one) for piece in adjusted for one in piece.pods.values())
    assert by_pod == sketch.total(merged(of(slices, STABLE), "relative")), "all of so few pods are sampled"
    assert {name for piece in adjusted for name in piece.pods} == set(numbered(STABLE, STABLE_PODS))
    assert all(gateway.ledger.load_on(pod, 10 * SECONDS) == (0.0, 0.0) for pod in gateway.pods)
