"""Protects what a simulated fault does: a hung replica takes no step and looks idle until it goes on, and engines that cannot be read
leave a scaler with what the gateways count."""

from __future__ import annotations

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.faults import Fault, Hang, Outage
from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.hpa import Hpa, Metric
from pagefleet_simulator.scalers.ours import Ours, reading
from pagefleet_simulator.simulation import Setting, Simulation

PROFILE = profiles.load("h100-llama-8b")
ARRIVALS = [Arrival(0.5 * number, 200, 50) for number in range(600)]


class Watched(Hpa):
    """An HPA that keeps what it was shown."""

    seen: list[View]

    def decide(self, view: View, memory: object, bounds: Bounds) -> Decision:
        self.seen.append(view)
        return super().decide(view, memory, bounds)  # type: ignore[arg-type]


def simulation(*faults: Fault) -> tuple[Simulation, list[View]]:
    scaler = Watched(1000.0, Metric.CONCURRENCY)
    object.__setattr__(scaler, "seen", seen := list[View]())
    setting = Setting(PROFILE, Bounds(2, 2), 2, faults=faults)
    return Simulation(setting, scaler, ARRIVALS, 300.0), seen


def test_a_hung_replica_serves_its_requests_late_and_reports_nothing_meanwhile() -> None:
    healthy, _ = simulation()
    hung, seen = simulation(Hang(100.0, 200.0))
    latest = max(one for one in healthy.run().latencies.ttft)
    outcome = hung.run()
    late = [one for one in outcome.latencies.ttft if one > latest]
    assert outcome.served == len(ARRIVALS) and 0 < len(late) < 20 and max(late) > 80
    during = [view for view in seen if 120 < view.now < 200]
    assert during and all(view.pods[0].load.running == view.pods[0].load.tokens == 0 for view in during)
    assert any(view.pods[1].load.running for view in during)


def test_in_an_outage_no_engine_is_read_and_the_gateways_count_on() -> None:
    running, seen = simulation(Outage(100.0, 200.0))
    running.run()
    blind = [view for view in seen if 100 <= view.now < 200]
    assert blind and not any(view.read for view in blind) and all(view.sums.running == 0 for view in blind)
    assert all(view.arrivals for view in blind)
    assert all(pod.load is None for view in blind for pod in reading(view, ()).pods)
    assert all(view.read for view in seen if view not in blind)


def test_ours_grows_by_the_gateways_counts_in_an_outage() -> None:
    rising = [Arrival(at / 40, 800, 200) for at in range(40 * 300)]
    calm = [Arrival(at / 2, 800, 200) for at in range(600)]
    arrivals = [*calm, *(Arrival(300 + one.at, one.prompt, one.output) for one in rising)]
    setting = Setting(PROFILE, Bounds(1, 8), 1, faults=(Outage(290.0, 600.0),))
    outcome = Simulation(setting, Ours(Scaling(min=1, max=8)), arrivals, 600.0).run()
    assert any(event.after > event.before and 300 < event.time < 600 for event in outcome.events)
