"""Protects a gateway's memory: revisions and services that come and go leave no label sets behind, and a scraper still reads
the last values of those that have just gone."""

from __future__ import annotations

import gc
import tracemalloc

from support.virtual.gateway import NAME, NAMESPACE, VirtualGateway

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.metrics import GONE_SECONDS


def serve(gateway: VirtualGateway, revision: str, now: float) -> None:
    """Replace the service's only revision, and answer ten requests of it."""
    pod = Pod(f"uid-{revision}", f"pod-{revision}", NAMESPACE, NAME, revision, "10.9.0.1:8000")
    gateway.state.replace_pods([pod])
    gateway.state.confirm([pod])
    gateway.state.put_service(Service(NAMESPACE, NAME, "smol", ((revision, 100),)))
    for number in range(10):
        request, _ = gateway.send(now + number)
        gateway.first_token(request, 0.1, now + number + 0.1)
        gateway.end(request, now + number + 0.5, code=200 if number else 503)
    gateway.now = now + 20.0
    gateway.metrics.record_refusal(NAMESPACE, NAME, 503)
    finish(gateway.counting.sweep(gateway.state))
    finish(gateway.picker.sweep(gateway.now))


def series(gateway: VirtualGateway, text: str) -> int:
    return sum(text in line for line in gateway.metrics.text().decode().splitlines())


def test_a_revision_that_is_gone_is_shown_for_a_while_and_then_forgotten() -> None:
    gateway = VirtualGateway()
    serve(gateway, "old", 0.0)
    serve(gateway, "new", 100.0)
    gateway.now = 120.0 + GONE_SECONDS - 1.0
    finish(gateway.counting.sweep(gateway.state))
    assert series(gateway, 'revision="old"') > 30
    gateway.now += 1.0
    finish(gateway.counting.sweep(gateway.state))
    assert series(gateway, 'revision="old"') == 0
    assert series(gateway, 'revision="new"') > 30
    assert series(gateway, 'requests_total{code="503",namespace="team",revision="",service="chat"') == 1


def test_a_revision_with_a_request_in_flight_is_not_gone() -> None:
    gateway = VirtualGateway()
    serve(gateway, "old", 0.0)
    gateway.send(30.0)
    serve(gateway, "new", 100.0)
    gateway.now += 2 * GONE_SECONDS
    gateway.ledger.expire = lambda *_: iter(())  # type: ignore[method-assign]
    finish(gateway.counting.sweep(gateway.state))
    assert series(gateway, 'revision="old"') > 30


def test_a_service_that_is_gone_takes_its_refusals_and_wake_ups_along() -> None:
    gateway = VirtualGateway()
    serve(gateway, "a", 0.0)
    gateway.metrics.record_wakeup((NAMESPACE, NAME))
    gateway.state.remove_service((NAMESPACE, NAME))
    gateway.state.replace_pods([])
    for later in (0.0, GONE_SECONDS):
        gateway.now += later
        finish(gateway.counting.sweep(gateway.state))
    assert series(gateway, 'service="chat"') == 0


def test_memory_is_flat_over_fifty_revisions_that_come_and_go() -> None:
    gateway, taken = VirtualGateway(), []
    tracemalloc.start()
    try:
        for number in range(60):
            serve(gateway, f"revision-{number}", 400.0 * number)
            if number in (9, 59):
                finish(gateway.windows.sweep(400.0 * number + 10_000.0))
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    before, after = taken
    assert after - before < 10_000, f"{(after - before) / 50:.0f} bytes a revision"
