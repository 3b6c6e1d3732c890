"""The simulation of flows agrees with the simulation of single requests where both can run, and its books balance."""

from dataclasses import dataclass

import numpy as np
import pytest

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.capacity import sustainable
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, Scaler, View
from pagefleet_simulator.fluid import FluidSimulation
from pagefleet_simulator.results.outcome import Objective, Outcome
from pagefleet_simulator.scalers.hpa import Hpa, Metric
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.traces import synthetic
from pagefleet_simulator.traces.flow import flow

PROFILE = profiles.load("h100x4-llama-70b")
LENGTHS = synthetic.Lengths()
OBJECTIVE = Objective(ttft=2.0, tpot=0.1)


@dataclass(frozen=True)
class Fixed:
    """A scaler that always asks for the same number of replicas."""

    replicas: int
    name: str = "fixed"
    period: float = 15.0
    removal: Removal = Removal.NEWEST

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None, bounds: Bounds) -> Decision:
        return Decision(self.replicas, memory)


def both(name: str, scaler: Scaler, hours: float = 0.5) -> tuple[Outcome, Outcome]:
    trace = synthetic.build(name, 3 * sustainable(PROFILE, *LENGTHS.means), 5, hours, LENGTHS)
    at, prompts, outputs = np.array([(one.at, one.prompt, one.output) for one in trace.arrivals], dtype=float).T
    setting = Setting(PROFILE, Bounds(1, 8), initial=3, seed=5)
    single = Simulation(setting, scaler, trace.arrivals, trace.seconds).run()
    return single, FluidSimulation(setting, scaler, flow(at, prompts, outputs, trace.seconds)).run()


@pytest.mark.parametrize("name", ["steady", "step"])
def test_flows_cost_what_requests_cost(name: str) -> None:
    single, fluid = both(name, Hpa(60.0, Metric.CONCURRENCY))
    assert fluid.accelerator_hours == pytest.approx(single.accelerator_hours, rel=0.12)
    assert fluid.attainment(OBJECTIVE) == pytest.approx(single.attainment(OBJECTIVE), abs=0.04)
    medians = [one.latencies.quantile(one.latencies.tpot, 0.5) for one in (single, fluid)]
    assert medians[1] == pytest.approx(medians[0], rel=0.15)


def test_an_overload_has_the_same_depth() -> None:
    """One replica for three replicas' work: both must serve the same share and miss the objective alike."""
    single, fluid = both("steady", Fixed(1), hours=0.2)
    assert fluid.attainment(OBJECTIVE) == pytest.approx(single.attainment(OBJECTIVE), abs=0.06)
    assert fluid.dropped == pytest.approx(single.dropped, rel=0.15)


def test_flows_are_conserved_and_the_operator_scales_them() -> None:
    _, fluid = both("step", Ours(Scaling(min=1, max=8)))
    assert fluid.served + fluid.dropped + fluid.left == pytest.approx(fluid.requests, rel=1e-6)
    assert fluid.latencies.weight.sum() <= fluid.requests * (1 + 1e-9)
    assert fluid.events


@pytest.mark.parametrize("hold", [10.0, 600.0])
def test_requests_that_come_before_the_first_pod_are_held_and_then_served_or_refused(hold: float) -> None:
    """From zero replicas, as after a sleep: the same share is refused, and what is held long enough is served."""
    trace = synthetic.build("steady", sustainable(PROFILE, *LENGTHS.means), 5, 0.2, LENGTHS)
    at, prompts, outputs = np.array([(one.at, one.prompt, one.output) for one in trace.arrivals], dtype=float).T
    setting = Setting(PROFILE, Bounds(0, 8), initial=0, seed=5, hold=hold)
    single = Simulation(setting, Fixed(3), trace.arrivals, trace.seconds).run()
    fluid = FluidSimulation(setting, Fixed(3), flow(at, prompts, outputs, trace.seconds)).run()
    shares = [one.dropped / one.requests for one in (single, fluid)]
    assert shares[1] == pytest.approx(shares[0], abs=0.03)
    assert all(share == 0 for share in shares) if hold == 600.0 else min(shares) > 0.02
    assert fluid.served + fluid.dropped + fluid.left == pytest.approx(fluid.requests, rel=1e-6)
