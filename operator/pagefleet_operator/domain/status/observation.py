"""The observation: all data that one decision may use, gathered beforehand. Nothing here does I/O or reads a clock.

A missing or stale reading is `None`, never a zero: "no data" must not look like "idle" or "fast".
Times are UNIX seconds (float), durations seconds (float).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pagefleet_contract import sketch
from pagefleet_contract.addresses import EVERY_IPV4
from pagefleet_operator.domain.base.edged import Edged
from pagefleet_operator.domain.spec.policy import EVERYTHING, Policy
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.gateway_api import FallbackReading, GatewayApiReading
from pagefleet_operator.domain.status.model_names import NameReading
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad, SLOReading
from pagefleet_operator.domain.status.status import Rejection, Status

Bucket = Annotated[int, Meta(ge=0, le=sketch.LAST)]  # of a histogram that is read from JSON
MAX_COUNT = 10**12  # of requests or tokens in a slice: sums of such counts are still numbers that can be stored
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]


@dataclass(frozen=True)
class PodFault:
    """The cause that keeps a pod from running, from its container's state or from the scheduler.

    `field` is the spec field that the user must fix ("spec.model.source"), or "" when it is not known.
    `reason` is CamelCase ("ModelNotFound", "CrashLoopBackOff", "Unschedulable", "SchedulingGated", "ImagePullBackOff").
    """

    reason: str
    message: str
    field: str = ""

    @property
    def is_placeless(self) -> bool:
        """Whether the pod has no node and so no accelerators: no node fits, or it waits for its admission."""
        return self.reason in ("Unschedulable", "SchedulingGated")


@dataclass(frozen=True)
class FetchReading:
    """How far a pod's container is that fetches the model. `speed` is in bytes per second over the last minute, None
    in the first one while nothing has arrived."""

    size: int  # bytes of the model
    fetched: int  # of them
    speed: float | None


@dataclass(frozen=True)
class PodReading:
    """One engine pod.

    `load` is what the engine's metrics page said `load_age` seconds ago, None when it was not read lately; `load_error` is
    the cause where it could not be read just now, "" when it could or was not asked for. `fetching`: its engine has not
    started, because its model is being fetched, also between two tries; `fetch` is then how far that is, None when it is not
    known. `fetched`: its model is there.
    """

    name: str
    ready: bool
    terminating: bool
    created: float
    ready_since: float | None
    fault: PodFault | None = None
    load: EngineLoad | None = None
    load_age: float | None = None
    load_error: str = ""
    startup: float | None = None  # seconds from created to its first Ready
    fetching: bool = False
    fetch: FetchReading | None = None
    fetched: bool = False


@dataclass(frozen=True)
class SpareReading:
    """A pod of a revision's warm spares.

    It is Ready, and requests are routed to it, only while `opened`: the operator's readiness gate is True. `since` is
    the time of the gate's last change, None before its first one. `loaded` says that the engine itself is ready,
    neither loading nor asleep. `asleep` is None when the engine does not report it.
    """

    pod: PodReading
    address: str = ""
    opened: bool = False
    since: float | None = None
    loaded: bool = False
    asleep: bool | None = None


@dataclass(frozen=True)
class RevisionReading:
    """The cluster's objects of one revision.

    `replicas` is the number in its Deployment or LeaderWorkerSet, None without one. Of a LeaderWorkerSet `pods` are the
    groups' leaders: a leader is Ready when its whole group computes. `spares` are not among `pods`. `spare_replicas`
    and `spare_uid` are of the spares' Deployment, None and "" without one. `spare_refused` is the reason why no more
    spares can be created. `templates` and `spare_templates` are the pod templates that were applied to the workload and
    to the spares' Deployment (`manifests.retained`), None where there is no record of them. `prefill` are the revision's
    prefill pods, which are no replicas; `prefill_templates` and `prefill_refused` are of their Deployment.
    """

    hash: str
    replicas: int | None
    pods: tuple[PodReading, ...] = ()
    history: tuple[Sample, ...] = ()  # older than the pods' readings, oldest first
    slots: int | None = None  # sequences that a replica runs at once; None: not known
    grouped: bool = False  # of a LeaderWorkerSet: the group with the highest number is deleted first
    refused: str = ""  # the API server's reason why pods cannot be created (a quota)
    spares: tuple[SpareReading, ...] = ()
    spare_replicas: int | None = None
    spare_uid: str = ""
    spare_refused: str = ""
    templates: Mapping[str, Any] | None = field(default=None, repr=False)
    spare_templates: Mapping[str, Any] | None = field(default=None, repr=False)
    prefill: tuple[PodReading, ...] = ()
    prefill_refused: str = ""
    prefill_templates: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def own_ready(self) -> int:
        """Ready replicas without the warm spares that stand in for missing ones."""
        return sum(1 for pod in self.pods if pod.ready and not pod.terminating)

    @property
    def prefill_ready(self) -> int:
        return sum(1 for pod in self.prefill if pod.ready and not pod.terminating)

    @property
    def ready(self) -> int:
        """All pods that requests are routed to now: replicas, and spares that are awake."""
        return self.own_ready + sum(1 for spare in self.spares if spare.pod.ready and not spare.pod.terminating)


class LoadCounts(msgspec.Struct, frozen=True):
    """Requests of one load stratum by their load-adjusted time to first token, as histograms in the sketch's buckets.

    A load-adjusted time is the time divided by the one that the gateway expected, from the work on the request's pod and
    the stable revision's measurements. `relative` has the requests that were measured, and `ttft` the same ones in
    seconds. `waiting` has those without a first token at the slice's end, and `unmeasured` those that ended without one in
    the slice, both by age divided by the expected time.
    """

    relative: Mapping[Bucket, Count] = {}
    waiting: Mapping[Bucket, Count] = {}
    unmeasured: Mapping[Bucket, Count] = {}
    ttft: Mapping[Bucket, Count] = {}

    @property
    def tables(self) -> tuple[Mapping[int, int], ...]:
        return (self.relative, self.waiting, self.unmeasured, self.ttft)


@dataclass  # the __init__ of a frozen one takes four times as long, and there are tens for each decision
class Slice:
    """A closed measuring slice of one gateway instance (docs/reference/contract/gateway.md). Nobody changes it.

    `latency` maps a signal name ("ttft", "e2e") to a log-bucket histogram {bucket index: count}. `edged` has the same
    counts in the buckets of the measurement where those differ (an engine's); `latency` then has their upper ends.

    `in_flight` maps a signal to the requests that had not been measured at the slice's end, by age. `unmeasured` has
    those that ended in the slice without a measurement, by age: their clients left, or they failed. `requests` and
    `errors` contain the `retried` attempts: those that failed before another attempt. Errors of the client (4xx),
    requests that their clients left, and those that a header has forced to the canary are in neither.

    A revision's load-adjusted times are in a slice of their own: `load` by load stratum, and `pods` the relative times of
    some pods of the reference revision by name. That slice counts nothing else, and its `stratum` is "". Those of `whole`
    answers are in another slice than those of streams.
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
    started: int | None = None  # requests sent to the revision; None: not counted
    in_flight: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unmeasured: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    retried: int = 0
    client_errors: int = 0
    timeouts: int = 0  # requests that a time limit ended
    fell_back: int = 0  # requests that another service answered, which are in no other count
    load: Mapping[str, LoadCounts] = field(default_factory=dict)
    pods: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    whole: bool = False  # `load` and `pods` are of whole answers, to their end
    slo: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # requests and misses by objective; revision "" only

    @property
    def adjusted(self) -> bool:
        """Whether the slice has load-adjusted times, and therefore counts nothing else."""
        return bool(self.load or self.pods)

    @property
    def arrived(self) -> int:
        """Requests that came to the revision, or those that ended where nobody counts them earlier."""
        return self.requests if self.started is None else self.started

    @cached_property
    def possible(self) -> bool:
        """Whether the numbers can be true: no negative count, and no more errors than requests."""
        counts = self.client_errors, self.timeouts, self.fell_back
        if not 0 <= self.retried <= self.errors <= self.requests or min(counts) < 0:
            return False
        tables = [*self.latency.values(), *self.in_flight.values(), *self.unmeasured.values(), *self.pods.values()]
        tables += [one.counts for one in self.edged.values()]
        for one in self.load.values():
            tables += one.tables
        return min([count for table in tables for count in table.values()], default=0) >= 0


START = attrgetter("start")  # the order of slices in time


@dataclass(frozen=True)
class GateReading:
    """Prometheus's answer to a gate of the guard. `value` is None when there is no finite number."""

    name: str
    value: float | None
    message: str = ""


@dataclass(frozen=True)
class LoadTestReading:
    """The Job of a loadTest step. `result` is None until the Job has succeeded; `failure` is the reason of a failure."""

    result: Mapping[str, object] | None = None
    failure: str = ""


@dataclass(frozen=True)
class RecordReading:
    """The stored record of one revision (`domain.records`): what only `.status` knows otherwise.

    `role` is "stable", "previous" or "". `since` is the time of the promotion that made the revision the previous one.
    `uid` is that of the InferenceService that the record was written for, `object` the record's own, `version` its
    resourceVersion.
    """

    revision: str
    created: float
    spec: Mapping[str, object] = field(default_factory=dict)
    role: str = ""
    since: float = 0.0
    rejection: Rejection | None = None
    uid: str = ""
    object: str = ""
    version: str = ""


@dataclass(frozen=True)
class Observation:
    """One InferenceService, its objects and its measurements at one time.

    `spec` is the raw `.spec` (parsed by `spec.parse`), `status` the parsed `.status`.
    `slices` are the gateways' measurements since the canary got traffic, as far as they are retained, and before that the
    load-adjusted times of 20 minutes; None when no gateway answered. `engine_slices` are the same from the engines' own histograms. `prometheus` has slices from
    Prometheus by the name of the histogram ("": the engines' own). `silence` has the reason of each source without
    measurements. `action` is the text of the annotation pagefleet.io/action. `image` is the operator's own image, which
    load tests run from. `memo` holds the sums of earlier decisions about the service (`analysis.accumulate`): it saves
    work, and no result depends on it.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Mapping[str, object]
    status: Status
    revisions: Mapping[str, RevisionReading] = field(default_factory=dict)
    slices: tuple[Slice, ...] | None = None
    gateway_api: GatewayApiReading | None = None  # None: not needed, or it cannot be read now
    fallbacks: tuple[FallbackReading, ...] = ()  # the chain, from the service's own fallback on
    model_name: NameReading = field(default_factory=NameReading)
    refused: Mapping[str, str] | None = None  # children and why; None until this operator has applied any
    engine_slices: tuple[Slice, ...] | None = None
    prometheus: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    silence: Mapping[str, str] = field(default_factory=dict)  # by the names of `analysis.sources`
    gates: Mapping[str, GateReading] = field(default_factory=dict)
    load_test: LoadTestReading | None = None
    action: str = ""
    image: str = ""
    engine_address: str = EVERY_IPV4  # where engines listen: `::` where pods have IPv6 addresses first
    load: ServiceLoad | None = None  # None when no gateway answered
    slo: SLOReading | None = None  # None while no request has counted in an objective
    memo: MutableMapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    policy: Policy = EVERYTHING  # the operator's own limits on what specs may name
    groups: bool = False  # whether the cluster serves LeaderWorkerSets; read only when a revision needs one
    dropped: frozenset[str] = (
        frozenset()
    )  # fields of pods (manifests.pod_fields) that a revision needs and the API server drops
    created: float = 0.0  # when the InferenceService was created
    records: tuple[RecordReading, ...] = ()
    announced_records: int = (
        0  # the records that were exported with the InferenceService (annotation pagefleet.io/records)
    )
    # Requests in the gateways' slices that are retained no longer, by revision and the start of their minute.
    earlier: Mapping[str, Mapping[float, int]] = field(default_factory=dict)
