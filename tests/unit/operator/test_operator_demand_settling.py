"""Late first tokens ask for more replicas, but not while a replica is new: the crowd that meets it is no shortage. What
piles up while replicas start is ordered with them, and a fleet that has just begun is not yet known well enough to shrink."""

from dataclasses import replace

import pytest

from pagefleet_operator.domain.scaling.autoscale import size
from pagefleet_operator.domain.scaling.demand import demand
from pagefleet_operator.domain.scaling.load import Totals, remember
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScaleStep, ScalingRecord


def entry(time: float, serving: int) -> Sample:
    load = EngineLoad(running=40 * serving, kv_pages_total=1000 * serving, kv_pages_free=700 * serving)
    return Sample(time, serving, serving, load)


@pytest.mark.parametrize(("joined", "late"), [(20.0, False), (110.0, False), (125.0, True), (600.0, True)])
def test_a_new_replica_explains_late_first_tokens(joined: float, late: bool) -> None:
    now = 1000.0
    times = [now - 5.0 * back for back in range(1, 180)]
    history = tuple(entry(time, 8 if time >= now - joined else 7) for time in reversed(times))
    totals = Totals(entry(now, 8), slots=128, history=history)
    load = ServiceLoad(age=2.0, arrivals=(10.0,) * 90, ttft=3.0)
    scaling = Scaling(min=1, max=20, target=Targets(ttft=2.0))
    need = demand(totals, load, scaling, 60.0, 60.0, 900.0)
    assert (need.steady > 8) is late and need.late is (True if late else None)
    early = demand(totals, replace(load, ttft=0.5), scaling, 60.0, 60.0, 900.0)
    assert early.late is (False if late else None), "first tokens do not tell of the new replica yet"
    assert not demand(totals, load, Scaling(min=1, max=20), 60.0, 60.0, 900.0).late


def load_of(before: float, now: float, steps: int = 2) -> ServiceLoad:
    return ServiceLoad(age=2.0, arrivals=(before,) * (180 - steps) + (now,) * steps)


@pytest.mark.parametrize(("startup", "least", "most"), [(1.0, 24.0, 28.0), (60.0, 67.0, 71.0)])
def test_what_piles_up_during_a_start_is_ordered_with_the_rest(startup: float, least: float, most: float) -> None:
    """8 replicas with 40 sequences each at 10 requests/s; then 40 requests/s for 20 s. A start of a second leaves nothing
    behind; in one of a minute more than twice as much again piles up: at most three times what is asked for counts."""
    now = 3000.0
    running = [24, 36, 40, 30]
    history = tuple(
        Sample(
            t,
            8,
            8,
            EngineLoad(running=8 * r, kv_pages_total=8000, kv_pages_free=5600, tokens=8 * r / (0.02 + 0.0008 * r)),
        )
        for t, r in ((now - 5.0 * back, running[back // 12 % 4]) for back in range(360, 0, -1))
    )
    totals = Totals(replace(history[-1], time=now), slots=64, history=history)
    need = demand(totals, load_of(10.0, 40.0), Scaling(min=1, max=99), startup, 60.0, 900.0)
    assert least <= need.steady <= most
    calm = demand(totals, load_of(10.0, 10.0), Scaling(min=1, max=99), startup, 60.0, 900.0)
    assert calm.steady < 8, "nothing piles up where enough serve"


@pytest.mark.parametrize(("seconds", "known"), [(160, False), (320, False), (370, True)])
def test_a_fleet_that_has_just_begun_has_no_peak(seconds: int, known: bool) -> None:
    now = 3000.0
    history = tuple(entry(now - back, 8) for back in range(seconds, 0, -5))
    totals = Totals(entry(now, 8), slots=128, history=history)
    need = demand(totals, load_of(10.0, 10.0), Scaling(min=1, max=20), 60.0, 60.0, 900.0)
    assert (need.peak is not None) is known
    assert need.calm_peak is None


@pytest.mark.parametrize("stabilization", [600.0, 3600.0, 86400.0])
def test_a_fleet_comes_down_also_with_a_window_that_no_readings_cover(stabilization: float) -> None:
    """Readings are kept for half an hour. A window of an hour, as an HPA may have one, must not hold every replica forever."""
    now, replicas, history = 10_000.0, 8, tuple[Sample, ...]()
    record, scaling = ScalingRecord("a", startup=60.0), Scaling(1, 8, stabilization=stabilization)
    for _ in range(100):
        now += 20.0
        idle = Sample(now, replicas, replicas, EngineLoad(kv_pages_total=1000, kv_pages_free=1000, tokens=0.0))
        found = size(
            Totals(idle, slots=64, history=history),
            ServiceLoad(2.0, arrivals=(0.0,) * 360),
            replicas,
            record,
            scaling,
            now,
        )
        replicas, record, history = found.replicas, found.record, remember(history, idle)
    assert replicas < 8
    grown = replace(record, steps=(ScaleStep(now - 3500.0, 1),))
    idle = replace(idle, serving=8, fresh=8)
    found = size(
        Totals(idle, slots=64, history=history), ServiceLoad(2.0, arrivals=(0.0,) * 360), 8, grown, scaling, now
    )
    assert (found.replicas < 8) is (stabilization < 3500.0), "nothing shrinks for so long after an increase"
