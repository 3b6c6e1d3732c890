"""Protects the budget of a month: every pod that holds accelerators is counted by the time that passes, the forecast goes by the last
week, classes of requests are given up before replicas, the cap holds for the stable revision and its canary, and everything comes back
when the month ends or the budget is raised."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from support.sample_service import sample

from pagefleet_contract.names import REVISION_LABEL
from pagefleet_operator.domain.cost import report
from pagefleet_operator.domain.cost.spending import RECORD_SECONDS, billed, capped, month, per_hour, record
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.scaling.load import totals
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors, parse
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.cost import Budget
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import (
    Observation,
    PodFault,
    PodReading,
    RevisionReading,
    SpareReading,
)
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.records.spending import Spending, SpendingRecord
from pagefleet_operator.domain.status.sample import ServiceLoad
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.kube import readings
from pagefleet_operator.observe import _pods, _revisions
from pagefleet_operator.web.own_metrics import Metrics

HOUR, DAY = 3600.0, 86400.0
BEGIN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC).timestamp()
SCALING = Scaling(2, 8)


def spend(
    hours: float, cost: float, budget: Budget, before: SpendingRecord | None = None, start: float = BEGIN
) -> SpendingRecord:
    """Decide every minute for so many hours."""
    found = before
    for minute in range(round(hours * 60) + 1):
        found = record(budget, cost, found, SCALING, start + 60.0 * minute)
    assert found is not None
    return found


def test_a_month_is_of_its_time_zone() -> None:
    name, begin, end = month(BEGIN + HOUR, "UTC")
    assert (name, begin, end) == ("2026-11", BEGIN, BEGIN + 30 * DAY)
    assert month(BEGIN - HOUR / 2, "UTC")[0] == "2026-10"
    assert month(BEGIN - HOUR / 2, "Europe/Berlin")[:2] == ("2026-11", BEGIN - HOUR), "an hour earlier there"
    october = month(BEGIN - 5 * DAY, "Europe/Berlin")
    assert october[2] - october[1] == 31 * DAY + HOUR, "the clocks go back in it"


def test_an_evicted_pod_costs_nothing_and_is_no_replica_that_starts() -> None:
    """Its object stays for weeks, and another pod is there in its place."""

    def item(name: str, status: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "creationTimestamp": "2026-11-01T00:00:00Z", "labels": {REVISION_LABEL: "a"}}
        return {"metadata": metadata, "status": status}

    ended = {"state": {"terminated": {"exitCode": 137, "reason": "Error"}}}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:01:00Z"}
    running = {"phase": "Running", "conditions": [ready]}
    statuses: tuple[dict[str, Any], ...] = (
        {"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended]},
        {"phase": "Failed"},
        running,
        {"phase": "Pending"},
    )
    pods = _pods([item(f"chat-{number}", status) for number, status in enumerate(statuses)])
    workload = {"metadata": {"name": "chat-a", "labels": {REVISION_LABEL: "a"}}, "spec": {"replicas": 2}}
    reading = _revisions([workload], pods, [readings.pod(one) for one in pods.computing], [])["a"]
    assert [pod.name for pod in reading.pods] == ["chat-2", "chat-3"]
    assert billed(reading) == 2
    assert totals(reading, BEGIN + 60.0).ages == (60.0,)
    assert all(pod.fault is None for pod in reading.pods), "nothing is wrong with the service"


def test_time_costs_also_while_no_operator_looks() -> None:
    spent = spend(10, 6.0, Budget(1000.0))
    assert spent.spent == pytest.approx(60.0, abs=6.0 * RECORD_SECONDS / HOUR)
    later = record(Budget(1000.0), 6.0, spent, SCALING, spent.until + 24 * HOUR)
    assert later is not None
    assert later.spent - spent.spent == pytest.approx(24 * 6.0)
    back = record(Budget(1000.0), 6.0, later, SCALING, later.until - 100.0)
    assert back is not None
    assert back.spent == later.spent, "a clock that was set back costs nothing"


def test_the_record_is_written_seldom_and_when_the_cost_changes() -> None:
    first = record(Budget(1000.0), 6.0, None, SCALING, BEGIN)
    assert record(Budget(1000.0), 6.0, first, SCALING, BEGIN + 60) is first
    changed = record(Budget(1000.0), 9.0, first, SCALING, BEGIN + 120)
    assert changed is not None
    assert (changed.per_hour, changed.spent) == (9.0, pytest.approx(6.0 * 120 / HOUR)), "the earlier cost until now"
    assert record(Budget(1000.0), 6.0, first, SCALING, BEGIN + RECORD_SECONDS) is not first
    assert record(None, 6.0, first, SCALING, BEGIN) is None
    assert record(Budget(1000.0), None, first, SCALING, BEGIN) is None


def test_the_forecast_adds_the_mean_of_the_last_week() -> None:
    """Seven days at 2 an hour and one at 10: the last seven days cost 22 / 7 an hour in the mean."""
    busy = spend(24, 10.0, Budget(1e6), spend(7 * 24, 2.0, Budget(1e6)), BEGIN + 7 * DAY)
    usual = (6 * 2.0 + 10.0) / 7
    assert busy.forecast == pytest.approx(7 * 24 * 2 + 24 * 10 + 22 * 24 * usual, rel=0.01)
    assert len(busy.days) == 7
    assert spend(0.5, 2.0, Budget(1e6)).forecast == pytest.approx(30 * 24 * 2.0), (
        "before an hour has passed: by the present cost"
    )


def test_requests_are_given_up_before_replicas_and_all_comes_back_with_the_month() -> None:
    budget = Budget(100.0, shed=("batch",), shed_at=0.9)
    states, found = [], None
    for hour in range(26):
        found = record(budget, 5.0, found, SCALING, BEGIN + hour * HOUR)
        assert found is not None
        states.append(found.state)
        assert (found.shed == ("batch",)) is (found.spent >= 90.0)
        bounded = capped(SCALING, found)
        assert (bounded.max, bounded.affordable) == ((2, 2) if found.spent >= 100.0 else (8, None))
    assert states == [Spending.AT_RISK] * 18 + [Spending.SHEDDING] * 2 + [Spending.REACHED] * 6
    raised = record(replace(budget, per_month=1e5), 5.0, found, SCALING, BEGIN + 26 * HOUR)
    assert raised is not None
    assert (raised.state, raised.shed) == (Spending.WITHIN, ())
    new = record(budget, 0.01, found, SCALING, BEGIN + 30 * DAY + HOUR)
    assert new is not None
    assert (new.month, new.state, new.spent) == ("2026-12", Spending.AT_RISK, 5.0), "an hour at the cost until then"
    assert (new.shed, capped(SCALING, new)) == ((), SCALING), "a forecast takes nothing away"
    assert new.since == BEGIN + 30 * DAY


def test_a_forecast_near_the_budget_does_not_come_and_go() -> None:
    """720 hours at 1 are 720; 715 is above the budget of 710, 700 is within 5 % of it."""
    budget = Budget(710.0)
    above = record(budget, 1.0, spend(2, 1.0, budget), SCALING, BEGIN + 3 * HOUR)
    assert above is not None
    assert above.state is Spending.AT_RISK
    lower = replace(above, days=(replace(above.days[0], amount=above.days[0].amount * 0.97),))
    still = record(budget, 0.97, lower, SCALING, BEGIN + 4 * HOUR)
    assert still is not None
    assert still.forecast < 710
    assert still.state is Spending.AT_RISK


def test_every_pod_that_holds_accelerators_is_billed() -> None:
    def pod(name: str, **more: Any) -> PodReading:
        return PodReading(name, True, False, BEGIN, BEGIN, **more)

    pods = (
        pod("serves"),
        replace(pod("starts"), ready=False, ready_since=None),
        replace(pod("drains"), terminating=True),
        replace(pod("waits"), ready=False, fault=PodFault("Unschedulable", "no node")),
    )
    reading = RevisionReading("a", 4, pods, spares=(SpareReading(pod("spare"), asleep=True, loaded=False),))
    assert billed(reading) == 4
    other = RevisionReading("b", 1, (pod("dear"),))
    assert per_hour({"a": reading, "b": other}, {"b": 30.0}, 2.0) == 4 * 2.0 + 30.0


class Service:
    """A service with four busy replicas that is decided every ten minutes."""

    def __init__(self, **cost: Any) -> None:
        resources = {"accelerator": {"name": "nvidia.com/gpu", "count": 1}, "cpu": "1", "memory": "4Gi"}
        self.spec: dict[str, Any] = sample()["spec"] | {
            "scaling": {"min": 1, "max": 4, "warmSpares": 1},
            "resources": resources,
            "cost": {"perAcceleratorHour": 10.0, "budget": {"perMonth": 100, **cost}},
            "traffic": {"priorities": [{"name": "batch", "header": {"x-tier": "batch"}}]},
        }
        self.status, self.now, self.events = Status(), BEGIN, list[str]()
        self.plan: Plan | None = None

    def run(self, hours: float) -> Plan:
        for _ in range(round(hours * 6)):
            self.now += 600.0
            revisions = {
                one.hash: RevisionReading(
                    one.hash,
                    one.desired,
                    tuple(
                        PodReading(
                            f"{one.hash}-{i}",
                            True,
                            False,
                            BEGIN,
                            BEGIN,
                            load=EngineLoad(64, 90, tokens=500.0),
                            load_age=1.0,
                        )
                        for i in range(one.desired)
                    ),
                )
                for one in self.status.revisions
            }
            load = ServiceLoad(2.0, arrivals=(9.0,) * 360)
            seen = Observation("ns", "chat", "uid", 1, self.spec, self.status, revisions, (), load=load)
            self.plan = decide(seen, self.now)
            self.status = codec.load(codec.dump(self.plan.status))
            self.events += [event.reason for event in self.plan.events]
        assert self.plan is not None
        return self.plan

    @property
    def replicas(self) -> int:
        return sum(one.desired for one in self.status.revisions)

    def condition(self, kind: str) -> tuple[str, str, str]:
        return next((one.status, one.reason, one.message) for one in self.status.conditions if one.type == kind)


def test_a_service_is_decided_by_its_budget_and_says_so() -> None:
    service = Service(shed=["batch"], maxReplicas=2)
    service.run(1.5)
    assert service.replicas == 4, "the load asks for all of them"
    assert service.condition("WithinBudget")[:2] == ("True", "ForecastAboveBudget")
    service.run(1.5)
    assert service.status.spending is not None
    assert service.status.spending.shed == ("batch",)
    assert service.condition("WithinBudget")[:2] in (("False", "NearlySpent"), ("False", "BudgetReached"))
    plan = service.run(1)
    assert service.replicas == 2
    assert not [child for child in plan.children if str(child["metadata"]["name"]).endswith("-spare")]  # type: ignore[index]
    status, reason, message = service.condition("WithinBudget")
    assert (status, reason) == ("False", "BudgetReached")
    assert "of 100.00 are spent in 2026-11" in message
    assert "requests of priority batch are refused and at most 2 replicas run" in message
    assert "until 2026-12-01 00:00:00 UTC" in message
    assert "spec.cost.budget of 2026-11 is spent, and allows 2" in service.condition("Scaling")[2]
    assert [kind for kind in service.events if kind.startswith("Budget")] == [
        "BudgetAtRisk", "BudgetNearlySpent", "BudgetReached"]  # fmt: skip
    service.spec["cost"]["budget"]["perMonth"] = 1_000_000
    service.run(1)
    assert service.replicas == 4
    assert service.condition("WithinBudget")[:2] == ("True", "WithinBudget")
    assert service.events[-1] in ("BudgetRestored", "ScaledUp")
    assert "BudgetRestored" in service.events
    del service.spec["cost"]["budget"]
    service.run(0.2)
    assert service.status.spending is None
    assert not [one for one in service.status.conditions if one.type == "WithinBudget"]


def test_without_max_replicas_the_minimum_stays() -> None:
    service = Service()
    service.run(6)
    assert service.replicas == 1
    assert "at most 1 replica run" in report.sentence(service.status.spending or spend(0, 1.0, Budget(1.0)))


def test_the_numbers_are_metrics_and_go_with_the_budget() -> None:
    service = Service()
    plan = service.run(1)
    metrics = Metrics()
    metrics.planned("ns", "chat", plan)
    text = metrics.text().decode()
    assert 'pagefleet_budget{namespace="ns",service="chat"} 100.0' in text
    assert 'pagefleet_budget_spent{namespace="ns",service="chat"}' in text
    metrics.planned("ns", "chat", replace(plan, status=replace(plan.status, spending=None)))
    assert "pagefleet_budget{" not in metrics.text().decode()


def test_defaults_and_what_is_refused() -> None:
    def parsed(budget: dict[str, Any]) -> Spec | SpecErrors:
        return parse({"model": {"source": "file:///m"}, "cost": {"perAcceleratorHour": 2, "budget": budget}})

    whole = parsed({"perMonth": 10})
    assert isinstance(whole, Spec)
    assert whole.cost.budget == Budget(10, "UTC", (), 0.9, None)
    wrong = parsed({"perMonth": 10, "timeZone": "Europe/Nowhere"})
    assert isinstance(wrong, SpecErrors)
    assert "spec.cost.budget.timeZone: 'Europe/Nowhere' is no IANA time zone" in wrong.message
    zero = parsed({"perMonth": 0})
    assert isinstance(zero, SpecErrors)
    assert "spec.cost.budget.perMonth" in zero.message
