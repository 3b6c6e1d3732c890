"""`.status` of an InferenceService: what is stored between two decisions, and how it reads from and writes to JSON.

The operator's only memory: a restarted operator continues from here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where a rollout stands."""

    IDLE = "Idle"  # one revision, nothing to do
    STARTING = "Starting"  # the canary's pods are not ready yet
    STEP = "Step"  # a weight step is being held and judged
    PAUSED = "Paused"  # a timed pause step
    PROMOTING = "Promoting"  # weight 100 on the canary; its replicas are being raised before that
    ROLLED_BACK = "RolledBack"  # the last rollout was rolled back and the spec has not changed since


@dataclass(frozen=True)
class Weight:
    revision: str
    weight: int


@dataclass(frozen=True)
class Condition:
    """A metav1.Condition. `last_transition_time` moves if and only if `status` does."""

    type: str
    status: str  # "True" | "False" | "Unknown"
    reason: str
    message: str
    last_transition_time: float
    observed_generation: int


@dataclass(frozen=True)
class VerdictRecord:
    """The verdict last shown to people: the numbers it was taken on."""

    outcome: str  # Regressed | Passed | Inconclusive
    signal: str  # e.g. "ttft p95" or "errors"
    statistic: float  # share of canary requests slower than the bound, or the error rate
    limit: float  # the share allowed (1 - quantile), or the maximum rate
    bound_seconds: float | None  # (1 + maxIncrease) x the stable's quantile
    stable_seconds: float | None  # the stable's own quantile
    canary_seconds: float | None  # the canary's own quantile
    samples: int
    evidence: float  # e-value; >= 1 / (1 - confidence) rejects "no regression"
    message: str
    expected_seconds: float | None = None  # expected time to a verdict, None when unknown


@dataclass(frozen=True)
class RolloutRecord:
    phase: Phase
    step: int = 0  # index into spec.rollout.steps
    since: float = 0.0  # when this phase or step began
    started: float = 0.0  # when the rollout began
    traffic_since: float | None = None  # when the canary first got traffic: what is judged begins here
    verdict: VerdictRecord | None = None


@dataclass(frozen=True)
class RevisionRecord:
    """A revision kept in history. `spec` is the pod-affecting part of the spec it was made from."""

    hash: str
    created: float
    spec: Mapping[str, object] = field(default_factory=dict)
    ready: int = 0
    desired: int = 0


@dataclass(frozen=True)
class Rejection:
    hash: str
    reason: str  # LatencyRegression | ErrorRate | Alert | DeadlineExceeded | StartFailed
    message: str
    time: float


@dataclass(frozen=True)
class DecisionRecord:
    """One line of the bounded decision log (newest last, at most 50)."""

    time: float
    kind: str  # CamelCase, also the Event's reason: CanaryStarted, StepAdvanced, Promoted, RolledBack, ScaledUp ...
    message: str


@dataclass(frozen=True)
class AlertRecord:
    fingerprint: str
    name: str
    starts_at: float
    revision: str
    received: float
    labels: Mapping[str, str] = field(default_factory=dict)
    resolved: bool = False


@dataclass(frozen=True)
class ScaleStep:
    """A change of replicas: what step policies count."""

    time: float
    change: int


@dataclass(frozen=True)
class ScalingRecord:
    """The autoscaler's memory per revision: since when more replicas are needed, when a panic was last noted, since when
    nothing arrived, the latest changes, and how long its pods take from created to ready (seconds; `learned`: when the
    last one counted did)."""

    revision: str
    above_since: float | None = None
    panic_since: float | None = None
    idle_since: float | None = None
    startup: float | None = None
    learned: float | None = None
    steps: tuple[ScaleStep, ...] = ()


@dataclass(frozen=True)
class Status:
    observed_generation: int = 0
    stable: str = ""
    canary: str = ""
    traffic: tuple[Weight, ...] = ()
    rollout: RolloutRecord = field(default_factory=lambda: RolloutRecord(Phase.IDLE))
    revisions: tuple[RevisionRecord, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    conditions: tuple[Condition, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    alerts: tuple[AlertRecord, ...] = ()
    scaling: tuple[ScalingRecord, ...] = ()
    replicas: int = 0  # of the serving revisions together: the /scale subresource's status
    selector: str = ""
