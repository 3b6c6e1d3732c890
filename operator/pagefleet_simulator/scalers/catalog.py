"""Scalers by name, and the settings of each that a calibration chooses from."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.view import Scaler
from pagefleet_simulator.results.outcome import Objective
from pagefleet_simulator.scalers.dynamo import Dynamo, Sla
from pagefleet_simulator.scalers.hpa import Hpa, Metric
from pagefleet_simulator.scalers.keda import Keda
from pagefleet_simulator.scalers.kpa import Kpa, Rules
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.scalers.wva import Thresholds, Wva

PEERS = ("hpa", "kpa", "keda", "wva", "dynamo")
NAMES = ("ours", *PEERS)
CONCURRENCIES = (0.1, 0.15, 0.2, 0.28, 0.36, 0.5)  # of a replica's seats
QUEUES = (2.0, 8.0)
BUSY = (0.7,)
FREE_PAGES = (0.2, 0.5, 0.65, 0.75, 0.82)


def ours(scaling: Scaling) -> list[Scaler]:
    """Ours with other targets, for comparison: a user might try them, as the others' settings are tried."""
    return [Ours(replace(scaling, target=replace(scaling.target, free_kv_pages=free))) for free in FREE_PAGES]


def candidates_of(name: str, profile: Profile, scaling: Scaling, objective: Objective) -> list[Scaler]:
    """The settings that a calibration tries, the project's defaults among them. Raises KeyError for an unknown name.

    Ours has only the manifest's setting. HPA and KEDA may choose their metric as well as its target.
    """
    seats = [max(1.0, round(share * profile.max_sequences)) for share in CONCURRENCIES]
    by_name: dict[str, list[Scaler]] = {
        "ours": [Ours(scaling)],
        "hpa": [
            *(Hpa(target, Metric.CONCURRENCY) for target in seats),
            *(Hpa(target, Metric.QUEUE) for target in QUEUES),
            *(Hpa(target, Metric.BUSY) for target in BUSY),
        ],
        "kpa": [Kpa(target / Rules().utilization) for target in seats],
        "keda": [
            *(Keda(target, Metric.CONCURRENCY) for target in seats),
            *(Keda(target, Metric.QUEUE) for target in QUEUES),
        ],
        "wva": [
            Wva(),
            *(
                Wva(Thresholds(kv, queue, spare, 3.0))
                for kv in (0.5, 0.4, 0.3)
                for queue in (5.0,)
                for spare in (0.1, 0.2)
            ),
        ],
        "dynamo": [
            Dynamo(),
            *(
                Dynamo(Sla(objective.ttft * share, objective.tpot * share, sensitivity))
                for share in (1.0, 0.5, 0.25)
                for sensitivity in (0.8,)
            ),
        ],
    }
    return by_name[name]


def describe(scaler: Scaler) -> str:
    """The setting in words."""
    match scaler:
        case Ours(scaling=scaling):
            target = scaling.target
            ttft = f", ttft {target.ttft:g} s" if target.ttft is not None else ""
            return f"queueDepth {target.queue_depth:g}, freeKVPages {target.free_kv_pages:.0%}{ttft}"
        case Hpa(target=target, metric=metric) | Keda(target=target, metric=metric):
            return f"{metric.value} {target:g} per pod"
        case Kpa(concurrency=concurrency, rules=rules):
            return f"concurrency {concurrency:.0f} at {rules.utilization:.0%}"
        case Wva(thresholds=rules):
            return f"kv {rules.kv:g}, queue {rules.queue:g}, spare {rules.spare_kv:g} / {rules.spare_queue:g}"
        case Dynamo(sla=sla):
            return f"ttft {sla.ttft:g} s, itl {sla.itl:g} s, sensitivity {sla.sensitivity:.0%}"
        case _:
            return ""
