"""Protects what the status page says: how a service stands, the sentences over it, the numbers of its pods and their past;
that memory stays bounded, also when the clock jumps; and that odd objects are shown instead of failing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from browser import fleet

from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.status import (
    Condition,
    Phase,
    RevisionRecord,
    RolloutRecord,
    Status,
    VerdictRecord,
    Weight,
)
from pagefleet_operator.web import view
from pagefleet_operator.web.snapshot import MAX_CHANGES, MAX_PODS, MAX_POINTS, Snapshot, taken
from pagefleet_operator.web.view import State, duration, expectation, headline, sentence

NOW = 1_800_000_000.0


def snapshots(status: Status, times: list[float], before: Snapshot | None = None) -> Snapshot:
    for now in times:
        before = taken(before, fleet.seen("a", "chat", status, now), status, now)
    assert before is not None
    return before


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (fleet.idle(NOW), State.HEALTHY),
        (fleet.idle(NOW, ready=0), State.NOT_READY),
        (fleet.idle(NOW, degraded=True), State.DEGRADED),
        (fleet.rollout(NOW), State.ROLLOUT),
        (replace(fleet.rollout(NOW), rollout=RolloutRecord(Phase.STEP, paused="alert Slow")), State.PAUSED),
        (replace(fleet.rollout(NOW), rollout=RolloutRecord(Phase.PAUSED)), State.PAUSED),
        (replace(fleet.rollout(NOW), rollout=RolloutRecord(Phase.ROLLING_BACK)), State.ROLLING_BACK),
        (replace(fleet.idle(NOW), rollout=RolloutRecord(Phase.ROLLED_BACK)), State.ROLLED_BACK),
        (replace(fleet.idle(NOW), rollout=RolloutRecord(Phase.WATCHING)), State.HEALTHY),
        (Status(traffic=(Weight("a", 100),), revisions=(RevisionRecord("a", 1.0),)), State.ASLEEP),
        (Status(), State.NOT_READY),
    ],
)
def test_how_a_service_stands(status: Status, expected: State) -> None:
    assert view.state(status) is expected


def test_trouble_comes_before_a_rollout_behind_it() -> None:
    degraded = Condition("Degraded", "True", "X", "", NOW, 1)
    assert view.state(replace(fleet.rollout(NOW), conditions=(degraded,))) is State.DEGRADED


def test_a_row_counts_only_pods_that_were_read() -> None:
    status = fleet.rollout(NOW)
    document = fleet.document("a", "chat", status)
    assert view.row(document, None)["queue"] is None
    found = view.row(document, snapshots(status, [NOW]))
    readings = [pod for r in fleet.seen("a", "chat", status, NOW).revisions.values() for pod in r.pods]
    loads = [pod.load for pod in readings if pod.load is not None]
    assert found["queue"] == sum(load.waiting for load in loads)
    fullest = min(load.kv_pages_free for load in loads if load.kv_pages_free is not None)
    assert found["used"] == pytest.approx(1 - fullest / 1024)
    assert (found["ready"], found["desired"], found["weight"]) == (11, 11, 25)


def test_a_row_counts_the_pods_that_the_page_has_no_room_for() -> None:
    loads = [
        EngineLoad(waiting=2, kv_pages_total=100, kv_pages_free=100 - number // 4) for number in range(MAX_PODS + 44)
    ]
    pods = tuple(PodReading(f"p{n}", True, False, NOW, NOW, load=load, load_age=1.0) for n, load in enumerate(loads))
    seen = Observation("a", "b", "u", 1, {}, Status(), {"r": RevisionReading("r", len(pods), pods)})
    found = view.row({"metadata": {"name": "b", "namespace": "a"}}, taken(None, seen, Status(), NOW))
    assert (found["queue"], found["used"]) == (2 * len(pods), pytest.approx(0.74))


def test_a_stale_reading_is_no_reading() -> None:
    load = EngineLoad(waiting=9, kv_pages_total=10, kv_pages_free=1)
    stale = PodReading("p", True, False, NOW, NOW, load=load, load_age=300.0)
    seen = Observation("a", "b", "u", 1, {}, Status(), {"r": RevisionReading("r", 1, (stale,))})
    (pod,) = taken(None, seen, Status(), NOW).pods
    assert (pod.state, pod.waiting, pod.used) == ("Ready", None, None)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_a_sentence(phase: Phase) -> None:
    said = headline(replace(fleet.rollout(NOW), rollout=RolloutRecord(phase, 1)), 4)
    assert said[0].isupper()
    assert said.endswith(".")
    assert fleet.STABLE in said or fleet.CANARY in said


def test_the_headline_names_step_weight_and_who_holds_it_up() -> None:
    status = fleet.rollout(NOW)
    assert headline(status, 2) == (
        f"Canary {fleet.CANARY} gets 25 % of requests (step 1 of 2). No verdict yet; one is expected in about 3 min."
    )
    held = replace(status, rollout=replace(status.rollout, paused="alert Slow", verdict=None))
    assert headline(held, 2).endswith("(step 1 of 2). Held up by alert Slow.")


@pytest.mark.parametrize(
    ("outcome", "expected", "said"),
    [
        ("Regressed", None, "Verdict: ttft p95 has regressed."),
        ("Passed", None, "Verdict: no regression."),
        ("Inconclusive", None, "No verdict yet after 12 requests."),
        ("Inconclusive", 7200.0, "No verdict yet; one is expected in about 2 h."),
    ],
)
def test_what_is_expected_of_the_guard(outcome: str, expected: float | None, said: str) -> None:
    verdict = VerdictRecord(outcome, "ttft p95", 0.0, 0.05, None, None, None, 12, 0.0, "", expected)
    assert expectation(RolloutRecord(Phase.STEP, verdict=verdict)) == said


def test_durations_and_sentences_are_for_people() -> None:
    assert [duration(s) for s in (0, 40, 89, 90, 3600, 7200)] == ["1 s", "40 s", "89 s", "2 min", "60 min", "2 h"]
    assert sentence("replicas 1 to 2") == "Replicas 1 to 2."
    assert sentence("spec.model: unknown") == "spec.model: unknown."
    assert sentence("") == ""


def test_a_page_is_json_and_has_every_stratum_over_time() -> None:
    status = fleet.rollout(NOW)
    page = view.page(fleet.document("a", "chat", status), snapshots(status, [NOW - 10, NOW - 5, NOW]), NOW)
    assert json.loads(json.dumps(page)) == page
    assert [series["slice"] for series in page["series"]] == [
        "64-180 new prompt tokens", "512-1447 new prompt tokens", "4096-11584 new prompt tokens"
    ]  # fmt: skip
    assert all(len(series["points"]) == 3 for series in page["series"])
    assert page["series"][0]["points"][-1][1] == status.rollout.verdicts[0].stable_p95
    assert [entry["kind"] for entry in page["decisions"]] == ["StepAdvanced", "CanaryStarted", "ScaledUp"]
    assert not page["stale"]


def test_points_are_of_one_rollout_and_not_too_close() -> None:
    status = fleet.rollout(NOW)
    close = snapshots(status, [NOW + step for step in range(11)])
    assert len(close.points) == 3 * 3  # at 0, 5 and 10 seconds, three strata
    later = replace(status, rollout=replace(status.rollout, started=NOW + 99))
    assert len(snapshots(later, [NOW + 100], close).points) == 3


def test_memory_is_bounded() -> None:
    status, snapshot = fleet.rollout(NOW), None
    for step in range(MAX_POINTS + 60):
        records = (replace(status.revisions[0], ready=step), status.revisions[1])
        changed = replace(status, revisions=records)
        snapshot = snapshots(changed, [NOW + step * 10], snapshot)
    assert snapshot is not None
    assert len(snapshot.points) == 3 * MAX_POINTS
    assert snapshot.points[-1].time == NOW + (MAX_POINTS + 59) * 10
    assert len(snapshot.replicas) == MAX_CHANGES
    pods = tuple(PodReading(f"p{n}", True, False, NOW, NOW) for n in range(MAX_PODS + 9))
    many = Observation("a", "b", "u", 1, {}, Status(), {"r": RevisionReading("r", len(pods), pods)})
    crowded = taken(None, many, Status(), NOW)
    assert (len(crowded.pods), crowded.left_out) == (MAX_PODS, 9)


def test_replicas_are_kept_as_changes_and_a_clock_set_back_forgets_the_future() -> None:
    status = fleet.idle(NOW)
    assert len(snapshots(status, [NOW, NOW + 60, NOW + 120]).replicas) == 1
    back = snapshots(status, [NOW, NOW - 500])
    assert [entry.time for entry in back.replicas] == [NOW - 500]
    grown = snapshots(fleet.idle(NOW, ready=3), [NOW + 200_000], snapshots(status, [NOW]))
    assert [entry.time for entry in grown.replicas] == [NOW, NOW + 200_000]  # how it stood before is still known


@pytest.mark.parametrize(
    "odd", [{}, {"status": {"traffic": "x", "rollout": 5}}, {"spec": {"model": []}}, {"spec": {"model": {"source": 5}}}]
)
def test_odd_objects_are_shown(odd: dict[str, Any]) -> None:
    document = {"metadata": {"name": "x", "namespace": "y"}, **odd}
    assert view.row(document, None)["state"] is State.NOT_READY
    assert view.page(document, None, NOW)["stale"]


def test_a_status_survives_the_api_server() -> None:
    """What the browser tests show has the form in which it is stored."""
    status = fleet.rollout(NOW)
    assert codec.load(codec.dump(status)) == status


def test_a_page_shows_objectives_and_the_owner_and_no_address_that_a_browser_would_run() -> None:
    status = fleet.rollout(NOW)
    shown = view.page(fleet.document("a", "chat", status), None, NOW)
    assert shown["slo"] == -0.12, "the worst of them"
    assert [(one["name"], one["left"], one["runsOut"]) for one in shown["objectives"]] == [
        ("chat", 0.73, 1_800_500_000.0),
        ("up", -0.12, None),
    ]
    assert "days" not in shown["objectives"][0]
    assert shown["owner"] == fleet.OWNER
    odd = {**fleet.document("a", "chat", status), "spec": {"owner": {"team": 7, "runbook": "javascript:alert(1)"}}}
    assert view.page(odd, None, NOW)["owner"] == {"team": "", "contact": "", "runbook": ""}


def test_a_page_shows_the_capacity_plan_beside_what_is_measured() -> None:
    shown = view.page(fleet.document("a", "chat", fleet.rollout(NOW)), None, NOW)["capacityPlan"]
    assert [(one["name"], one["revision"], one["planned"], one["measured"], one["finding"]) for one in shown] == [
        ("perRequest.kvTokens", fleet.STABLE, 1200.0, 1150.0, "AsPlanned"),
        ("perReplica.outputTokensPerSecond", fleet.CANARY, 1500.0, 640.0, "BelowPlan"),
        ("perRequest.outputTokens", fleet.CANARY, 250.0, None, ""),
    ]
    assert view.page(fleet.document("a", "chat", fleet.idle(NOW)), None, NOW)["capacityPlan"] == []
