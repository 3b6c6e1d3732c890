"""Protects an error budget from counts that are missing: its window rolls and holds no less time than spec.slo.window says, and
promises that nobody counts are named."""

from __future__ import annotations

import pytest

from pagefleet_contract.slo import objectives
from pagefleet_operator.domain.slo.attainment import Attainment
from pagefleet_operator.domain.slo.budget import record
from pagefleet_operator.domain.slo.days import DAY_SECONDS
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema.slo import SLO
from pagefleet_operator.domain.status.gateway_api import Features, GatewayApiReading
from pagefleet_operator.domain.status.observation import Observation, Slice
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.domain.traffic.gateway_api import ENFORCED, route

MIDNIGHT = 20_000 * DAY_SECONDS
PROMISED = objectives({"objectives": [{"name": "up", "signal": "errors", "maxRate": "5%"}]})


@pytest.mark.parametrize("days", [1, 7, 90])
def test_an_outage_before_midnight_counts_until_the_window_has_passed_it(days: int) -> None:
    """A window of a day that began at midnight would say of ten minutes ago that nothing has been missed."""
    attainment, slo = Attainment(), SLO(days * DAY_SECONDS, PROMISED)
    attainment.add([Slice("g", MIDNIGHT - 600, 2.0, "", "", 0, 0, slo={PROMISED[0].key: (1000, 100)})])
    left = []
    for now in (MIDNIGHT - 300, MIDNIGHT, MIDNIGHT + slo.window - 601, MIDNIGHT + slo.window):
        made = record(slo, attainment.reading(now), None, now)
        left.append(made.objectives[0].left if made is not None else 0)
    assert left == [-1.0, -1.0, -1.0, None]


@pytest.mark.parametrize(("served", "named"), [(Features("v1"), True), (Features("v1", pool="v1"), False)])
def test_promises_that_no_gateway_counts_have_no_effect(served: Features, named: bool) -> None:
    """Behind a route to Services SLOMet would say for ever that no request has counted yet."""
    traffic = {"provider": "GatewayAPI", "gatewayAPI": {"parentRefs": [{"name": "edge"}]}}
    raw = {
        "model": {"source": "hf://o/m"},
        "traffic": traffic,
        "slo": {"objectives": [{"name": "up", "signal": "errors", "maxRate": "5%"}]},
    }
    spec, status = parse(raw), Status(stable="a")
    assert isinstance(spec, Spec)
    made = route(
        Observation("ns", "chat", "u", 1, raw, status, {}, gateway_api=GatewayApiReading(served)), spec, status
    )
    enforced = next(message for kind, _, _, message in made.conditions if kind == ENFORCED)
    assert ("spec.slo.objectives" in enforced) is named
