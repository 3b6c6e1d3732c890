"""Protects the watch of the stable revision in normal operation: a proven regression or an alert rolls back while the previous
revision's replicas are retained; later a condition, an Event and a metric name the revision, once, until it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest
from support.virtual.cluster import TICK
from support.virtual.watched import Watched

from pagefleet_contract.sketch import bucket_of
from pagefleet_contract.strata import FREE_STRATA, QUEUED_STRATA
from pagefleet_operator.domain.analysis.watching import load_records
from pagefleet_operator.domain.analysis.watching.minutes import Minute, StratumMinute
from pagefleet_operator.domain.analysis.watching.thinning import thinned
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import AlertRecord, Phase, Status
from pagefleet_operator.web.own_metrics import Metrics

STEPS = [{"weight": 50, "hold": "400s"}]
PAGE = {"severity": "page"}


class Measured(Watched):
    """A cluster whose gateway also reports times to first token by load; 10 requests a second, 8 in flight."""

    def __init__(self, **rollout: Any) -> None:
        super().__init__()
        self.spec["rollout"] = {"steps": STEPS, "guard": {"errors": {"maxRate": "1%"}, "latency": []}, **rollout}

    def measure(self, engines: bool = True) -> None:
        assert self.slices is not None
        super().measure(engines)
        for entry in self.status.traffic:
            slow = self.factor if entry.revision == self.status.canary else self.slow_stable
            load = {"512-1447": self.timed(entry.weight // 5, 0.1 * slow)}
            self.slices.append(Slice("g", self.now - TICK, TICK, entry.revision, "", 0, 0, load=load))
        if len(self.slices) > 1200:
            self.slices = thinned(self.slices, self.now)

    def _slice(self, revision: str, requests: int) -> Slice:
        return replace(super()._slice(revision, requests), stratum="512-1447")

    def seconds(self, count: float) -> None:
        for _ in range(round(count / (5 * TICK))):
            self.tick()

    def promoted(self) -> tuple[str, str]:
        """Let the first revision serve for a while, and promote another; return both."""
        self.until(lambda status: status.rollout.phase is Phase.IDLE and bool(status.traffic))
        first = self.status.stable
        self.seconds(700)
        self.edit(7)
        self.until(lambda status: status.stable != first, ticks=900)
        return first, self.status.stable


def test_a_late_regression_goes_back_to_the_retained_revision() -> None:
    cluster = Measured(afterPromotion={"keepPrevious": "2h"})
    first, second = cluster.promoted()
    assert cluster.status.rollout.phase is Phase.WATCHING
    cluster.seconds(1800)
    assert cluster.status.stable == second
    assert cluster.condition("Progressing").status == "False", "nobody waits two hours for it"
    cluster.slow_stable = 2.0
    began = cluster.now
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK, ticks=600)
    assert cluster.now - began <= 480
    [rejection] = cluster.status.rejected
    assert (cluster.status.stable, rejection.hash, rejection.reason) == (first, second, "LatencyRegression")
    assert "times that recorded at the same load" in rejection.message
    assert rejection.verdict is not None and rejection.verdict.outcome == "Regressed"
    assert "Regressed" not in cluster.reported, "it was rolled back: there is no regression left to look at"


def test_without_retained_replicas_people_are_told_once_and_the_end_too() -> None:
    cluster = Measured()
    _, second = cluster.promoted()
    assert cluster.status.rollout.phase is Phase.IDLE
    cluster.seconds(600)
    assert cluster.condition("Regressed").reason == "AsRecorded"
    cluster.slow_stable = 2.0
    cluster.until(lambda _: cluster.condition("Regressed").status == "True")
    message = cluster.condition("Regressed").message
    assert f"revision {second}" in message
    cluster.seconds(1200)
    assert cluster.status.stable == second
    assert cluster.condition("Regressed").message == message, "the numbers of the conviction stay"
    assert cluster.reported.count("Regressed") == 1
    metrics = Metrics()
    assert cluster.plan is not None
    metrics.planned("ns", "chat", cluster.plan)
    series = f'pagefleet_regressed{{namespace="ns",revision="{second}",service="chat",signal="ttft p95"}}'
    assert series in generate_latest(metrics.registry).decode()
    cluster.slow_stable = 1.0
    cluster.until(lambda _: cluster.condition("Regressed").status == "False", ticks=900)
    assert cluster.reported.count("RegressionEnded") == 1
    metrics.planned("ns", "chat", cluster.plan)
    assert "pagefleet_regressed{" not in generate_latest(metrics.registry).decode()


def test_a_service_without_a_predecessor_is_compared_with_its_own_record() -> None:
    cluster = Measured()
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE and bool(status.traffic))
    assert cluster.condition("Regressed").reason == "NoRecord"
    cluster.seconds(2400)
    cluster.slow_stable = 2.0
    cluster.until(lambda _: cluster.condition("Regressed").status == "True")


@pytest.mark.parametrize(("kept", "expected"), [("2h", Phase.ROLLED_BACK), ("10m", Phase.IDLE)])
def test_an_alert_rolls_back_while_the_previous_revision_is_retained(kept: str, expected: Phase) -> None:
    cluster = Measured(afterPromotion={"keepPrevious": kept}, alerts={"matchLabels": PAGE})
    first, second = cluster.promoted()
    cluster.seconds(1200)
    assert (first in cluster.replicas) == (kept == "2h")
    alert = AlertRecord("f", "Slow", cluster.now, second, cluster.now, PAGE)
    cluster.status = replace(cluster.status, alerts=(alert,))
    cluster.seconds(60)
    assert cluster.status.rollout.phase is expected
    assert cluster.status.stable == (first if kept == "2h" else second)


def test_an_empty_block_switches_the_watch_off() -> None:
    cluster = Measured(watch={}, afterPromotion={"keepPrevious": "2h"})
    cluster.promoted()
    cluster.slow_stable = 3.0
    cluster.seconds(900)
    assert (cluster.condition("Regressed").status, cluster.condition("Regressed").reason) == ("False", "NotWatched")
    assert (cluster.status.rollout.phase, cluster.status.baseline) == (Phase.IDLE, ())


def test_a_quiet_watch_writes_nothing_once_its_record_is_complete() -> None:
    cluster = Measured(afterPromotion={"keepPrevious": "3h"})
    cluster.promoted()
    cluster.seconds(600)

    def complete(status: Status) -> bool:
        own = [one for one in status.baseline if one.revision == status.stable]
        return bool(own) and sum(own[0].histogram.values()) >= load_records.COMPLETE_REQUESTS

    cluster.until(complete, ticks=2500)
    cluster.seconds(400)
    before = cluster.status
    cluster.seconds(300)
    assert cluster.status == before


def test_a_rollback_of_a_canary_leaves_the_stables_record() -> None:
    cluster = Measured()
    cluster.promoted()
    cluster.seconds(600)
    before = {one.stratum for one in cluster.status.baseline if one.revision == cluster.status.stable}
    cluster.edit(8)
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.act("abort")
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    after = {one.stratum for one in cluster.status.baseline if one.revision == cluster.status.stable}
    assert before and before <= after
    cluster.slow_stable = 2.0
    cluster.until(lambda _: cluster.condition("Regressed").status == "True")


@pytest.mark.parametrize("stratum", (*FREE_STRATA, *QUEUED_STRATA))
def test_every_load_stratum_of_the_gateways_has_a_record_that_grows(stratum: str) -> None:
    """A name that is not read back would make a new record at every look, and bound nothing."""
    minute = Minute(0.0, 1, {stratum: StratumMinute(measured={bucket_of(0.5): 100})})
    once = load_records.grown((), (minute,), "a", 0.95)
    twice = load_records.grown(once, (minute,), "a", 0.95)
    assert [load_records.is_load_record(record) for record in twice] == [True]
    assert sum(twice[0].histogram.values()) == 200
    assert list(load_records.bounds_of(twice, 0.95, 0.15)) == [stratum]
