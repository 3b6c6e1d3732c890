"""Protects the capacity plan's comparison against real traffic's chance: on simulated engines with Poisson arrivals, prompts between the
answers and lognormal lengths, numbers that a run itself shows are as planned, and numbers that are a third off are found, once each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagefleet_operator.domain.capacity_plan.record import Subject, record
from pagefleet_operator.domain.scaling.load import remember, sample
from pagefleet_operator.domain.spec.capacity_plan import Assumption, CapacityPlan
from pagefleet_operator.domain.status.records.capacity_plan import CapacityPlanRecord, Finding
from pagefleet_operator.domain.status.sample import Sample
from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.ours import REVISION, load, reading
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.traces import synthetic

PROFILE = profiles.load("h100-llama-8b")
LENGTHS = synthetic.Lengths()
RATE, HOURS = 6.0, 1.5  # requests per second of the peak, for one replica
RIGHT = {
    Assumption.RATE: RATE,
    Assumption.OUTPUT_TOKENS: LENGTHS.means[1],
    Assumption.KV_TOKENS: 1250.0,  # the prompt and half of the answer, and longer answers are held for longer
    Assumption.THROUGHPUT: 1080.0,
    Assumption.KV_CACHE: float(PROFILE.capacity),
}
CONCURRENCY = 10.0


@dataclass
class Comparing:
    """A scaler that changes nothing and compares each `plan` with what it sees."""

    plans: dict[str, CapacityPlan]
    arrivals: tuple[synthetic.Arrival, ...]
    name: str = "comparing"
    period: float = 5.0
    removal: Removal = Removal.IDLEST
    turns: dict[tuple[str, str], list[Finding]] = field(default_factory=dict)

    def start(self) -> tuple[tuple[Sample, ...], dict[str, CapacityPlanRecord | None]]:
        return (), dict.fromkeys(self.plans)

    def decide(
        self, view: View, memory: tuple[tuple[Sample, ...], dict[str, CapacityPlanRecord | None]], bounds: Bounds
    ) -> Decision:
        history, before = memory
        seen = reading(view, history)
        sent: dict[int, int] = {}
        for arrival in self.arrivals:
            if view.now - 1860 < arrival.at <= view.now:
                sent[int(arrival.at // 30)] = sent.get(int(arrival.at // 30), 0) + 1
        service = replace(load(view), started={REVISION: sent})
        made = {}
        for name, plan in self.plans.items():
            made[name] = record(plan, [Subject(seen, 0.0, PROFILE.page_size)], service, before[name], view.now)
            for one in made[name].assumptions if made[name] is not None else ():  # type: ignore[union-attr]
                turns = self.turns.setdefault((name, one.name), [])
                if one.finding and one.finding not in turns[-1:]:
                    turns.append(one.finding)
        return Decision(view.desired, (remember(history, sample(seen, view.now)), made))


def test_right_numbers_hold_and_wrong_ones_are_found_once() -> None:
    trace = synthetic.build("waves", RATE, 5, HOURS, LENGTHS)

    def plan(factor: float) -> CapacityPlan:
        return CapacityPlan(0.15, {name: value * factor for name, value in RIGHT.items()}, 1, CONCURRENCY)

    watching = Comparing({"right": plan(1.0), "more": plan(1.35), "less": plan(0.7)}, trace.arrivals)
    Simulation(Setting(PROFILE, Bounds(1, 1), seed=5), watching, trace.arrivals, trace.seconds).run()
    found = {
        name: {key[1]: turns for key, turns in watching.turns.items() if key[0] == name} for name in watching.plans
    }
    everywhere = list(map(str, RIGHT))
    assert found["right"] == {name: [Finding.HOLDS] for name in everywhere}
    assert found["more"].pop("requestsPerSecond") == [Finding.HOLDS]
    assert found["more"] == {name: [Finding.BELOW] for name in everywhere if name != "requestsPerSecond"}
    rate = found["less"].pop("requestsPerSecond")
    assert rate == [Finding.HOLDS, Finding.ABOVE], "a quiet beginning, then a peak"
    assert found["less"] == {name: [Finding.ABOVE] for name in everywhere if name != "requestsPerSecond"}
