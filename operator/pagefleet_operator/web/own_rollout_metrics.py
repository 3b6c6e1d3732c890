"""Metrics that repeat a service's status: its conditions, its rollout, and the guard's figures."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge

from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Phase, SignalRecord, Status

SERVICE = ("namespace", "service")
Key = tuple[str, str]
Series = tuple[str, tuple[str, ...]]  # a gauge's name in `_gauges`, and the values of its labels
SETTLED = (Phase.IDLE, Phase.ROLLED_BACK)


class RolloutMetrics:
    """A series exists while the status says what it tells: a condition's old reason and a canary that is gone have none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(name, text, [*SERVICE, *more], registry=registry)

        judged = ("revision", "signal", "stratum")
        self._gauges = {
            "condition": gauge("pagefleet_condition", "1 for each condition as it stands", "type", "status", "reason"),
            "rollout": gauge(
                "pagefleet_rollout", "1 for the phase of the revision that is rolled out", "revision", "phase"
            ),
            "regressed": gauge(
                "pagefleet_regressed",
                "Share of requests slower than recorded at the same load, of a stable revision that has regressed",
                "revision",
                "signal",
            ),
            "p95": gauge(
                "pagefleet_guard_seconds", "The guard's quantile (0.95 unless set otherwise) by revision", *judged
            ),
            "samples": gauge("pagefleet_guard_samples", "Requests the guard has judged by revision", *judged),
            "evidence": gauge(
                "pagefleet_guard_evidence",
                "Evidence (e-value) against the canary; a rollback at 99 % confidence needs 200 for each signal of the "
                "guard (400 for two), and more when early slices were deleted",
                *judged,
            ),
            "slo_left": gauge(
                "pagefleet_slo_budget_left_ratio",
                "Share of an objective's error budget that is left, negative when more requests missed it than may",
                "objective",
            ),
            "slo_burn": gauge(
                "pagefleet_slo_burn_rate",
                "Share of the last hour's requests that missed an objective, divided by the share that may",
                "objective",
            ),
            "budget": gauge("pagefleet_budget", "What the service may cost in a month: spec.cost.budget.perMonth"),
            "spent": gauge("pagefleet_budget_spent", "What the service has cost since the month began"),
            "forecast": gauge("pagefleet_budget_forecast", "What the service will have cost when the month ends"),
            "owner": gauge("pagefleet_service_owner", "1, with spec.owner as labels", "team", "contact", "runbook"),
        }
        self._shown: dict[Key, set[Series]] = {}

    def planned(self, namespace: str, service: str, plan: Plan) -> None:
        key = (namespace, service)
        values = dict(_values(plan.status))
        if plan.owner.sentence:
            values["owner", (plan.owner.team, plan.owner.contact, plan.owner.runbook)] = 1
        for (name, labels), value in values.items():
            self._gauges[name].labels(*key, *labels).set(value)
        self._drop(key, self._shown.get(key, set()) - set(values))
        self._shown[key] = set(values)

    def forget(self, namespace: str, service: str) -> None:
        key = (namespace, service)
        self._drop(key, self._shown.pop(key, set()))

    def _drop(self, key: Key, gone: set[Series]) -> None:
        for name, labels in gone:
            self._gauges[name].remove(*key, *labels)


def _values(status: Status) -> Iterator[tuple[Series, float]]:
    for condition in status.conditions:
        yield ("condition", (condition.type, condition.status, condition.reason)), 1
    for objective in status.slo.objectives if status.slo is not None else ():
        for name, value in (("slo_left", objective.left), ("slo_burn", objective.burn)):
            if value is not None:
                yield (name, (objective.name,)), value
    if status.spending is not None:
        yield ("budget", ()), status.spending.budget
        yield ("spent", ()), status.spending.spent
        yield ("forecast", ()), status.spending.forecast
    watch = status.watch
    if watch is not None and watch.regressed:
        yield ("regressed", (watch.revision, watch.signal)), watch.hits / max(1, watch.trials)
    phase = status.rollout.phase
    if phase in SETTLED:
        return
    yield ("rollout", (status.canary or status.stable, phase.value)), 1
    if status.canary:
        for record in status.rollout.verdicts:
            yield from _judged(status, record)


def _judged(status: Status, record: SignalRecord) -> Iterator[tuple[Series, float]]:
    where = (record.signal, record.stratum)
    yield ("evidence", (status.canary, *where)), record.evidence
    for revision, samples, quantile in (
        (status.stable, record.stable_samples, record.stable_p95),
        (status.canary, record.canary_samples, record.canary_p95),
    ):
        yield ("samples", (revision, *where)), samples
        if quantile is not None:
            yield ("p95", (revision, *where)), quantile
