"""`.status` of an InferenceService: the records that are stored between two decisions (`codec` reads and writes them).

It is the operator's only memory: a restarted operator continues from it alone. The fields' names are the stored names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pagefleet_operator.domain.status.failure_record import FailureRecord
from pagefleet_operator.domain.status.records.capacity_plan import CapacityPlanRecord
from pagefleet_operator.domain.status.records.slo import SLORecord
from pagefleet_operator.domain.status.records.spending import SpendingRecord


class Phase(StrEnum):
    """The state of a rollout."""

    IDLE = "Idle"  # one revision, nothing to do
    RESTORING = "Restoring"  # the stable revision comes from a record; it gets all traffic when it has a ready pod
    STARTING = "Starting"  # the canary's pods are not ready yet
    STEP = "Step"  # a weight step is being held and judged
    PAUSED = "Paused"  # a pause step; another step that a person or an alert has paused has `paused` set instead
    PREVIEW = "Preview"  # only requests with route.header are routed to the canary
    MIRRORING = "Mirroring"  # the canary gets copies of requests
    LOAD_TEST = "LoadTest"  # a Job puts a synthetic load on the canary
    PROMOTING = "Promoting"  # every step is passed; the canary's replicas are being raised before it gets all traffic
    WATCHING = "Watching"  # promoted, and still judged against the record of the previous revision
    ROLLING_BACK = "RollingBack"  # rejected; its traffic moves as fast as the last good revision can carry it
    ROLLED_BACK = "RolledBack"  # the last rollout was rolled back and the spec has not changed since


@dataclass(frozen=True)
class Weight:
    """The percentage of requests that a revision gets."""

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
    """The last verdict, with the numbers that it rests on."""

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
    source: str = ""  # Gateway | Engine | Prometheus; "" for free pages and gates


@dataclass(frozen=True)
class SignalRecord:
    """One signal of the guard in one stratum, for people: seconds, requests, intervals of 95 %."""

    signal: str  # ttft | tpot | e2e | itl | queue | errors | free pages | the name of a PromQL gate
    stratum: str  # by the prompt's new tokens ("512-1447"), "" for all
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
class BaselineRecord:
    """A revision's histogram {bucket: count} of a signal in a stratum.

    `source` is the name of the measuring source (`analysis.sources`), "" in a record of an older operator. The stratum of
    a record by load is "load STRATUM, running CLASS". Its requests are those up to `until`, and `dispersion` is how much
    more its minutes scatter than independent requests would. A record of the stable revision itself is still growing.
    """

    revision: str
    signal: str
    stratum: str
    histogram: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    dispersion: float = 0.0
    until: float = 0.0

    @property
    def counts(self) -> dict[int, int]:
        """The histogram by numbers of buckets, without entries that cannot be read."""
        return {int(b): n for b, n in self.histogram.items() if b.isdecimal() and isinstance(n, int) and n > 0}


@dataclass(frozen=True)
class EvidenceRecord:
    """The evidence against a canary on its load-adjusted times, so that a restarted operator continues with it.

    `newest` is the start of the newest slice in it. `logs` are natural logarithms (`analysis.adjusted`), and `times` are the
    canary's times by load stratum. `increase` is the guard's maxIncrease. `whole`: the times are those of whole answers.
    """

    stable: str
    canary: str
    increase: float
    newest: float
    blocks: int
    logs: tuple[float, ...] = ()
    times: tuple[BaselineRecord, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class RolloutRecord:
    """The progress of a rollout and the latest verdict on its canary."""

    phase: Phase
    step: int = 0  # index into spec.rollout.steps
    since: float = 0.0  # when this phase or step began
    started: float = 0.0  # when the rollout began
    traffic_since: float | None = None  # when the canary first got traffic: judged requests begin here
    verdict: VerdictRecord | None = None
    verdicts: tuple[SignalRecord, ...] = ()
    held: float = 0.0  # seconds of this phase that an operator watched up to `ticked`; a jump of the clock adds none
    ticked: float = 0.0
    paused: str = ""  # the cause of a pause: "alert NAME" or "action ID"
    requests: int = 0  # the canary's requests in this step, the highest count so far
    low_since: float | None = None  # the time since which the canary has been short of free pages
    evidence: tuple[EvidenceRecord, ...] = ()
    needed: int = 0  # replicas that the last good revision needs to carry all traffic, during a rollback
    failures: tuple[FailureRecord, ...] = ()  # the evidence of the signals that count failures


@dataclass(frozen=True)
class ActionRecord:
    """The outcome of the last annotation pagefleet.io/action."""

    id: str
    action: str
    outcome: str  # Done | Refused
    message: str
    time: float


@dataclass(frozen=True)
class MirrorRecord:
    """The revision that gets copies of `percent` of 100 requests. The gateway reads it."""

    revision: str
    percent: float


@dataclass(frozen=True)
class PreviousRecord:
    """The revision that served before the stable, and the time of the promotion that replaced it."""

    revision: str
    since: float


@dataclass(frozen=True)
class WatchRecord:
    """The evidence against the stable revision in normal operation, while there is some.

    The requests from `since` to `until` are counted: `hits` of `trials` were slower than accepted. `logs` are the natural
    logarithms of the evidence, one for each alternative. `regressed` says that it convicts, with the numbers of that time
    in `message`.
    """

    revision: str
    signal: str  # "ttft p95"
    since: float = 0.0
    until: float = 0.0
    logs: tuple[float, ...] = ()
    hits: int = 0
    trials: int = 0
    regressed: bool = False
    message: str = ""


@dataclass(frozen=True)
class DrainRecord:
    """A revision without traffic, and the time since which it has none.

    Its pods are deleted when every gateway has received the new weights.
    """

    revision: str
    since: float


@dataclass(frozen=True)
class RouteRecord:
    """The HTTPRoute that was written for this service (provider GatewayAPI) leads to `backend`."""

    backend: str  # Service | InferencePool


@dataclass(frozen=True)
class PrefillRecord:
    """A revision's prefill pods, which are no replicas."""

    ready: int = 0
    desired: int = 0


@dataclass(frozen=True)
class RevisionRecord:
    """A revision in the history. `spec` is the pod-affecting part of the spec that it was made from.

    `prefill` is None of a revision that neither has nor should have prefill pods.
    """

    hash: str
    created: float
    spec: Mapping[str, object] = field(default_factory=dict)
    ready: int = 0
    desired: int = 0
    load_test: Mapping[str, object] = field(default_factory=dict)  # the result of its loadTest step
    prefill: PrefillRecord | None = None


@dataclass(frozen=True)
class Rejection:
    """A revision that was given up. `verdict` is the evidence at that time, where a measurement was the cause."""

    hash: str
    reason: str  # LatencyRegression | LatencyBound | Throughput | Cost | ErrorRate | ClientErrors | Timeouts | Fallbacks | FreePages | Gate | LoadTest | Alert | Aborted | ...
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
    """An alert that the webhook received."""

    fingerprint: str
    name: str
    starts_at: float
    revision: str
    received: float
    labels: Mapping[str, str] = field(default_factory=dict)
    resolved: bool = False


@dataclass(frozen=True)
class ScaleStep:
    """A change of the number of replicas; step policies count these changes."""

    time: float
    change: int


@dataclass(frozen=True)
class ScalingRecord:
    """The autoscaler's memory of one revision.

    `above_since` is the time since which more replicas are needed, `panic_since` the time of the last panic,
    `idle_since` the time since which no request arrived, `steps` the latest changes. `startup` is the learned time from
    a pod's creation to its readiness in seconds; `learned` is when the latest pod that counts in it became ready. `late_load`,
    `late_seconds`, `floor` and `floor_since` are of first tokens (`scaling.first_tokens`).
    """

    revision: str
    above_since: float | None = None
    panic_since: float | None = None
    idle_since: float | None = None
    startup: float | None = None
    learned: float | None = None
    steps: tuple[ScaleStep, ...] = ()
    late_load: float | None = None
    late_seconds: float | None = None
    floor: float | None = None
    floor_since: float | None = None


@dataclass(frozen=True)
class SparesRecord:
    """Warm spares of the stable revision, for people. `message` is the reason why some cannot be created."""

    revision: str
    desired: int = 0
    asleep: int = 0
    awake: int = 0
    message: str = ""


@dataclass(frozen=True)
class Status:
    """The whole `.status`."""

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
    model_name: str = ""  # the served name that this service owns among all services
    action: ActionRecord | None = None
    mirror: MirrorRecord | None = None
    previous: PreviousRecord | None = None
    baseline: tuple[BaselineRecord, ...] = ()
    watch: WatchRecord | None = None
    draining: tuple[DrainRecord, ...] = ()
    spares: SparesRecord | None = None
    slo: SLORecord | None = None
    spending: SpendingRecord | None = None
    capacity_plan: CapacityPlanRecord | None = None
    replicas: int = 0  # ready replicas of all revisions: the status of the /scale subresource
    selector: str = ""
