"""Protects the end of each kind of step, also when the clock jumps, and what is watched after a promotion."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.virtual.cluster import Cluster, started

from pagefleet_cli.bench.profile import parse as parse_profile
from pagefleet_operator.domain.rollout import actions
from pagefleet_operator.domain.spec.schema.step_kinds import StepKind
from pagefleet_operator.domain.status.observation import LoadTestReading, Observation, Slice
from pagefleet_operator.domain.status.status import AlertRecord, Phase
from pagefleet_operator.metrics.gateway_windows import MAX_AHEAD_SECONDS


def test_a_preview_is_met_by_header_only() -> None:
    cluster = started([{"preview": {"duration": "20s"}}, {"weight": 50}], route={"header": {"x-canary": "always"}})
    cluster.until(lambda status: status.rollout.phase is Phase.PREVIEW)
    assert (cluster.weight(), bool(cluster.status.canary)) == (0, True)
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    assert cluster.weight() == 50


def test_a_mirror_is_stored_for_the_gateway_and_measured_by_the_engines() -> None:
    cluster = started([{"mirror": "20%", "hold": "20s"}, {"weight": 50}])
    cluster.until(lambda status: status.rollout.phase is Phase.MIRRORING)
    mirror = cluster.status.mirror
    assert mirror is not None
    assert (mirror.revision, mirror.percent, cluster.weight()) == (cluster.status.canary, 20.0, 0)
    for _ in range(30):
        cluster.tick(engines=False)
    assert cluster.status.rollout.phase is Phase.MIRRORING, "no word from the engines is no pass"
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    assert cluster.status.mirror is None
    slow = started([{"mirror": "20%", "hold": "10m"}])
    slow.factor = 4.0
    slow.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert slow.status.rejected[-1].reason == "LatencyRegression"


RESULT = {"requests": 100, "errors": 0, "ttft": {"300": 100}}


@pytest.mark.parametrize(
    ("result", "stored", "reason"),
    [
        (LoadTestReading(RESULT), {}, ""),
        (LoadTestReading(RESULT), {**RESULT, "ttft": {"295": 100}}, ""),
        (LoadTestReading(RESULT), {**RESULT, "ttft": {"200": 100}}, "LoadTest"),
        (LoadTestReading({**RESULT, "errors": 50}), {}, "LoadTest"),
        (LoadTestReading({**RESULT, "failedEndpoints": {"/v1/embeddings": "HTTP 404: no such"}}), {}, "LoadTest"),
        (LoadTestReading({**RESULT, "failedEndpoints": 7}), {}, "LoadTest"),
        (LoadTestReading(failure="no such model"), {}, "LoadTest"),
    ],
)
def test_a_load_test_is_compared_with_the_stables(
    result: LoadTestReading, stored: dict[str, object], reason: str
) -> None:
    cluster = started([{"loadTest": {"requests": 10}}, {"weight": 50}])
    cluster.until(lambda status: status.rollout.phase is Phase.LOAD_TEST)
    canary = cluster.status.canary
    assert cluster.plan is not None
    job = cluster.plan.job
    assert job is not None
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "operator:1"  # type: ignore[index]
    stable = cluster.status.stable
    records = tuple(
        replace(record, load_test=stored) if record.hash == stable else record for record in cluster.status.revisions
    )
    cluster.status = replace(cluster.status, revisions=records)
    for _ in range(5):
        cluster.tick()
    assert cluster.status.rollout.phase is Phase.LOAD_TEST
    cluster.load_test = result
    cluster.tick()
    if reason:
        assert [(one.hash, one.reason) for one in cluster.status.rejected] == [(canary, reason)]
    else:
        assert cluster.status.rollout.phase is Phase.STEP
        assert next(one for one in cluster.status.revisions if one.hash == canary).load_test == RESULT
        assert cluster.plan.job is None


def test_an_endpoint_that_does_not_work_rejects_a_canary_by_its_name() -> None:
    cluster = started([{"loadTest": {"requests": 10, "endpoints": ["/v1/models", "/v1/embeddings"]}}])
    cluster.until(lambda status: status.rollout.phase is Phase.LOAD_TEST)
    assert cluster.plan is not None and cluster.plan.job is not None
    arguments = cluster.plan.job["spec"]["template"]["spec"]["containers"][0]["args"]  # type: ignore[index]
    profile = json.loads(arguments[arguments.index("--profile") + 1])
    assert profile == {"requests": 10, "endpoints": ["/v1/models", "/v1/embeddings"]}
    assert parse_profile(json.dumps(profile)).endpoints == ("/v1/models", "/v1/embeddings"), (
        "the Job's command reads it"
    )
    cluster.load_test = LoadTestReading({**RESULT, "failedEndpoints": {"/v1/embeddings": "HTTP 404: no such route"}})
    cluster.tick()
    assert cluster.status.rejected[-1].message == (
        "endpoints of the canary that the load test checks do not work: /v1/embeddings (HTTP 404: no such route)"
    )


def test_a_load_test_does_not_wait_for_ever() -> None:
    cluster = started([{"loadTest": {"timeout": "60s"}}])
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert "has not ended within its timeout of 60 s" in cluster.status.rejected[-1].message


def test_min_requests_hold_a_step() -> None:
    cluster = started([{"weight": 50, "minRequests": 400}])
    cluster.until(lambda status: status.rollout.phase is Phase.PROMOTING)
    counted = sum(piece.requests for piece in cluster.slices or () if piece.revision == cluster.status.canary)
    assert counted >= 400


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 86400.0, -86400.0])
def test_a_jump_of_the_clock_ends_no_step_early(jump: float) -> None:
    cluster = started([{"weight": 10, "hold": "60s"}, {"weight": 50, "hold": "60s"}])
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    for _ in range(10):
        cluster.tick()
    cluster.now += jump
    for tick in range(15):
        cluster.tick()
        assert cluster.status.rollout.step == 0, f"after {20 + 2 * tick} s of 60"
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


class Failing(Cluster):
    """Its canary fails, and what is measured is retained between two decisions as the readers retain it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.spec["rollout"] = {"guard": {"latency": [], "errors": {"maxRate": "1%"}}}
        self.failed = self.stable_failed = 0  # of the requests of two seconds
        self.memo = dict[str, object]()

    def observe(self) -> Observation:
        self.slices = [piece for piece in self.slices or () if piece.start <= self.now + MAX_AHEAD_SECONDS]
        return replace(super().observe(), memo=self.memo)

    def _slice(self, revision: str, requests: int) -> Slice:
        failed = self.failed if revision == self.status.canary else self.stable_failed
        return replace(super()._slice(revision, requests), errors=min(requests, failed), started=requests)


@pytest.mark.parametrize("jump", [0.0, -300.0, -3600.0, -86400.0])
def test_after_the_clock_was_set_back_a_canary_is_judged_by_what_comes(jump: float) -> None:
    cluster = Failing()
    cluster.serving()
    cluster.request(rollout={**cluster.spec["rollout"], "steps": [{"weight": 50, "hold": "1h"}]})
    cluster.edit(2)
    cluster.until(lambda _: cluster.weight() == 50)
    for _ in range(200):
        cluster.tick()
    cluster.now += jump
    for _ in range(5):
        cluster.tick()
    assert cluster.status.rollout.phase is Phase.STEP
    cluster.failed = 10
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK, ticks=45)
    assert cluster.status.rejected[-1].reason == "ErrorRate"


def test_a_canary_that_fails_as_often_as_the_stable_stays_after_its_promotion() -> None:
    cluster = Failing()
    cluster.failed = cluster.stable_failed = 1
    cluster.serving()
    after = {"steps": [{"weight": 50, "hold": "5m"}], "afterPromotion": {"watch": "10m"}}
    cluster.request(rollout={**cluster.spec["rollout"], **after})
    cluster.edit(2)
    cluster.until(lambda status: status.rollout.phase is Phase.WATCHING)
    cluster.until(lambda status: status.rollout.phase is not Phase.WATCHING)
    assert cluster.status.rollout.phase is Phase.IDLE and not cluster.status.rejected


def test_an_alert_that_pauses_lets_go_when_resolved() -> None:
    cluster = started(alerts={"matchLabels": {"severity": "page"}, "onAlert": "pause"})
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    alert = AlertRecord("f", "Bad", cluster.now, cluster.status.canary, cluster.now, {"severity": "page"})
    cluster.status = replace(cluster.status, alerts=(alert,))
    for _ in range(60):
        cluster.tick()
    assert (cluster.status.rollout.paused, cluster.status.rollout.step) == ("alert Bad", 0)
    cluster.status = replace(cluster.status, alerts=(replace(alert, resolved=True),))
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


def test_a_person_goes_on_although_an_alert_is_silenced_and_never_ends() -> None:
    cluster = started(alerts={"matchLabels": {"severity": "page"}, "onAlert": "pause"})
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    alert = AlertRecord("f", "Bad", cluster.now, cluster.status.canary, cluster.now, {"severity": "page"})
    cluster.status = replace(cluster.status, alerts=(alert,))
    cluster.tick()
    assert cluster.status.rollout.paused == "alert Bad"
    cluster.act("resume")
    assert cluster.status.action is not None
    assert (cluster.status.action.outcome, cluster.status.action.message) == (
        "Done", "the rollout goes on; its step begins again, and alert Bad counts no more"
    )  # fmt: skip
    cluster.tick()
    assert not cluster.status.rollout.paused
    later = replace(alert, fingerprint="g", name="Worse", received=cluster.now)
    cluster.status = replace(cluster.status, alerts=(alert, later))
    cluster.tick()
    assert cluster.status.rollout.paused == "alert Worse"
    cluster.act("resume")
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


def test_after_promotion_a_regression_goes_back_to_the_last_good_revision() -> None:
    cluster = started([{"weight": 50, "hold": "200s"}], afterPromotion={"watch": "30m", "keepPrevious": "1h"})
    first = cluster.status.stable
    cluster.until(lambda status: status.rollout.phase is Phase.WATCHING)
    bad = cluster.status.stable
    assert cluster.condition("Progressing").reason == "Watching"
    assert cluster.status.baseline
    assert first in cluster.replicas
    cluster.slow_stable = 4.0
    verdicts = []
    while cluster.status.rollout.phase is not Phase.ROLLED_BACK and len(verdicts) < 400:
        cluster.tick()
        verdicts.append(cluster.status.rollout.verdict)
    assert (cluster.status.stable, cluster.status.rejected[-1].hash) == (first, bad)
    assert not [one.message for one in verdicts if one and one.outcome == "Passed" and one.evidence > 1e4]


def test_the_watch_ends_well() -> None:
    cluster = started([{"weight": 50, "hold": "200s"}], afterPromotion={"watch": "5m"})
    cluster.until(lambda status: status.rollout.phase is Phase.WATCHING)
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE, ticks=400)
    assert cluster.status.baseline == ()
    assert cluster.condition("Progressing").status == "False"


def test_too_few_free_pages_for_too_long() -> None:
    cluster = started([{"weight": 10, "hold": "1h"}], guard={"freePages": {"min": "10%", "for": "60s"}})
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.kv_pages_free = 5
    began = cluster.now
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.status.rejected[-1].reason == "FreePages"
    assert 58 <= cluster.now - began <= 66


def test_every_kind_of_step_has_a_phase() -> None:
    from pagefleet_operator.domain.rollout.steps import PHASES

    assert set(PHASES) == set(StepKind)
    assert json.loads(json.dumps(list(actions.ACTIONS)))
