"""A fleet as the watches would tell of it, for the status page: objects with a stored status, and what decisions saw."""

from __future__ import annotations

import math
import random
from typing import Any

from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import Observation, PodFault, PodReading, RevisionReading
from pagefleet_operator.domain.status.records.capacity_plan import AssumptionRecord, CapacityPlanRecord, Finding
from pagefleet_operator.domain.status.records.slo import ObjectiveRecord, SLORecord
from pagefleet_operator.domain.status.status import (
    Condition,
    DecisionRecord,
    Phase,
    PrefillRecord,
    RevisionRecord,
    RolloutRecord,
    SignalRecord,
    Status,
    VerdictRecord,
    Weight,
)

STABLE, CANARY = "5f6c9d7b4", "c41b8e02f"
OBJECTIVES = (
    ObjectiveRecord("chat", "chat/ttft<=2/", "95% of ttft within 2 s", 120_000, 1_620, 0.73, 1.4, 1_800_500_000.0),
    ObjectiveRecord("up", "up/errors/", "at most 0.1% of requests fail", 120_000, 134, -0.12, 0.2),
)
CAPACITY_PLAN = (
    AssumptionRecord(
        "perRequest.kvTokens", STABLE, 1200.0, Finding.HOLDS, 1150.0, 1120.0, 1180.0, 1_800_000_000.0, Finding.HOLDS
    ),
    AssumptionRecord(
        "perReplica.outputTokensPerSecond",
        CANARY,
        1500.0,
        Finding.BELOW,
        640.0,
        620.0,
        660.0,
        1_800_000_000.0,
        Finding.BELOW,
    ),
    AssumptionRecord("perRequest.outputTokens", CANARY, 250.0),
)
OWNER = {"team": "chat-platform", "contact": "#chat-oncall", "runbook": "https://wiki.example/chat"}


def document(namespace: str, name: str, status: Status, version: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {"model": {"source": "hf://example/model", "servedName": "example-8b"}, "owner": OWNER},
        "status": codec.dump(status),
    }


def idle(now: float, *, ready: int = 2, degraded: bool = False, guarded: bool = True) -> Status:
    conditions = [
        Condition("Ready", "True" if ready else "False", "Serving" if ready else "NoReplicas", "", now, 1),
        Condition("Degraded", "True" if degraded else "False", "ModelNotFound" if degraded else "AsExpected",
                  "spec.model.source: there is no such repository" if degraded else "", now, 1),
        Condition("Guarded", "True" if guarded else "False", "Guarded" if guarded else "NoGuard",
                  "" if guarded else "spec.rollout.guard judges nothing", now, 1),
    ]  # fmt: skip
    return Status(
        stable=STABLE,
        traffic=(Weight(STABLE, 100),),
        revisions=(RevisionRecord(STABLE, now - 86400, {}, ready, max(ready, 1)),),
        conditions=tuple(conditions),
        decisions=(DecisionRecord(now - 600, "ScaledUp", f"replicas 1 to {ready}: 9 requests wait"),),
    )


def judged(now: float, at: float) -> tuple[SignalRecord, ...]:
    """The three strata as they stand at share `at` of the rollout: intervals narrow, the canary gets a little slower."""
    records = []
    for number, (stratum, stable) in enumerate((("64-180", 0.21), ("512-1447", 0.48), ("4096-11584", 1.35))):
        wave = 0.04 * math.sin(at * 9 + number)
        width, slower = 0.10 + 0.25 * (1 - at), 1.03 + 0.17 * at
        canary = stable * (slower + wave)
        records.append(
            SignalRecord(
                "ttft", stratum, "Inconclusive", round(900 * at) + 60, round(220 * at) + 14,
                stable * 0.6, canary * 0.6, stable * (1 + wave / 3), canary,
                stable * (1 - width / 2), stable * (1 + width / 2), canary * (1 - width), canary * (1 + width * 1.2),
                2.4 * at, f"{round(220 * at) + 14} requests of the canary; evidence {2.4 * at:.1f} of 100",
            )
        )  # fmt: skip
    return tuple(records)


def rollout(now: float, at: float = 1.0) -> Status:
    """A service in its first weight step, judged and not yet decided, with an objective that is met and one that is not."""
    verdict = VerdictRecord(
        "Inconclusive", "ttft p95", 0.07, 0.05, 0.71, 0.48, 0.55, 234, 2.4,
        "No verdict yet on ttft p95: 234 requests of the canary, 7.0 % of them slower than 710 ms, of which 5 % are allowed.",
        170.0,
    )  # fmt: skip
    ready = Condition("Ready", "True", "Serving", "", now, 1)
    return Status(
        stable=STABLE,
        canary=CANARY,
        traffic=(Weight(STABLE, 75), Weight(CANARY, 25)),
        rollout=RolloutRecord(Phase.STEP, 0, now - 400, now - 700, now - 420, verdict, judged(now, at)),
        revisions=(
            RevisionRecord(STABLE, now - 86400, {}, 8 if at > 0.3 else 6, 8, prefill=PrefillRecord(2, 2)),
            RevisionRecord(CANARY, now - 700, {}, 3 if at > 0.5 else 1, 3, prefill=PrefillRecord(1, 2)),
        ),
        conditions=(ready,),
        slo=SLORecord(now, now, 30 * 86400.0, "-12.0%", OBJECTIVES),
        capacity_plan=CapacityPlanRecord(now, 0.15, CAPACITY_PLAN),
        decisions=(
            DecisionRecord(now - 3600, "ScaledUp", "replicas 6 to 8: 41 requests wait, 12 % of KV pages are free"),
            DecisionRecord(now - 700, "CanaryStarted", f"revision {CANARY}: spec.model.source changed"),
            DecisionRecord(now - 420, "StepAdvanced", "the canary's pods are ready; it gets 25 % of requests"),
        ),
    )


def seen(namespace: str, name: str, status: Status, now: float, seed: int = 0) -> Observation:
    """Pods of every revision with numbers; the last of the canary's cannot be scheduled."""
    chance, revisions = random.Random(seed), {}
    for record in status.revisions:
        pods = []
        for number in range(record.desired):
            stuck = record.hash == CANARY and number == record.desired - 1
            fault = PodFault("Unschedulable", "no node has a free GPU") if stuck else None
            numbers: dict[str, Any] = {} if stuck else {
                "load": EngineLoad(
                    waiting=int(chance.expovariate(0.25)), running=chance.randrange(9),
                    kv_pages_free=chance.randrange(20, 1024), kv_pages_total=1024,
                ),
                "load_age": 1.0,
            }  # fmt: skip
            label = f"{name}-{record.hash}-{chance.randrange(36**5):05x}"
            pods.append(PodReading(label, not stuck, False, now - 500, None if stuck else now - 400, fault, **numbers))
        prefill = tuple(
            PodReading(f"{name}-{record.hash}-prefill-{number}", True, False, now - 500, now - 400)
            for number in range(record.prefill.ready if record.prefill else 0)
        )
        revisions[record.hash] = RevisionReading(record.hash, record.desired, tuple(pods), prefill=prefill)
    return Observation(namespace, name, name, 1, {}, status, revisions)
