"""Protects the window of an error budget: it rolls, and holds no less time than spec.slo.window says."""

from __future__ import annotations

import pytest

from pagefleet_contract.slo import objectives
from pagefleet_operator.domain.slo.attainment import Attainment
from pagefleet_operator.domain.slo.budget import record
from pagefleet_operator.domain.slo.days import DAY_SECONDS
from pagefleet_operator.domain.spec.schema.slo import SLO
from pagefleet_operator.domain.status.observation import Slice

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
