"""Protects what a service knows after its status is lost: a rejected revision gets no pod and no traffic, the recorded stable
revision serves with its recorded spec, and a new spec is a canary beside it; in whatever order records and service come."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from support.sample_service import sample
from support.virtual.cluster import Cluster

from pagefleet_contract.names import RECORDED_FOR_ANNOTATION, REJECTED_ANNOTATION, ROLE_ANNOTATION
from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.records import manifest, restoring
from pagefleet_operator.domain.spec.policy import Policy
from pagefleet_operator.domain.status.status import Phase, Status


def rejected(cluster: Cluster) -> tuple[str, str]:
    """Let a first revision serve, and have a second one rolled back. Returns (stable, rejected)."""
    cluster.until(lambda status: bool(status.traffic))
    cluster.edit(7)
    cluster.until(lambda status: bool(status.canary))
    bad = cluster.status.canary
    cluster.act("abort")
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    return cluster.status.stable, bad


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(1)


def annotations(cluster: Cluster, revision: str) -> dict[str, str]:
    text: dict[str, str] = cluster.records[f"chat-{revision}"]["metadata"]["annotations"]
    return text


def test_each_revision_has_a_record_with_its_spec_and_its_verdict(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    assert set(cluster.records) == {f"chat-{good}", f"chat-{bad}"}
    assert annotations(cluster, good)[ROLE_ANNOTATION] == "stable"
    assert annotations(cluster, bad)[ROLE_ANNOTATION] == ""
    assert annotations(cluster, bad)[REJECTED_ANNOTATION] == "Aborted"
    assert annotations(cluster, bad)[RECORDED_FOR_ANNOTATION] == cluster.uid
    for name in (good, bad):
        record = cluster.records[f"chat-{name}"]
        assert "ownerReferences" not in record["metadata"]
        assert revision_hash(record["data"]["spec"]) == name


def test_a_first_revision_is_not_recorded_as_stable_before_it_serves(cluster: Cluster) -> None:
    cluster.tick()
    stable = cluster.status.stable
    assert not cluster.status.traffic
    assert annotations(cluster, stable)[ROLE_ANNOTATION] == ""
    cluster.until(lambda status: bool(status.traffic))
    assert annotations(cluster, stable)[ROLE_ANNOTATION] == "stable"


def test_records_stay_as_they_are_while_nothing_happens(cluster: Cluster) -> None:
    rejected(cluster)
    before = copy.deepcopy(cluster.records)
    for _ in range(20):
        cluster.tick()
    assert cluster.records == before


def test_a_rejected_spec_stays_rejected_and_the_recorded_stable_serves(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    specs = {record.hash: record.spec for record in cluster.status.revisions}
    cluster.replace_service()
    for _ in range(40):
        cluster.tick()
        assert bad not in cluster.replicas
        assert bad not in cluster.weights()
    assert cluster.weights() == {good: 100}
    assert cluster.status.rollout.phase is Phase.ROLLED_BACK
    condition = cluster.condition("RolledBack")
    assert (condition.status, condition.reason) == ("True", "Aborted")
    assert bad in condition.message
    assert {record.hash: record.spec for record in cluster.status.revisions} == specs
    assert annotations(cluster, bad)[RECORDED_FOR_ANNOTATION] == cluster.uid


def test_the_state_is_said_while_the_recorded_revision_starts(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    cluster.replace_service()
    cluster.tick()
    assert (cluster.status.rollout.phase, cluster.status.stable, cluster.weights()) == (Phase.RESTORING, good, {})
    assert cluster.condition("Progressing").reason == "Restoring"
    entry = next(one for one in cluster.status.decisions if one.kind == "Restored")
    assert good in entry.message
    assert f"{bad} (Aborted)" in entry.message


def test_the_recorded_stable_spec_serves_at_once(cluster: Cluster) -> None:
    good, _ = rejected(cluster)
    cluster.spec = sample()["spec"]
    cluster.replace_service()
    cluster.until(lambda status: bool(status.traffic))
    cluster.tick()
    assert (cluster.weights(), cluster.status.rollout.phase) == ({good: 100}, Phase.IDLE)


def test_a_new_spec_is_a_canary_beside_the_recorded_stable(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    cluster.edit(11)
    cluster.replace_service()
    cluster.until(lambda status: bool(status.canary))
    assert (cluster.status.stable, cluster.weights()) == (good, {good: 100})
    assert cluster.status.canary not in (good, bad)


def test_without_records_a_service_starts_as_ever(cluster: Cluster) -> None:
    _, bad = rejected(cluster)
    cluster.replace_service(records=False)
    cluster.until(lambda status: bool(status.traffic))
    assert cluster.weights() == {bad: 100}


def test_records_that_come_one_by_one_after_the_service_change_the_course(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    saved = cluster.records
    for first, second in ((good, bad), (bad, good)):
        cluster.replace_service(records=False)
        cluster.now += restoring.GRACE_SECONDS
        cluster.tick()
        assert cluster.status.stable == bad  # nothing is known of it yet
        for name in (first, second):
            cluster.records[f"chat-{name}"] = copy.deepcopy(saved[f"chat-{name}"])
            for _ in range(4):
                cluster.tick()
                assert bad not in cluster.weights()
        cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
        assert cluster.weights() == {good: 100}


def test_records_that_come_when_the_rejected_revision_serves_roll_it_back_capacity_first(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    saved = cluster.records
    cluster.replace_service(records=False)
    cluster.until(lambda status: bool(status.traffic))
    assert cluster.weights() == {bad: 100}
    cluster.records = copy.deepcopy(saved)
    cluster.tick()
    assert (cluster.status.rollout.phase, cluster.status.canary) == (Phase.ROLLING_BACK, bad)
    assert cluster.weights() == {bad: 100}  # until the recorded one has a ready pod
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {good: 100}


def test_an_old_export_that_is_applied_to_a_running_service_is_written_over(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    export = copy.deepcopy(cluster.records)
    cluster.replace_service()
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    cluster.act("retry")
    cluster.until(lambda status: status.stable == bad and status.rollout.phase is Phase.IDLE, 3000)
    cluster.now += restoring.LATE_SECONDS
    for name, record in export.items():
        record["metadata"]["resourceVersion"] = "applied"
        cluster.records[name] = record
    for _ in range(5):
        cluster.tick()
        assert cluster.weights() == {bad: 100}
    assert annotations(cluster, bad)[ROLE_ANNOTATION] == "stable"
    assert annotations(cluster, bad)[REJECTED_ANNOTATION] == ""
    assert annotations(cluster, good)[ROLE_ANNOTATION] == "previous"


def test_a_service_of_an_earlier_operator_gets_its_records_at_the_next_decision(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    cluster.records = {}
    cluster.tick()
    assert annotations(cluster, good)[ROLE_ANNOTATION] == "stable"
    assert annotations(cluster, bad)[REJECTED_ANNOTATION] == "Aborted"


def test_a_rejected_spec_without_a_stable_record_waits_for_a_person(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    cluster.replace_service()
    del cluster.records[f"chat-{good}"]
    for _ in range(5):
        cluster.tick()
        assert cluster.replicas == {}
    condition = cluster.condition("Ready")
    assert condition.reason == "NoStableRevision"
    assert f"revision {bad} was rejected (Aborted" in condition.message
    assert "kubectl pagefleet rollout retry chat -n ns" in condition.message
    cluster.act("retry")
    assert cluster.answer() == ("Done", True)
    cluster.until(lambda status: bool(status.traffic))
    assert cluster.weights() == {bad: 100}


def test_a_new_service_waits_for_records_that_are_applied_after_it(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    saved = cluster.records
    cluster.replace_service(records=False)
    cluster.created = cluster.now + 1.0  # observed a second later
    cluster.tick()
    assert (cluster.status, cluster.replicas) == (Status(), {})
    assert cluster.plan is not None
    assert 0 < cluster.plan.requeue <= restoring.GRACE_SECONDS
    cluster.records = saved
    cluster.tick()
    assert cluster.status.stable == good
    assert bad not in cluster.replicas


def test_an_exported_service_waits_for_its_records_for_ever(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    saved = cluster.records
    cluster.replace_service(records=False)
    cluster.announced = 2
    for present in ([], [bad]):
        cluster.records = {f"chat-{name}": copy.deepcopy(saved[f"chat-{name}"]) for name in present}
        for _ in range(10):
            cluster.tick()
            assert cluster.replicas == {}
    assert cluster.condition("Ready").reason == "AwaitingRecords"
    assert "1 of the 2 records" in cluster.condition("Ready").message
    cluster.records = saved
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {good: 100}


def test_a_person_retries_after_a_restore(cluster: Cluster) -> None:
    _, bad = rejected(cluster)
    cluster.replace_service()
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    cluster.act("retry")
    cluster.until(lambda status: status.canary == bad)
    assert annotations(cluster, bad)[REJECTED_ANNOTATION] == ""


def test_a_status_that_was_restored_with_the_service_counts_more_than_its_records(cluster: Cluster) -> None:
    good, bad = rejected(cluster)
    stale = copy.deepcopy(cluster.records)
    cluster.act("retry")
    cluster.until(lambda status: status.stable == bad and status.rollout.phase is Phase.IDLE, 3000)
    cluster.uid, cluster.created, cluster.records = "restored", cluster.now + 3600, stale
    cluster.now += 3600
    for _ in range(5):
        cluster.tick()
    assert cluster.weights() == {bad: 100}
    assert annotations(cluster, bad)[ROLE_ANNOTATION] == "stable"
    assert annotations(cluster, good)[ROLE_ANNOTATION] == "previous"


def test_a_lost_status_is_restored_from_records_of_the_same_uid(cluster: Cluster) -> None:
    good, _ = rejected(cluster)
    cluster.status = Status()
    cluster.until(lambda status: status.rollout.phase is Phase.ROLLED_BACK)
    assert cluster.weights() == {good: 100}


def test_a_record_whose_spec_is_not_allowed_makes_nothing_stable(cluster: Cluster) -> None:
    good, _ = rejected(cluster)
    cluster.edit(11)
    cluster.replace_service()
    spec: dict[str, Any] = cluster.records[f"chat-{good}"]["data"]["spec"]
    spec["engine"]["image"] = "evil.example.com/engine:1"
    for _ in range(3):
        cluster.wait()
        cluster.decided(replace(cluster.observe(), policy=Policy(images=("docker.io/*",))))
    assert cluster.status.stable != good
    assert f"chat-{good}" in cluster.records
    assert [one.kind for one in cluster.status.decisions].count("RecordRefused") == 1


@pytest.mark.parametrize("spec", [None, [], {}, {"model": 3}, {"model": {"source": "hf://a/b"}, "engine": "x"}])
def test_a_record_that_no_pod_can_be_built_from_makes_nothing_stable(cluster: Cluster, spec: object) -> None:
    good, bad = rejected(cluster)
    cluster.edit(11)
    cluster.replace_service()
    cluster.records[f"chat-{good}"]["data"] = {"spec": spec}
    cluster.tick()
    assert cluster.status.stable not in (good, bad)
    assert [one.hash for one in cluster.status.rejected] == [bad]


def test_a_recorded_stable_that_does_not_start_gives_way_to_a_spec_that_was_never_rejected(cluster: Cluster) -> None:
    good, _ = rejected(cluster)
    cluster.edit(11)
    cluster.replace_service()
    cluster.tick()
    cluster.pods[good] = [float("inf")]
    cluster.until(lambda status: status.stable != good, 2000)
    assert "RestoreFailed" in [one.kind for one in cluster.status.decisions]
    assert annotations(cluster, good)[ROLE_ANNOTATION] == "previous"


def test_the_number_of_records_is_bounded_by_the_history(cluster: Cluster) -> None:
    cluster.spec["rollout"] = {"historyLimit": 2, "steps": [{"weight": 50, "hold": "10s"}], "guard": {}}
    cluster.until(lambda status: bool(status.traffic))
    for number in range(10, 16):
        cluster.edit(number)
        cluster.until(lambda status: bool(status.canary))
        cluster.until(lambda status: not status.canary, 2000)
    assert len(cluster.records) <= 3  # the stable, the previous, and what is left of the limit
    assert {f"chat-{one.hash}" for one in cluster.status.revisions} == set(cluster.records)


def test_the_history_of_a_statefulset_is_no_record(cluster: Cluster) -> None:
    """A StatefulSet's ControllerRevisions have the labels of its pods: those of engine pods."""
    good, bad = rejected(cluster)
    foreign = copy.deepcopy(cluster.records[f"chat-{bad}"])
    foreign["metadata"]["labels"]["app.kubernetes.io/name"] = "pagefleet-engine"
    owned = copy.deepcopy(cluster.records[f"chat-{bad}"])
    owned["metadata"]["ownerReferences"] = [{"kind": "StatefulSet"}]
    renamed = copy.deepcopy(cluster.records[f"chat-{bad}"])
    renamed["metadata"]["name"] = f"other-{bad}"
    present = manifest.readings([foreign, owned, renamed, cluster.records[f"chat-{good}"]])
    assert [one.revision for one in present] == [good]
