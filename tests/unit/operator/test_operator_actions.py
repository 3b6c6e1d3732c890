"""Protects the actions that people write as an annotation: every action once per id, each refusal with a reason, undo to
any stored revision. Protects the end of each kind of step, also when the clock jumps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.virtual.cluster import Cluster

from pagefleet_cli.bench.profile import parse as parse_profile
from pagefleet_operator.domain.rollout import actions
from pagefleet_operator.domain.rollout.actions import Request, Unreadable, parse
from pagefleet_operator.domain.spec.schema.step_kinds import StepKind
from pagefleet_operator.domain.status.observation import LoadTestReading
from pagefleet_operator.domain.status.status import AlertRecord, Phase


def started(steps: list[dict[str, Any]] | None = None, **rollout: Any) -> Cluster:
    """Return a cluster whose first revision serves, and whose spec just asked for a second one."""
    cluster = Cluster(1)
    cluster.until(lambda status: bool(status.traffic))
    if steps is not None:
        cluster.spec["rollout"]["steps"] = steps
    cluster.spec["rollout"].update(rollout)
    cluster.edit(2)
    return cluster


@pytest.mark.parametrize(
    "text",
    ["no", "[]", "null", "{}", '{"id": 5, "action": "pause"}', '{"id": "", "action": "pause"}', '{"id": "a"}',
     '{"id": "a", "action": "destroy"}', '{"id": "a", "action": "pause", "revision": "b"}',
     '{"id": "a", "action": "undo", "revision": 5}', '{"id": "a", "action": "pause", "more": 1}', "[" * 100_000],
)  # fmt: skip
def test_an_annotation_that_is_no_action_is_refused_once(text: str) -> None:
    assert isinstance(parse(text), Unreadable)
    cluster = started()
    cluster.action = text
    status = cluster.tick()
    assert status.action is not None
    assert status.action.outcome == "Refused"
    cluster.tick()
    assert cluster.status.action == status.action


def test_an_action_is_read() -> None:
    assert parse("") is None
    assert parse('{"id": "a", "action": "undo", "revision": "b", "by": "c"}') == Request("a", "undo", "b", "c")


def test_pause_holds_the_step_and_resume_begins_it_again() -> None:
    cluster = started([{"weight": 10, "hold": "20s"}, {"weight": 50, "hold": "20s"}])
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.act("pause")
    for _ in range(60):
        cluster.tick()
    assert cluster.status.rollout.step == 0
    assert cluster.status.rollout.paused
    assert cluster.condition("Progressing").reason == "Paused"
    cluster.act("pause")
    assert cluster.answer() == ("Refused", cluster.status.rollout.paused in cluster.status.action.message)  # type: ignore[union-attr]
    cluster.act("resume")
    assert cluster.answer()[0] == "Done"
    assert not cluster.status.rollout.paused
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


def test_an_untimed_pause_waits_for_resume() -> None:
    cluster = started([{"weight": 10}, {"pause": {}}, {"weight": 50}])
    cluster.until(lambda status: status.rollout.phase is Phase.PAUSED)
    for _ in range(60):
        cluster.tick()
    assert (cluster.status.rollout.phase, cluster.weight()) == (Phase.PAUSED, 10)
    cluster.act("resume")
    cluster.until(lambda status: not status.canary)
    assert cluster.status.rollout.phase is Phase.IDLE


def test_promote_skips_the_rest_but_not_the_capacity() -> None:
    cluster = started([{"weight": 10}, {"pause": {}}])
    cluster.until(lambda status: status.rollout.phase is Phase.PAUSED)
    canary = cluster.status.canary
    cluster.act("promote")
    assert cluster.answer()[0] == "Done"
    cluster.until(lambda status: status.stable == canary)
    assert cluster.status.previous is not None


def test_skip_goes_to_the_next_step() -> None:
    cluster = started([{"weight": 10, "hold": "1h"}, {"weight": 50, "hold": "1h"}])
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    cluster.act("skip")
    assert (cluster.answer()[0], cluster.status.rollout.step) == ("Done", 1)


def test_abort_then_retry() -> None:
    cluster = started()
    cluster.until(lambda status: status.rollout.phase is Phase.STEP)
    stable, canary = cluster.status.stable, cluster.status.canary
    cluster.act("abort")
    assert cluster.answer()[0] == "Done"
    assert cluster.status.rollout.phase is Phase.ROLLED_BACK
    assert [(one.hash, one.reason) for one in cluster.status.rejected] == [(canary, "Aborted")]
    for _ in range(30):
        cluster.tick()
    assert (cluster.status.stable, cluster.status.canary) == (stable, "")
    cluster.act("retry")
    cluster.until(lambda status: status.canary == canary)
    assert cluster.status.rejected == ()


def test_undo_raises_the_earlier_revision_before_it_gets_traffic() -> None:
    cluster = started([])
    first = cluster.status.stable
    cluster.until(lambda status: status.stable != first and not status.draining and first not in cluster.replicas)
    bad = cluster.status.stable
    cluster.act("undo")
    assert cluster.answer()[0] == "Done"
    assert cluster.status.rollout.phase is Phase.ROLLING_BACK
    assert {entry.revision: entry.weight for entry in cluster.status.traffic} == {bad: 100}
    assert cluster.condition("RolledBack").status == "True"
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert (cluster.status.stable, cluster.weights()) == (first, {first: 100})
    for _ in range(30):
        cluster.tick()
    assert cluster.status.stable == first, "the spec's own revision is not tried again"
    cluster.act("undo", revision=bad)
    assert "is what the spec asks for" in cluster.status.action.message  # type: ignore[union-attr]


def test_undo_goes_to_any_stored_revision() -> None:
    cluster = started([])
    revisions = [cluster.status.stable]
    for number in (2, 3, 4):
        cluster.edit(number)
        cluster.until(lambda status: status.stable not in revisions)
        revisions.append(cluster.status.stable)
    cluster.act("undo", revision="nothing")
    assert "is not stored" in cluster.status.action.message  # type: ignore[union-attr]
    cluster.act("undo", revision=revisions[0])
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {revisions[0]: 100}


def test_history_has_its_limit_and_the_specs() -> None:
    cluster = started([], historyLimit=5)
    for number in range(12, 20):
        cluster.edit(number)
        before = cluster.status.stable
        cluster.until(lambda status, before=before: status.stable != before)
    for _ in range(10):
        cluster.tick()
    assert 4 <= len(cluster.status.revisions) <= 5
    assert all(record.spec["engine"] for record in cluster.status.revisions)


@pytest.mark.parametrize("action", ["promote", "pause", "resume", "abort", "retry", "skip", "undo"])
def test_nothing_to_act_on_is_a_refusal(action: str) -> None:
    cluster = Cluster(1)
    cluster.until(lambda status: status.rollout.phase is Phase.IDLE and bool(status.traffic))
    before = cluster.status
    cluster.act(action)
    assert cluster.answer()[0] == "Refused"
    assert (cluster.status.stable, cluster.status.traffic) == (before.stable, before.traffic)


def test_with_an_invalid_spec_only_the_way_back_is_open() -> None:
    for way in ("abort", "alert"):
        cluster = started()
        cluster.until(lambda status: status.rollout.phase is Phase.STEP)
        stable, canary = cluster.status.stable, cluster.status.canary
        cluster.spec["scaling"]["min"] = 99
        cluster.act("promote")
        assert cluster.answer() == ("Refused", True)
        assert "the spec is invalid" in cluster.status.action.message  # type: ignore[union-attr]
        assert cluster.weight() == 10
        if way == "abort":
            cluster.act("abort")
            assert cluster.answer() == ("Done", True)
        else:
            alert = AlertRecord("f", "Bad", cluster.now, canary, cluster.now, {"severity": "page"})
            cluster.status = replace(cluster.status, alerts=(alert,))
            cluster.tick()
        assert (cluster.weights(), cluster.status.rollout.phase) == ({stable: 100}, Phase.ROLLED_BACK)
        assert cluster.status.rejected[-1].hash == canary


def test_a_rollback_under_way_goes_on_with_an_invalid_spec() -> None:
    cluster = started([])
    first = cluster.status.stable
    cluster.until(lambda status: status.stable != first and not status.draining and first not in cluster.replicas)
    cluster.act("undo")
    assert cluster.status.rollout.phase is Phase.ROLLING_BACK
    cluster.spec["scaling"]["min"] = 99
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {first: 100}


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
