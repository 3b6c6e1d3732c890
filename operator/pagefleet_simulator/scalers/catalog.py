"""Scalers by name, and the settings of each that a calibration chooses from."""

from __future__ import annotations

from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.queueing import highest_rate, velocity
from pagefleet_simulator.fleet.view import Scaler
from pagefleet_simulator.results.outcome import Objective
from pagefleet_simulator.scalers.dynamo import Dynamo, Sla
from pagefleet_simulator.scalers.dynamo_thresholds import LATENCY, DynamoThresholds, Target
from pagefleet_simulator.scalers.hpa import Behavior, Hpa, Metric
from pagefleet_simulator.scalers.keda import Keda
from pagefleet_simulator.scalers.kpa import Kpa, Rules
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.scalers.rated import DynamoSla, TokenScale, WvaQueueing
from pagefleet_simulator.scalers.wva import Thresholds, Wva
from pagefleet_simulator.scalers.wva_tokens import Limits, WvaTokens

PEERS = (
    "hpa", "kpa", "keda", "wva", "wva-tokens", "wva-queueing", "dynamo", "dynamo-thresholds", "dynamo-sla", "tokenscale",
)  # fmt: skip
NAMES = ("ours", *PEERS)
CONCURRENCIES = (0.1, 0.15, 0.2, 0.28, 0.36, 0.5)  # of a replica's seats
QUEUES = (2.0, 8.0)
BUSY = (0.7,)
DOWN_WINDOWS = (300.0, 120.0, 60.0)  # of an HPA, the default first
STABLE_WINDOWS = (60.0, 120.0)  # of a KPA, the default first
SHARES = (1.0, 0.75, 0.6, 0.5, 0.4)  # of the objective that a rule by latencies is told
UTILIZATIONS = (0.9, 0.75, 0.6, 0.5)


def candidates_of(
    name: str, profile: Profile, scaling: Scaling, objective: Objective, lengths: tuple[float, float]
) -> list[Scaler]:
    """The settings that a calibration tries, the project's defaults among them. Raises KeyError for an unknown name.

    Ours has only the manifest's setting. HPA and KEDA may choose their metric as well as its target. HPA and KPA may also choose their
    window and their victim: the newest pod, or the idlest by deletion costs. `lengths` are the mean tokens of prompts and answers.
    """
    seats = [max(1.0, round(share * profile.max_sequences)) for share in CONCURRENCIES]
    page = profile.page_size
    rates = [highest_rate(profile, *lengths, objective.ttft * share, objective.tpot * share) for share in SHARES]
    by_name: dict[str, list[Scaler]] = {
        "ours": [Ours(scaling)],
        "hpa": [
            *(Hpa(target, Metric.CONCURRENCY) for target in seats),
            *(
                Hpa(target, Metric.CONCURRENCY, Behavior(down_stabilization=window), removal=Removal.IDLEST)
                for window in DOWN_WINDOWS
                for target in seats
            ),
            *(Hpa(target, Metric.QUEUE) for target in QUEUES),
            *(Hpa(target, Metric.BUSY) for target in BUSY),
        ],
        "kpa": [
            *(Kpa(target / Rules().utilization) for target in seats),
            *(
                Kpa(target / Rules().utilization, Rules(stable=window, panic=window / 10), removal=Removal.IDLEST)
                for window in STABLE_WINDOWS
                for target in seats
            ),
        ],
        "keda": [
            *(Keda(target, Metric.CONCURRENCY) for target in seats),
            *(Keda(target, Metric.QUEUE) for target in QUEUES),
        ],
        "wva": [
            Wva(),
            *(Wva(Thresholds(kv, 5.0, spare, 3.0)) for kv in (0.5, 0.4, 0.3) for spare in (0.1, 0.2)),
        ],
        "wva-tokens": [
            WvaTokens(page),
            *(WvaTokens(page, Limits(up=up, down=round(0.8 * up, 3))) for up in (0.7, 0.6, 0.5, 0.4, 0.3)),
        ],
        "wva-queueing": [WvaQueueing(each) for each in rates],
        "dynamo": [
            Dynamo(),
            *(Dynamo(Sla(objective.ttft * share, objective.tpot * share)) for share in (1.0, 0.5, 0.25)),
        ],
        "dynamo-thresholds": [
            DynamoThresholds(page),
            DynamoThresholds(page, LATENCY),
            *(DynamoThresholds(page, Target("load", up, round(up * 0.6, 3))) for up in (0.6, 0.45, 0.3)),
        ],
        "dynamo-sla": [
            DynamoSla(each * use, Sla(objective.ttft, objective.tpot), line)
            for each in rates[:1]
            for use in UTILIZATIONS
            for line in (False, True)
        ],
        "tokenscale": [
            TokenScale(velocity(profile, *lengths, objective.tpot) * use, convertible, keep)
            for use in (1.0, *UTILIZATIONS[:3])
            for convertible in (0, 1)
            for keep in (60.0, 300.0)
        ],
    }
    return by_name[name]


def describe(scaler: Scaler) -> str:
    """The setting in words."""
    match scaler:
        case Ours(scaling=scaling):
            target = scaling.target
            times = [(name, getattr(target, name)) for name in ("ttft", "tpot")]
            shown = "".join(f", {name} {seconds:g} s" for name, seconds in times if seconds is not None)
            return f"queueDepth {target.queue_depth:g}, freeKVPages {target.free_kv_pages:.0%}{shown}"
        case Hpa(target=target, metric=metric, behavior=behavior, removal=removal):
            return f"{metric.value} {target:g} per pod, window {behavior.down_stabilization:g} s, {removal.value} goes"
        case Keda(target=target, metric=metric):
            return f"{metric.value} {target:g} per pod"
        case Kpa(concurrency=concurrency, rules=rules, removal=removal):
            return f"concurrency {concurrency:.0f} at {rules.utilization:.0%}, window {rules.stable:g} s, {removal.value} goes"
        case Wva(thresholds=rules):
            return f"kv {rules.kv:g}, queue {rules.queue:g}, spare {rules.spare_kv:g} / {rules.spare_queue:g}"
        case Dynamo(sla=sla):
            return f"ttft {sla.ttft:g} s, itl {sla.itl:g} s, sensitivity {sla.sensitivity:.0%}"
        case WvaTokens(limits=limits):
            return f"up {limits.up:g}, down {limits.down:g}"
        case WvaQueueing(each=each):
            return f"{each:.2f} requests/s per pod"
        case DynamoThresholds(target=target):
            return f"{target.name}: {target.up:.0%}, {target.down:.0%}"
        case DynamoSla(each=each, line=line):
            return f"{each:.2f} requests/s per pod, {'line' if line else 'constant'}"
        case TokenScale(each=each, convertible=convertible, keep=keep):
            return f"{each:.2f} requests/s per pod, {convertible} convertible, {keep:g} s"
        case _:
            return ""
