"""Tokens that take longer than target.tpot ask for more replicas, tokens within it for none; a target that a replica alone cannot keep asks
for none either, because it would ask for more for ever."""

from __future__ import annotations

import pytest

from pagefleet_operator.domain.scaling.demand import Demand, demand
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

NOW, SLOTS = 3000.0, 256
BASE, SLOPE = 0.02, 0.001  # seconds of a step, and of each sequence in it


def needed(serving: int, each: int, target: float | None, base: float = BASE, slope: float = SLOPE) -> Demand:
    """The demand of a fleet that has run with `each` sequences a replica, and now and then with half as many."""

    def entry(time: float) -> Sample:
        running = each if time > NOW - 60 or int(time // 60) % 2 else each // 2
        load = EngineLoad(
            running=serving * running,
            kv_pages_total=1000 * serving,
            kv_pages_free=900 * serving,
            tokens=serving * running / (base + slope * running),
        )
        return Sample(time, serving, serving, load)

    history = tuple(entry(NOW - 5.0 * back) for back in range(360, 0, -1))
    load = ServiceLoad(age=2.0, arrivals=(10.0,) * 180)
    scaling = Scaling(min=1, max=99, target=Targets(tpot=target))
    return demand(Totals(entry(NOW), slots=SLOTS, history=history), load, scaling, 60.0, 60.0, 900.0)


@pytest.mark.parametrize(
    ("target", "least", "most"),
    [
        (None, 0.0, 4.0),  # a replica has 256 slots
        (1.0, 0.0, 4.0),
        (0.3, 0.0, 4.0),
        (0.1, 6.0, 8.0),  # 100 sequences take 120 ms a token: a replica may run 60 of them within 80 ms
    ],
)
def test_a_token_that_takes_too_long_asks_for_more_replicas(target: float | None, least: float, most: float) -> None:
    need = needed(4, 100, target)
    assert least <= need.steady <= most
    assert ("ms per token" in need.why) is (target is not None)


@pytest.mark.parametrize("each", [4, 30, 59])
def test_a_fleet_within_the_target_is_left_alone(each: int) -> None:
    assert needed(4, each, 0.1).steady <= 4.0 * (1 + 1 / (4 * each) ** 0.5)


@pytest.mark.parametrize("each", [4, 40, 200])
def test_a_target_that_one_sequence_alone_does_not_keep_asks_for_nothing(each: int) -> None:
    asked, without = needed(4, each, 0.1, base=0.15), needed(4, each, None, base=0.15)
    assert asked.steady == without.steady
    assert "which more replicas cannot reach" in asked.why


def test_no_replica_is_asked_for_less_than_a_sequence() -> None:
    """Two requests on an engine whose speed is not known yet, and is far from the target."""
    load = EngineLoad(running=2, kv_pages_total=1000, kv_pages_free=900, tokens=2.0)
    totals = Totals(Sample(NOW, 1, 1, load), slots=SLOTS, history=())
    need = demand(
        totals,
        ServiceLoad(age=2.0, arrivals=(0.1,) * 180),
        Scaling(min=1, max=99, target=Targets(tpot=0.1)),
        60.0,
        60.0,
        900.0,
    )
    assert need.steady <= 2 * (1 + 1 / 2**0.5)
