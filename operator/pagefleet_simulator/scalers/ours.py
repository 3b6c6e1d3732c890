"""Pagefleet's own autoscaler: the operator's function itself, which gets the operator's own observation types.

This module decides nothing. `RECOMMEND` and `SIZE` are the very objects that the operator calls (a test holds that).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagefleet_operator.domain.scaling import autoscale
from pagefleet_operator.domain.scaling.load import Totals, remember, totals
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import PodFault, PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import Bounds, Decision, PodView, View

RECOMMEND, SIZE = autoscale.recommend, autoscale.size
REVISION = "simulated"
LARGE = 256  # replicas from which on pods are summed up by the simulation


@dataclass(frozen=True)
class Memory:
    record: ScalingRecord = field(default_factory=lambda: ScalingRecord(REVISION))
    history: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Ours:
    """`scaling` is `.spec.scaling` as the operator parses it; its bounds are replaced by the simulation's."""

    scaling: Scaling
    name: str = "ours"
    period: float = 5.0
    removal: Removal = Removal.IDLEST

    def start(self) -> Memory:
        return Memory()

    def decide(self, view: View, memory: Memory, bounds: Bounds) -> Decision:
        scaling = replace(self.scaling, min=bounds.min, max=bounds.max)
        service = load(view)
        if view.sums.ready + view.sums.starting <= LARGE:
            observed = reading(view, memory.history)
            sums = totals(observed, view.now)
            recommended = RECOMMEND(observed, service, view.desired, memory.record, scaling, view.now)
        else:
            sums = summed(view, memory.history)
            recommended = SIZE(sums, service, view.desired, memory.record, scaling, view.now)
        return Decision(
            recommended.replicas, Memory(recommended.record, remember(memory.history, sums.latest)), recommended.message
        )


def reading(view: View, history: tuple[Sample, ...]) -> RevisionReading:
    pods = tuple(_pod(pod, view.read) for pod in view.pods)
    return RevisionReading(REVISION, view.desired, pods, history, slots=view.slots)


def _pod(pod: PodView, read: bool) -> PodReading:
    started = pod.ready_since is not None and pod.ready_since > pod.created  # the pod was created during the simulation
    serving = pod.ready or pod.draining
    return PodReading(
        name=pod.name,
        ready=pod.ready,
        terminating=pod.draining,
        created=pod.created,
        ready_since=pod.ready_since,
        fault=PodFault("Unschedulable", "no accelerator is free") if pod.stuck else None,
        load=pod.load if serving and read else None,
        load_age=0.0 if serving and read else None,
        startup=pod.ready_since - pod.created if started and pod.ready_since is not None else None,
    )


def summed(view: View, history: tuple[Sample, ...]) -> Totals:
    sums = view.sums
    latest = Sample(
        time=view.now,
        serving=sums.ready,
        fresh=sums.ready if view.read else 0,
        load=EngineLoad(
            running=round(sums.running),
            waiting=round(sums.waiting),
            waiting_tokens=round(sums.waiting_tokens),
            kv_pages_total=round(sums.kv_pages_total),
            kv_pages_free=round(sums.kv_pages_total) - round(sums.kv_pages_used),
            preemptions=sums.preemptions,
            tokens=sums.tokens,
        ),
        unqueued=sums.unqueued,
    )
    refused = "no accelerator is free" if sums.stuck else ""
    return Totals(latest, sums.starting, sums.stuck, refused, view.slots, history, view.startups)


def load(view: View) -> ServiceLoad:
    return ServiceLoad(
        age=view.now - view.arrivals_end,
        held=view.held,
        arrivals=view.arrivals,
        step=10.0,
        ttft=view.ttft,
        tokens=view.sums.tokens,
    )
