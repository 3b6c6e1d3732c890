"""Late first tokens ask for more replicas, but not while a replica is new: the crowd that meets it is no shortage."""

import pytest

from pagefleet_operator.domain.demand import demand
from pagefleet_operator.domain.load import Totals
from pagefleet_operator.domain.sample import Sample, ServiceLoad
from pagefleet_operator.domain.spec_scaling import Scaling


def entry(time: float, serving: int) -> Sample:
    return Sample(time, serving, serving, running=40 * serving, pages=300 * serving, total_pages=1000 * serving)


@pytest.mark.parametrize(("joined", "late"), [(20.0, False), (50.0, False), (65.0, True), (600.0, True)])
def test_a_new_replica_explains_late_first_tokens(joined: float, late: bool) -> None:
    now = 1000.0
    times = [now - 5.0 * back for back in range(1, 180)]
    history = tuple(entry(time, 8 if time >= now - joined else 7) for time in reversed(times))
    seen = Totals(entry(now, 8), slots=128, history=history)
    load = ServiceLoad(age=2.0, arrivals=(10.0,) * 90, ttft=3.0)
    found = demand(seen, load, Scaling(min=1, max=20, ttft=2.0), 60.0, 60.0, 900.0)
    assert (found.steady > 8) is late
