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
    PAUSED = "Paused"  # a pause step; other steps that a person or an alert holds up have `paused` set
    PREVIEW = "Preview"  # only requests with route.header meet the canary
    MIRRORING = "Mirroring"  # the canary gets copies of requests
    LOAD_TEST = "LoadTest"  # a Job puts a synthetic load on the canary
    PROMOTING = "Promoting"  # every step is passed; the canary's replicas are being raised before it gets everything
    WATCHING = "Watching"  # promoted, and still judged against what the previous revision was like
    ROLLING_BACK = "RollingBack"  # rejected; its traffic goes as fast as the last good revision can carry it
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
    signal: str  # e.g. "ttft p95", "errors", "free pages" or the name of a PromQL gate
    statistic: float  # share of canary requests slower than the bound, or the error rate
    limit: float  # the share allowed (1 - quantile), or the maximum rate
    bound_seconds: float | None  # (1 + maxIncrease) x the stable's quantile
    stable_seconds: float | None  # the stable's own quantile
    canary_seconds: float | None  # the canary's own quantile
    samples: int
    evidence: float  # e-value; >= 1 / (1 - confidence) rejects "no regression"
    message: str
    expected_seconds: float | None = None  # expected time to a verdict, None when unknown
    source: str = ""  # Gateway | Engine | Prometheus; "" for pages and gates


@dataclass(frozen=True)
class SignalRecord:
    """One signal of the guard in one stratum, for people: seconds, requests, intervals of 95 %."""

    signal: str  # ttft | tpot | e2e | itl | queue | errors | free pages | the name of a PromQL gate
    stratum: str  # prompt length "s" | "m" | "l", "" for all
    outcome: str
    stable_samples: int = 0
    canary_samples: int = 0
    stable_p50: float | None = None
    canary_p50: float | None = None
    stable_p95: float | None = None  # the guard's quantile, 0.95 unless it is set otherwise
    canary_p95: float | None = None
    stable_low: float | None = None
    stable_high: float | None = None
    canary_low: float | None = None
    canary_high: float | None = None
    evidence: float = 0.0
    message: str = ""
    source: str = ""  # as in the verdict


@dataclass(frozen=True)
class RolloutRecord:
    phase: Phase
    step: int = 0  # index into spec.rollout.steps
    since: float = 0.0  # when this phase or step began
    started: float = 0.0  # when the rollout began
    traffic_since: float | None = None  # when the canary first got traffic: what is judged begins here
    verdict: VerdictRecord | None = None
    verdicts: tuple[SignalRecord, ...] = ()
    held: float = 0.0  # seconds of this phase that were watched, up to `ticked`; a jump of the clock adds none
    ticked: float = 0.0
    paused: str = ""  # who holds the step up: "alert NAME" or "action ID"
    requests: int = 0  # of the canary in this step, the most that was counted
    low_since: float | None = None  # since when the canary has been short of free pages
    needed: int = 0  # replicas that the last good revision needs to carry everything, while rolling back


@dataclass(frozen=True)
class ActionRecord:
    """What became of the last annotation pagefleet.io/action."""

    id: str
    action: str
    outcome: str  # Done | Refused
    message: str
    time: float


@dataclass(frozen=True)
class MirrorRecord:
    """Read by the gateway: the revision that gets copies of so many requests in 100."""

    revision: str
    percent: float


@dataclass(frozen=True)
class PreviousRecord:
    """The revision that served before the stable, and when it was relieved."""

    revision: str
    since: float


@dataclass(frozen=True)
class BaselineRecord:
    """What the previous revision was like: a histogram {bucket: count} of a signal in a stratum. `source` is the name of
    who measured it (`sources`), "" in a record of an older operator."""

    revision: str
    signal: str
    stratum: str
    histogram: Mapping[str, int] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class DrainRecord:
    """A revision that has lost its traffic, and since when; its pods go when every gateway has heard of it."""

    revision: str
    since: float


@dataclass(frozen=True)
class RouteRecord:
    """An HTTPRoute has been written for this service (provider GatewayAPI), leading to `backend`."""

    backend: str  # Service | InferencePool


@dataclass(frozen=True)
class RevisionRecord:
    """A revision kept in history. `spec` is the pod-affecting part of the spec it was made from."""

    hash: str
    created: float
    spec: Mapping[str, object] = field(default_factory=dict)
    ready: int = 0
    desired: int = 0
    load_test: Mapping[str, object] = field(default_factory=dict)  # the result of its loadTest step


@dataclass(frozen=True)
class Rejection:
    """`verdict` is the evidence at the time, where it was a measurement."""

    hash: str
    reason: str  # LatencyRegression | ErrorRate | FreePages | Gate | LoadTest | Alert | Aborted | Undone | ...
    message: str
    time: float
    verdict: VerdictRecord | None = None


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
class SparesRecord:
    """Warm spares of the stable revision, for people. `message` says why some cannot be had."""

    revision: str
    desired: int = 0
    asleep: int = 0
    awake: int = 0
    message: str = ""


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
    route: RouteRecord | None = None
    action: ActionRecord | None = None
    mirror: MirrorRecord | None = None
    previous: PreviousRecord | None = None
    baseline: tuple[BaselineRecord, ...] = ()
    draining: tuple[DrainRecord, ...] = ()
    spares: SparesRecord | None = None
    replicas: int = 0  # of the serving revisions together: the /scale subresource's status
    selector: str = ""
