"""Everything one decision may look at, gathered before it is taken. Pure data: nothing here does I/O or reads a clock.

A missing or stale reading is `None`, never a zero: "no data" must not look like "idle" or "fast".
Times are UNIX seconds (float), durations seconds (float).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property

from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.status.gateway_api import FallbackReading, GatewayApiReading
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import Status


@dataclass(frozen=True)
class PodFault:
    """Why a pod cannot run, from its container's state or from the scheduler.

    `field` is the spec field the user must mend ("spec.model.source"), or "" when it is not known.
    `reason` is CamelCase ("ModelNotFound", "CrashLoopBackOff", "Unschedulable", "ImagePullBackOff").
    """

    reason: str
    message: str
    field: str = ""


@dataclass(frozen=True)
class PodReading:
    """One engine pod. `signals_age` is the age of the scrape; queue and pages are None when it failed."""

    name: str
    ready: bool
    terminating: bool
    created: float
    ready_since: float | None
    fault: PodFault | None = None
    waiting: int | None = None  # requests queued in the engine
    running: int | None = None
    free_pages: int | None = None  # free + cached (reclaimable) KV pages
    total_pages: int | None = None
    signals_age: float | None = None
    cached_pages: int | None = None  # of the free ones, those with a reusable prefix
    waiting_tokens: int | None = None  # of the queued requests
    preemptions: float | None = None  # per second, since the scrape before
    tokens: float | None = None  # generated per second, since the scrape before
    startup: float | None = None  # seconds from created to its first Ready


@dataclass(frozen=True)
class SpareReading:
    """A pod of a revision's spares. It is Ready, and met by requests, only while `opened`: the readiness gate that the
    operator keeps is True. `since` is when the gate last changed, None while it was never written.

    `loaded`: the engine itself is ready, so neither loading nor asleep. `asleep` is None when it does not tell.
    """

    pod: PodReading
    address: str = ""
    opened: bool = False
    since: float | None = None
    loaded: bool = False
    asleep: bool | None = None


@dataclass(frozen=True)
class RevisionReading:
    """What the cluster holds for one revision. `replicas` is the spec of its Deployment or LeaderWorkerSet, None without
    one. Of a LeaderWorkerSet `pods` are the groups' leaders: a leader is Ready when its whole group computes.

    `spares` are not among `pods`; `spare_replicas` and `spare_uid` are of their Deployment, None and "" without one, and
    `spare_refused` why no more of them can be created.
    """

    hash: str
    replicas: int | None
    pods: tuple[PodReading, ...] = ()
    history: tuple[Sample, ...] = ()  # older than the pods' readings, oldest first
    slots: int | None = None  # sequences that a replica runs at once; None: not known
    grouped: bool = False  # of a LeaderWorkerSet: the group with the highest number goes first
    refused: str = ""  # why pods cannot be created (a quota), as the API server says
    spares: tuple[SpareReading, ...] = ()
    spare_replicas: int | None = None
    spare_uid: str = ""
    spare_refused: str = ""

    @property
    def own_ready(self) -> int:
        """Ready replicas without the spares that stand in for some."""
        return sum(1 for pod in self.pods if pod.ready and not pod.terminating)

    @property
    def ready(self) -> int:
        """All that requests meet now: replicas, and spares that are awake."""
        return self.own_ready + sum(1 for spare in self.spares if spare.pod.ready and not spare.pod.terminating)


@dataclass(frozen=True)
class Slice:
    """A closed measuring slice of one gateway instance (ARCHITECTURE.md, "The gateway").

    `latency` maps a signal name ("ttft", "e2e") to a log-bucket histogram {bucket index: count}. `edged` has the same
    counts in the measurement's own buckets where those are others (an engine's); `latency` then has their upper ends.
    """

    instance: str
    start: float
    seconds: float
    revision: str
    stratum: str
    requests: int
    errors: int
    latency: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    edged: Mapping[str, Edged] = field(default_factory=dict)
    arrivals: int | None = None  # requests that came in; only in slices of revision ""
    tokens: int | None = None  # output tokens of the requests that ended

    @cached_property
    def possible(self) -> bool:
        """Whether its numbers can be true."""
        tables = (*self.latency.values(), *(one.counts for one in self.edged.values()))
        return 0 <= self.errors <= self.requests and all(min(one.values(), default=0) >= 0 for one in tables)


@dataclass(frozen=True)
class GateReading:
    """What Prometheus answered for a gate of the guard. `value` is None when there is no finite number."""

    name: str
    value: float | None
    message: str = ""


@dataclass(frozen=True)
class LoadTestReading:
    """The Job of a loadTest step. `result` is None until it has ended well; `failure` says why it has not."""

    result: Mapping[str, object] | None = None
    failure: str = ""


@dataclass(frozen=True)
class Observation:
    """One InferenceService as seen now.

    `spec` is the raw `.spec` (parsed by `spec.parse`), `status` the parsed `.status`.
    `slices` is what the gateways measured since the canary got traffic, as far as it is kept; None when no gateway
    answered. `engine_slices` is the same from the engines' own histograms. `action` is the text of the annotation
    pagefleet.io/action. `image` is the operator's own image, which load tests run from. `memo` is what earlier decisions
    about the service have added up (`folds`): it saves work, and no answer depends on it. `prometheus` has slices of what
    Prometheus keeps, by the histogram that was asked for ("": the engines' own). `silence` says why a source has none.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Mapping[str, object]
    status: Status
    revisions: Mapping[str, RevisionReading] = field(default_factory=dict)
    slices: tuple[Slice, ...] | None = None
    gateway_api: GatewayApiReading | None = None  # None: not asked for, or not to be read now
    fallbacks: tuple[FallbackReading, ...] = ()  # the chain, from the service's own fallback on
    engine_slices: tuple[Slice, ...] | None = None
    prometheus: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    silence: Mapping[str, str] = field(default_factory=dict)  # by the names of `sources`
    gates: Mapping[str, GateReading] = field(default_factory=dict)
    load_test: LoadTestReading | None = None
    action: str = ""
    image: str = ""
    load: ServiceLoad | None = None  # None when no gateway answered
    memo: MutableMapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    groups: bool = False  # whether the cluster serves LeaderWorkerSets; asked only where a revision wants one
